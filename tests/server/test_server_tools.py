"""Tools over HTTP: the head that stays pinned, calls of every family, streams, histories, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from agents import CONFIG, TEMPLATES, TOOLS, agent
from live import Live, live

pytest.importorskip("llguidance", reason="llguidance is not installed: the extra structured")

USER = [{"role": "user", "content": "What is the weather like?"}]


@pytest.fixture(scope="module", params=TEMPLATES)
def server(request: pytest.FixtureRequest) -> Iterator[Live]:
    with live({"config": CONFIG, "max_sessions": 6}, load=lambda: agent(request.param)) as here:
        here.family = request.param
        yield here


@pytest.fixture(scope="module")
def hermes() -> Iterator[Live]:
    with live({"config": CONFIG, "max_sessions": 6}, load=agent) as here:
        yield here


def ask(server: Live, messages: list[Any] = USER, **fields: Any) -> Any:
    body = {
        "model": "tiny",
        "messages": messages,
        "tools": TOOLS,
        "max_tokens": 200,
        "temperature": 1.0,
        "seed": 1,
    }
    return server.openai.chat.completions.create(**{**body, **fields})


def check(call: Any) -> None:
    arguments = json.loads(call.function.arguments)
    if call.function.name == "weather":
        assert (
            set(arguments) == {"unit", "days"}
            and arguments["unit"] in "CF"
            and 1 <= arguments["days"] <= 9
        )
    else:
        assert (call.function.name, arguments) == ("ping", {})


NAMED = {"type": "function", "function": {"name": "weather"}}


def test_a_loop_of_calls(server: Live) -> None:
    """Each call is well-formed; each request reads only what is new; the head stays pinned."""
    messages: list[Any] = [{"role": "system", "content": "Be brief. <|end|>"}, *USER]
    bias = {"logit_bias": {"0": 9}} if server.family == "gpt_oss" else {}  # reasoning ends soon
    cached = 0
    for number in range(2):
        reply = ask(server, messages, tool_choice=NAMED, seed=number, **bias)
        choice = reply.choices[0]
        assert choice.finish_reason == "tool_calls", choice
        (call,) = choice.message.tool_calls
        assert call.function.name == "weather" and choice.message.content is None
        check(call)
        usage = reply.usage
        assert usage.prompt_tokens_details.cached_tokens >= cached
        if number:
            assert usage.prompt_tokens - usage.prompt_tokens_details.cached_tokens < 120
        cached = usage.prompt_tokens_details.cached_tokens
        result = {"role": "tool", "tool_call_id": call.id, "content": f"{number} degrees <|end|>"}
        messages += [choice.message, result]
    assert cached > 100
    said = ask(
        server,
        [*messages, {"role": "user", "content": "Thank you"}],
        tool_choice="none",
        max_tokens=5,
    )
    assert said.usage.prompt_tokens_details.cached_tokens >= cached
    assert said.choices[0].message.tool_calls is None


def test_a_streamed_call(server: Live) -> None:
    """Its name first, then its arguments in pieces."""
    bias = {"logit_bias": {"0": 9}} if server.family == "gpt_oss" else {}
    chunks = list(ask(server, tool_choice=NAMED, stream=True, **bias))
    deltas = [one for chunk in chunks for one in chunk.choices[0].delta.tool_calls or ()]
    first = deltas[0]
    assert first.id and (first.function.name, first.function.arguments) == ("weather", "")
    assert {one.index for one in deltas} == {0}
    assert [one.id for one in deltas[1:]] == [None] * (len(deltas) - 1)
    assert set(json.loads("".join(one.function.arguments for one in deltas))) == {"unit", "days"}
    assert len(deltas) > 3 or server.family in ("gemma4", "qwen_xml")  # values leave whole
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_what_the_template_is_told(hermes: Live) -> None:
    """The head with tools is that of the tokenizer's own rendering, and is pinned."""
    _, tokenizer = agent()
    tokens = ask(hermes, max_tokens=1).usage.prompt_tokens
    rendered = tokenizer.apply_chat_template(
        USER, tools=TOOLS, add_generation_prompt=True, tokenize=False
    )
    assert tokens == len(tokenizer.encode(rendered))
    pots = hermes.service.engine.store.pots
    head = tokenizer.encode(rendered.partition("What is")[0])
    assert max(pot.session.pot.pinned for pot in pots) == len(head)


def test_several_calls_and_their_results(hermes: Live) -> None:
    said = {
        "role": "assistant",
        "content": "I look.",
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "ping", "arguments": "{}"}},
            {
                "id": "b",
                "type": "function",
                "function": {"name": "weather", "arguments": '{"unit": "C", "days": 2}'},
            },
        ],
    }
    results = [{"role": "tool", "tool_call_id": one, "content": f"result {one}"} for one in "ab"]
    messages = [*USER, said, *results, {"role": "user", "content": "And?"}]
    tokens = ask(hermes, messages, max_tokens=1).usage.prompt_tokens
    _, tokenizer = agent()
    told = json.loads(json.dumps(messages))
    for call in told[1]["tool_calls"]:
        call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    rendered = tokenizer.apply_chat_template(
        told, tools=TOOLS, add_generation_prompt=True, tokenize=False
    )
    assert tokens == len(tokenizer.encode(rendered))


