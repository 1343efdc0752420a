"""Other people's clients, unchanged; each test needs its package."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from live import Live, live, tiny


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    with live() as here:
        yield here


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
