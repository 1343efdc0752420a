"""POST /v1/responses with OpenAI's client: text and items, events, tools, forms, conversations that go on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from agents import CONFIG, TOOLS, agent
from live import Live, live

from infinipot.server.errors import APIError
from infinipot.server.response_store import ResponseStore

FLAT = [{"type": "function", **tool["function"]} for tool in TOOLS]


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    with live({"config": CONFIG, "max_sessions": 4}, load=agent) as here:
        yield here


def create(server: Live, asked: Any = "Say something", **fields: Any) -> Any:
    body = {"model": "tiny", "input": asked, "max_output_tokens": 12}
    return server.openai.responses.create(**{**body, **fields})


def test_an_input_as_text_and_as_items(server: Live) -> None:
    reply = create(server, instructions="Be brief")
    chat = server.openai.chat.completions.create(
        model="tiny",
        messages=[
            {"role": "system", "content": "Be brief"},
            {"role": "user", "content": "Say something"},
        ],
        max_tokens=12,
    )
    assert reply.output_text == chat.choices[0].message.content
    assert (reply.status, reply.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert reply.usage.input_tokens == chat.usage.prompt_tokens
    assert reply.usage.output_tokens == 12
    items = [
        {"role": "developer", "content": "Be brief"},
        {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "Say something"}],
        },
    ]
    assert create(server, items).output_text == reply.output_text


def test_a_conversation_goes_on(server: Live) -> None:
    first = create(server)
    second = create(server, "More", previous_response_id=first.id)
    assert second.usage.input_tokens_details.cached_tokens > len("Say something")
    said = [
        {"role": "user", "content": "Say something"},
        *[item.model_dump() for item in first.output],
        {"role": "user", "content": "More"},
    ]
    assert create(server, said).output_text == second.output_text
    third = create(server, "Again", previous_response_id=second.id)
    assert third.usage.input_tokens > second.usage.input_tokens
    kept = create(server, store=False)
    for unknown in (kept.id, "resp_0"):
        body = {"model": "tiny", "input": "x", "previous_response_id": unknown}
        refused = server.http.post("/v1/responses", json=body)
        assert refused.status_code == 404
        assert "send the whole conversation" in refused.json()["error"]["message"]


def test_the_oldest_responses_go_first() -> None:
    store = ResponseStore(most=400)
    for number in range(20):
        store.add(
            str(number),
            [{"role": "user", "content": "x" * 40}],
            str(number - 1) if number else None,
        )
    with pytest.raises(APIError, match="not any more"):
        store.messages("19")
    store.add("new", [{"role": "user", "content": "y"}], None)
    assert store.messages("new") == [{"role": "user", "content": "y"}]


def test_events_are_those_of_the_whole_reply(server: Live) -> None:
    whole = create(server)
    events = list(create(server, stream=True))
    kinds = [event.type.removeprefix("response.") for event in events]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", "incomplete"]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert (
        "".join(event.delta for event in events if event.type.endswith("text.delta"))
        == whole.output_text
    )
    assert events[-1].response.output_text == whole.output_text


def test_the_clients_own_stream(server: Live) -> None:
    pytest.importorskip("llguidance", reason="llguidance is not installed: the extra structured")
    form = {"extra_body": {"guided_regex": "[a-f]{20}"}}
    whole = create(server, max_output_tokens=30, **form)
    assert (whole.status, len(whole.output_text)) == ("completed", 20)
    with server.openai.responses.stream(
        model="tiny", input="Say something", max_output_tokens=30, **form
    ) as stream:
        assert stream.get_final_response().output_text == whole.output_text


def test_a_loop_of_calls(server: Live) -> None:
    pytest.importorskip("llguidance", reason="llguidance is not installed: the extra structured")
    some = {"tools": FLAT, "temperature": 1.0, "max_output_tokens": 200}
    choice = {"type": "function", "name": "weather"}
    asked: list[Any] = [{"role": "user", "content": "How is the weather?"}]
    reply = create(server, asked, tool_choice=choice, **some)
    (call,) = reply.output
    assert (reply.status, call.type, call.name) == ("completed", "function_call", "weather")
    assert set(json.loads(call.arguments)) == {"unit", "days"}
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "warm"}
    after = create(server, [result], previous_response_id=reply.id, tool_choice=choice, **some)
    assert after.usage.input_tokens_details.cached_tokens > reply.usage.input_tokens
    again = create(
        server, [*asked, call.model_dump(exclude_none=True), result], **some, tool_choice=choice
    )
    assert again.usage.input_tokens == after.usage.input_tokens
    events = list(create(server, asked, tool_choice=choice, stream=True, **some))
    deltas = [
        event.delta for event in events if event.type == "response.function_call_arguments.delta"
    ]
    assert len(deltas) > 3
    (item,) = events[-1].response.output
    assert "".join(deltas) == item.arguments
    assert events[-1].type == "response.completed"


def test_a_form(server: Live) -> None:
    pydantic = pytest.importorskip("pydantic")
    pytest.importorskip("llguidance", reason="llguidance is not installed: the extra structured")

    class Found(pydantic.BaseModel):
        ok: bool
        kind: int = pydantic.Field(ge=0, le=99)

    reply = server.openai.responses.parse(
        model="tiny",
        input="Say something",
        max_output_tokens=80,
        temperature=1.0,
        text_format=Found,
    )
    assert isinstance(reply.output_parsed, Found)


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"input": [{"type": "computer_call"}]}, "function_call_output"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
        ({"background": True}, "background"),
        ({"conversation": "x"}, "conversation"),
        ({"input": []}, "input"),
        ({"n": 2}, "n"),
    ],
)
def test_what_is_refused(server: Live, fields: dict, part: str) -> None:
    reply = server.http.post("/v1/responses", json={"model": "tiny", "input": "x", **fields})
    assert reply.status_code == 400
    assert part in reply.json()["error"]["message"]