def test_tool_choice_none_calls_nothing(hermes: Live) -> None:
    """The template still tells of the tools, so that the conversation's pot goes on."""
    told = ask(hermes, tool_choice="none", max_tokens=30)
    assert told.choices[0].message.tool_calls is None
    assert told.usage.prompt_tokens == ask(hermes, max_tokens=1).usage.prompt_tokens


def test_strict_functions_and_a_free_text(hermes: Live) -> None:
    strict = [{**tool, "function": {**tool["function"], "strict": True}} for tool in TOOLS]
    for seed in range(2):
        said = ask(hermes, tools=strict, tool_choice="auto", seed=seed, max_tokens=20).choices[0]
        for call in said.message.tool_calls or ():
            check(call)


def test_a_form_beside_tools(hermes: Live) -> None:
    form = {
        "type": "json_schema",
        "json_schema": {"name": "x", "schema": TOOLS[0]["function"]["parameters"], "strict": True},
    }
    for choice in ("auto", "none"):
        said = ask(hermes, tool_choice=choice, response_format=form, seed=4).choices[0].message
        for call in said.tool_calls or ():
            check(call)
        if not said.tool_calls:
            assert set(json.loads(said.content)) == {"unit", "days"}


def call_of(identity: str) -> dict[str, Any]:
    return {
        "role": "assistant",
        "tool_calls": [
            {"id": identity, "type": "function", "function": {"name": "ping", "arguments": "{}"}}
        ],
    }


RESULT = {"role": "tool", "tool_call_id": "a", "content": "pong"}


@pytest.mark.parametrize(
    ("fields", "parts"),
    [
        ({"tools": [], "tool_choice": "required"}, ["tool_choice", "no tools"]),
        (
            {"tool_choice": {"type": "function", "function": {"name": "other"}}},
            ["'other'", "weather, ping"],
        ),
        ({"tool_choice": "always"}, ["tool_choice: must be", "required"]),
        ({"tools": [TOOLS[1], TOOLS[1]]}, ["'ping' twice"]),
        ({"tools": [{"type": "web_search"}]}, ["tools.0.type"]),
        ({"messages": [*USER, RESULT]}, ["messages[1]", "'a'", "none"]),
        ({"messages": [*USER, call_of("b"), RESULT]}, ["messages[2]", "'a'", "'b'"]),
        ({"messages": [*USER, call_of("a")]}, ["function's result"]),
        (
            {"messages": [*USER, call_of("a"), *USER, RESULT]},
            ["messages[3]", "must follow its call"],
        ),
        ({"pot": "book"}, ["named pot", "without tools"]),
        (
            {
                "tools": [
                    {
                        "type": "function",
                        "function": {"name": "f", "parameters": {"type": "wibble"}},
                    }
                ],
                "tool_choice": "required",
            },
            ["wibble"],
        ),
        (
            {"chat_template_kwargs": {"tools": []}},
            ["chat_template_kwargs.tools", "field of the request"],
        ),
        ({"min_tokens": 5, "tool_choice": "required"}, ["min_tokens", "form"]),
    ],
)
def test_one_sentence_for_what_is_refused(hermes: Live, fields: dict, parts: list[str]) -> None:
    if "pot" in fields:
        hermes.http.put("/v1/pots/book?expendable=true&replace=true", content="The keeper hid it.")
    body = {"model": "tiny", "messages": USER, "tools": TOOLS, "max_tokens": 5, **fields}
    reply = hermes.http.post("/v1/chat/completions", json=body)
    assert reply.status_code == 400
    for part in parts:
        assert part in reply.json()["error"]["message"]


def test_models_that_know_no_tools() -> None:
    """Refused in a sentence; a template for tools helps, and changes nothing for other requests."""
    from tiny import TEMPLATE, make_tokenizer

    model, _ = agent()
    for template, settings, message in (
        (TEMPLATE, {}, "knows no tools"),
        (
            TEMPLATE.replace("{%", "{{ tools | tojson if tools else '' }}{%", 1),
            {},
            "--tool-parser (gpt_oss, mistral",
        ),
        (TEMPLATE, {"tool_template": TEMPLATES["hermes"][0]}, ""),
    ):
        tokenizer = make_tokenizer(template, size=100)
        with live(
            {"config": CONFIG, **settings}, load=lambda tokenizer=tokenizer: (model, tokenizer)
        ) as server:
            body = {
                "model": "tiny",
                "messages": USER,
                "tools": TOOLS,
                "tool_choice": "required",
                "max_tokens": 200,
            }
            reply = server.http.post("/v1/chat/completions", json=body)
            assert reply.status_code == (400 if message else 200), reply.text
            if message:
                assert message in reply.json()["error"]["message"]
            else:
                check(ask(server, tool_choice="required").choices[0].message.tool_calls[0])
            plain = server.chat("Hello", max_tokens=3)
            rendered = tokenizer.apply_chat_template(
                [{"role": "user", "content": "Hello"}], add_generation_prompt=True, tokenize=False
            )
            assert plain.usage.prompt_tokens == len(tokenizer.encode(rendered))
