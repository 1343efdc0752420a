"""Other people's clients, unchanged; each test needs its package."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pydantic
import pytest
import torch
from agents import CONFIG, TOOLS, agent
from live import Live, live, tiny


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    with live() as here:
        yield here


@pytest.fixture(scope="module")
def agents() -> Iterator[Live]:
    """With a model that can be told of tools."""
    pytest.importorskip("llguidance", reason="llguidance is not installed: the extra structured")
    with live({"config": CONFIG, "max_sessions": 4}, load=agent) as here:
        yield here


class Weather(pydantic.BaseModel):
    """Tell the weather."""

    unit: Literal["C", "F"]
    days: int = pydantic.Field(ge=1, le=9)


SAMPLING: dict[str, Any] = {"temperature": 1.0, "seed": 3, "max_tokens": 200}


def test_openais_own_helpers(agents: Live) -> None:
    """parse, streams, and a loop of calls."""
    import openai

    completions = agents.openai.chat.completions
    said: list[Any] = [{"role": "user", "content": "Weather?"}]
    asked: dict[str, Any] = {"model": "tiny", "messages": said, **SAMPLING}
    parsed = completions.parse(**asked, response_format=Weather).choices[0].message.parsed
    assert isinstance(parsed, Weather)
    tool = openai.pydantic_function_tool(Weather)
    reply = completions.parse(
        **asked, tools=[tool], tool_choice="required", parallel_tool_calls=False
    )
    (call,) = reply.choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, Weather)
    with completions.stream(
        **asked, tools=TOOLS, tool_choice="required", parallel_tool_calls=False
    ) as stream:
        events = [event.type for event in stream]
        final = stream.get_final_completion().choices[0].message
    assert "tool_calls.function.arguments.delta" in events
    said += [final, {"role": "tool", "tool_call_id": final.tool_calls[0].id, "content": "warm"}]
    after = completions.create(**{**asked, "max_tokens": 5}, tools=TOOLS, tool_choice="none")
    assert after.usage.prompt_tokens_details.cached_tokens > 100


def test_langchain_tools_and_forms(agents: Live) -> None:
    langchain = pytest.importorskip("langchain_openai", reason="langchain-openai is not installed")
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_core.tools import tool

    @tool
    def ping(host: str) -> str:
        """Ask whether a host is there."""
        return f"{host} is there"

    chat = langchain.ChatOpenAI(
        model="tiny", base_url=f"{agents.url}/v1", api_key="none", **SAMPLING
    )
    for method in ("json_schema", "function_calling"):
        assert isinstance(
            chat.with_structured_output(Weather, method=method).invoke("Weather?"), Weather
        )
    bound = chat.bind_tools([ping, Weather], tool_choice="Weather")
    said = bound.invoke("Weather?")
    (call,) = said.tool_calls
    assert call["name"] == "Weather" and set(call["args"]) == {"unit", "days"}
    result = ToolMessage("warm", tool_call_id=call["id"])
    assert bound.invoke([HumanMessage("Weather?"), said, result]).tool_calls
    chunks = list(bound.stream("Weather?"))
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole = whole + chunk
    assert whole.tool_calls[0]["args"] == call["args"]


def test_llamaindex_function_calling(agents: Live) -> None:
    like = pytest.importorskip(
        "llama_index.llms.openai_like", reason="llama-index-llms-openai-like is not installed"
    )
    from llama_index.core.tools import FunctionTool

    def weather(unit: str, days: int) -> str:
        """Tell the weather."""
        return "warm"

    llm = like.OpenAILike(
        model="tiny",
        api_base=f"{agents.url}/v1",
        api_key="none",
        is_chat_model=True,
        is_function_calling_model=True,
        max_tokens=200,
        temperature=1.0,
    )
    tools = [FunctionTool.from_defaults(weather)]
    reply = llm.chat_with_tools(
        tools, user_msg="Weather?", tool_required=True, allow_parallel_tool_calls=False
    )
    (call,) = llm.get_tool_calls_from_response(reply)
    assert call.tool_name == "weather" and set(call.tool_kwargs) == {"unit", "days"}


def test_litellm(agents: Live) -> None:
    litellm = pytest.importorskip("litellm", reason="litellm is not installed")
    asked: dict[str, Any] = {
        "model": "openai/tiny",
        "api_base": f"{agents.url}/v1",
        "api_key": "none",
        "messages": [{"role": "user", "content": "Weather?"}],
        **SAMPLING,
    }
    reply = litellm.completion(
        **asked, tools=TOOLS, tool_choice="required", parallel_tool_calls=False
    )
    assert reply.choices[0].finish_reason == "tool_calls"
    assert reply.choices[0].message.tool_calls[0].function.name in ("weather", "ping")
    both = litellm.completion(**{**asked, "max_tokens": 4}, n=2, presence_penalty=1.0)
    assert len(both.choices) == 2
    formed = litellm.completion(**asked, response_format=Weather)
    assert Weather.model_validate_json(formed.choices[0].message.content)


def test_langchain(server: Live) -> None:
    langchain = pytest.importorskip("langchain_openai", reason="langchain-openai is not installed")
    chat = langchain.ChatOpenAI(
        model="tiny", base_url=f"{server.url}/v1", api_key="none", max_tokens=12
    )
    whole = chat.invoke([("user", "Hello")])
    assert whole.content == server.chat("Hello").choices[0].message.content
    assert whole.usage_metadata["output_tokens"] == 12
    assert "".join(chunk.content for chunk in chat.stream([("user", "Hello")])) == whole.content


def test_llamaindex(server: Live) -> None:
    like = pytest.importorskip(
        "llama_index.llms.openai_like", reason="llama-index-llms-openai-like is not installed"
    )
    from llama_index.core.llms import ChatMessage

    address = {
        "model": "tiny",
        "api_base": f"{server.url}/v1",
        "api_key": "none",
        "is_chat_model": True,
    }
    llm = like.OpenAILike(**address, max_tokens=12, temperature=0)
    said = [ChatMessage(role="user", content="Hello")]
    whole = llm.chat(said)
    assert whole.message.content == server.chat("Hello").choices[0].message.content
    assert "".join(chunk.delta for chunk in llm.stream_chat(said)) == whole.message.content
    assert llm.complete("Hello").text == whole.message.content
    more = llm.chat([*said, whole.message, ChatMessage(role="user", content="More")])
    assert more.raw.usage.prompt_tokens_details.cached_tokens > 0
    server.http.put("/v1/pots/book", content=b"The keeper hid the letter. " * 30)
    asked = like.OpenAILike(**address, additional_kwargs={"extra_body": {"pot": "book"}})
    assert asked.chat(said).raw.usage.prompt_tokens_details.cached_tokens > 500


def test_lm_eval(server: Live, tmp_path: Path) -> None:
    completions = pytest.importorskip(
        "lm_eval.models.openai_completions", reason="lm-eval is not installed"
    )
    from lm_eval.api.instance import Instance

    model, tokenizer = tiny()
    tokenizer.save_pretrained(tmp_path)
    lm = completions.LocalCompletionsAPI(
        base_url=f"{server.url}/v1/completions", model="tiny", tokenizer=str(tmp_path)
    )
    ((value, greedy),) = lm.loglikelihood(
        [Instance("loglikelihood", {}, ("Once upon", " a time"), 0)]
    )
    ids = tokenizer.encode("Once upon a time")
    with torch.no_grad():
        logprobs = model(torch.tensor([ids])).logits[0].log_softmax(dim=-1)
    start = len("Once upon")
    expected = logprobs[start - 1 : -1].gather(1, torch.tensor(ids)[start:, None]).sum()
    assert value == pytest.approx(float(expected), abs=1e-3)
    assert not greedy
    (text,) = lm.generate_until(
        [Instance("generate_until", {}, ("Once upon", {"until": ["zzz"], "max_gen_toks": 8}), 0)]
    )
    assert (
        text
        == server.openai.completions.create(model="tiny", prompt="Once upon", max_tokens=8)
        .choices[0]
        .text
    )
