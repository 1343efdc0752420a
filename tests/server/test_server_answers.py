"""Several answers to one prompt, penalties, forms of answers, answers that go on, and reasoning over HTTP."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from agents import CONFIG, agent
from live import Live, live
from tiny import TEMPLATE

USER = [{"role": "user", "content": "Say something about the lighthouse."}]
THINKS = TEMPLATE.replace(
    "<|assistant|>{% endif %}", "<|assistant|>{{ '<think>' if not quiet }}{% endif %}{# </think> #}"
)


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    with live({"config": CONFIG, "max_sessions": 4}, load=agent) as here:
        yield here


def ask(server: Live, messages: list[Any] = USER, **fields: Any) -> Any:
    extra = {name: fields.pop(name) for name in list(fields) if name in EXTRA}
    body = {"model": "tiny", "messages": messages, "max_tokens": 10, "extra_body": extra}
    return server.openai.chat.completions.create(**{**body, **fields})


EXTRA = {
    "repetition_penalty",
    "min_tokens",
    "ignore_eos",
    "stop_token_ids",
    "guided_regex",
    "guided_choice",
    "guided_json",
    "guided_grammar",
    "structured_outputs",
    "continue_final_message",
    "add_generation_prompt",
    "chat_template_kwargs",
    "include_reasoning",
}


def texts(reply: Any) -> list[str]:
    assert [one.index for one in reply.choices] == list(range(len(reply.choices)))
    return [one.message.content for one in reply.choices]


def test_several_answers_to_one_reading(server: Live) -> None:
    """Each with a seed of its own; the text is read once; more answers than places come, too."""
    parts = [{"type": "text", "text": "The keeper wrote. " * 8}, {"type": "text", "text": "Who?"}]
    messages = [{"role": "user", "content": parts}]
    sampling = {"temperature": 1.0, "seed": 7}
    before = server.gauge("infinipot_tokens_read_total")
    reply = ask(server, messages, n=3, **sampling)
    read = server.gauge("infinipot_tokens_read_total") - before
    assert reply.usage.prompt_tokens < read < reply.usage.prompt_tokens + 60
    assert reply.usage.completion_tokens == 30
    got = texts(reply)
    assert len(set(got)) == 3
    assert got == [
        texts(ask(server, messages, temperature=1.0, seed=7 + one))[0] for one in range(3)
    ]
    assert texts(ask(server, messages, n=5, **sampling))[:3] == got
    streamed = ["", "", ""]
    for chunk in ask(server, messages, n=3, stream=True, **sampling):
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert streamed == got
    create = server.openai.completions.create
    both = create(
        model="tiny",
        prompt=["One", "Two"],
        n=2,
        max_tokens=6,
        extra_body={"best_of": 2},
        **sampling,
    )
    assert [one.index for one in both.choices] == [0, 1, 2, 3]
    assert (
        both.choices[2].text
        == create(model="tiny", prompt="Two", max_tokens=6, **sampling).choices[0].text
    )
    body = {"model": "tiny", "prompt": ["a"] * 70, "n": 2}
    assert (
        "140 answers" in server.http.post("/v1/completions", json=body).json()["error"]["message"]
    )


def test_penalties_and_ends(server: Live) -> None:
    plain = ask(server, logprobs=True).choices[0].logprobs.content
    ids = [one.token for one in plain]
    for fields in (
        {"repetition_penalty": 100.0},
        {"frequency_penalty": 2.0, "presence_penalty": 2.0},
    ):
        changed = ask(server, logprobs=True, max_tokens=20, **fields).choices[0].logprobs.content
        assert [one.token for one in changed] != ids
    often = ask(server, logit_bias={"50": 100}, max_tokens=6).choices[0]
    assert len(set(often.message.content)) == 1
    assert ask(server, logit_bias={"0": 100}).choices[0].finish_reason == "stop"
    held = ask(server, logit_bias={"0": 100}, min_tokens=5, logprobs=True)
    assert held.usage.completion_tokens == 5
    assert (
        ask(server, logit_bias={"0": 100}, ignore_eos=True, max_tokens=6).usage.completion_tokens
        == 6
    )
    ended = ask(server, logit_bias={"50": 100}, stop_token_ids=[50])
    assert ended.usage.completion_tokens == 0 and ended.choices[0].finish_reason == "stop"


def test_forms(server: Live) -> None:
    pytest.importorskip("llguidance", reason="llguidance is not installed: the extra structured")
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}, "kind": {"enum": ["a", "b"]}},
        "required": ["ok", "kind"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    some = {"temperature": 1.0, "seed": 3}
    for fields in (
        {"response_format": form},
        {"guided_json": schema},
        {"structured_outputs": {"json": json.dumps(schema)}},
    ):
        said = ask(server, max_tokens=60, logprobs=True, **some, **fields).choices[0]
        assert set(json.loads(said.message.content)) == {"ok", "kind"}
        assert said.finish_reason == "stop"
    assert texts(ask(server, guided_choice=["yes", "no"], n=2, **some))[1] in ("yes", "no")
    assert re.fullmatch("[ab]{4}", texts(ask(server, guided_regex="[ab]{4}", **some))[0])
    assert texts(ask(server, structured_outputs={"grammar": 'root ::= "x" "y"'}))[0] == "xy"
    whole = ask(server, response_format={"type": "json_object"}, max_tokens=12, **some)
    assert texts(whole)[0].startswith("{")
    body = {"model": "tiny", "prompt": "Once", "guided_regex": "[0-9]{3}", "max_tokens": 9}
    said = server.http.post("/v1/completions", json=body).json()["choices"][0]
    assert re.fullmatch("[0-9]{3}", said["text"])


def test_an_answer_goes_on(server: Live) -> None:
    """With the same tokens as if it had never stopped; and the next turn finds the pot."""
    whole = texts(ask(server, max_tokens=20))[0]
    begun = [*USER, {"role": "assistant", "content": whole[:8]}]
    rest = ask(
        server, begun, continue_final_message=True, add_generation_prompt=False, max_tokens=12
    )
    assert texts(rest)[0] == whole[8:]
    more = ask(server, [*USER, {"role": "assistant", "content": whole}, *USER])
    assert more.usage.prompt_tokens_details.cached_tokens > len(USER[0]["content"])
    bare = ask(server, add_generation_prompt=False).usage.prompt_tokens
    assert bare == ask(server).usage.prompt_tokens - 1
    told = ask(server, chat_template_kwargs={"enable_thinking": False}).usage.prompt_tokens
    assert told == ask(server).usage.prompt_tokens + 1


def test_harmless_fields(server: Live) -> None:
    fields = {
        "parallel_tool_calls": True,
        "reasoning_effort": "low",
        "service_tier": "auto",
        "store": False,
        "metadata": {"a": "b"},
        "user": "me",
        "verbosity": "low",
        "prediction": {"type": "content", "content": "x"},
        "response_format": {"type": "text"},
        "tool_choice": "auto",
        "tools": [],
    }
    assert texts(ask(server, **fields)) == texts(ask(server))


def test_reasoning_apart() -> None:
    """The answer begins inside of it; clients send it back without, and the pot goes on."""
    more = ("<think>", "</think>")

    def load() -> tuple[Any, Any]:
        from tiny import make_tiny, make_tokenizer

        return make_tiny("llama", vocab=102), make_tokenizer(THINKS, size=102, more=more)

    with live({"config": CONFIG}, load=load) as server:
        close = {"logit_bias": {"5": 7.0}, "temperature": 1.0, "seed": 2, "max_tokens": 24}
        whole = ask(server, **close).choices[0].message
        assert whole.reasoning_content and whole.content
        assert "think>" not in whole.reasoning_content
        chunks = [one.choices[0].delta for one in ask(server, stream=True, **close)]
        assert (
            "".join(getattr(one, "reasoning_content", None) or "" for one in chunks)
            == whole.reasoning_content
        )
        assert "".join(one.content or "" for one in chunks) == whole.content
        hidden = ask(server, include_reasoning=False, **close).choices[0].message
        assert hidden.content == whole.content and not hasattr(hidden, "reasoning_content")
        told = [*USER, whole, *USER]
        again = ask(server, told)
        assert again.usage.prompt_tokens_details.cached_tokens > len(USER[0]["content"])
        quiet = ask(server, chat_template_kwargs={"quiet": True}, **close).choices[0].message
        assert not getattr(quiet, "reasoning_content", None) and quiet.content
