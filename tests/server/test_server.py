"""The OpenAI client against a live server."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
import torch
from live import CONFIG, Live, live, tiny

from infinipot import PotConfig, Session
from infinipot.engine.cuda_graphs import graph_cache
from infinipot.model.runner import ModelRunner
from infinipot.policies.registry import POLICIES
from infinipot.server.errors import APIError
from infinipot.server.jobs.echo import RecordingRunner
from infinipot.server.requests import config_of
from infinipot.server.schema import PotOptions
from infinipot.server.step import spare_core

MODEL, TOKENIZER = tiny()
LONG = "The keeper hid the letter under the third step. Nobody saw it, but the dog did. " * 12


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    with live({"max_sessions": 4}) as here:
        yield here


def stock(messages: list[dict], count: int) -> str:
    """What plain transformers says, without a pot."""
    ids = TOKENIZER.apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )["input_ids"]
    out = MODEL.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=count,
        do_sample=False,
        pad_token_id=0,
    )
    return TOKENIZER.decode(out[0, ids.shape[1] :], skip_special_tokens=True)


def test_chat_is_what_transformers_says_while_it_fits(server: Live) -> None:
    messages = [{"role": "system", "content": "Be brief."}]
    read = 0
    for number, question in enumerate(("Who hid it?", "Where?", "And why?")):
        messages.append({"role": "user", "content": question})
        reply = server.openai.chat.completions.create(
            model="tiny", messages=messages, max_tokens=14
        )
        choice = reply.choices[0]
        assert choice.message.content == stock(messages, 14)
        assert (choice.finish_reason, reply.usage.completion_tokens) == ("length", 14)
        assert (reply.usage.prompt_tokens_details.cached_tokens > 0) == (number > 0)
        assert reply.usage.prompt_tokens_details.cached_tokens in (0, read)
        read = reply.usage.prompt_tokens + len(TOKENIZER.encode(choice.message.content))
        messages.append(choice.message)


def test_long_messages_are_read_like_a_session_reads_them(server: Live) -> None:
    reply = server.openai.chat.completions.create(
        model="tiny",
        messages=[
            {
                "role": "user",
                "content": [{"type": "text", "text": LONG}, {"type": "text", "text": "Who?"}],
            }
        ],
        max_tokens=20,
    )
    session = Session(MODEL, TOKENIZER, CONFIG)
    session.append(LONG, question="Who?")
    assert reply.choices[0].message.content == session.ask("Who?", max_tokens=20)
    pot = reply.usage.pot
    assert pot["peak"] <= pot["size"] == 256
    assert pot["distillations"] > 3
    assert reply.usage.prompt_tokens > 900


def test_streams_say_the_same_with_usage(server: Live) -> None:
    whole = server.chat("Hello there", max_tokens=20, logprobs=True, top_logprobs=2)
    chunks = list(
        server.chat(
            "Hello there",
            max_tokens=20,
            logprobs=True,
            top_logprobs=2,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert (
        "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
        == whole.choices[0].message.content
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (
        len(chunks) - 2
    ) + ["length"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 20
    said = [
        token
        for chunk in chunks[:-1]
        if chunk.choices[0].logprobs
        for token in chunk.choices[0].logprobs.content
    ]
    assert [token.logprob for token in said] == [
        token.logprob for token in whole.choices[0].logprobs.content
    ]
    assert all(
        token.top_logprobs[0].logprob == token.logprob for token in said
    )  # greedy: it took the likeliest


def test_a_stream_ends_in_done(server: Live) -> None:
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "Hi"}],
        "max_tokens": 2,
        "stream": True,
    }
    with server.http.stream("POST", "/v1/chat/completions", json=body) as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in reply.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    assert all("usage" not in json.loads(line[6:]) for line in lines[:-1])


def test_stop_seed_and_temperature(server: Live) -> None:
    text = server.chat("Hello", max_tokens=20).choices[0].message.content
    stop = text[8:10]
    reply = server.chat("Hello", max_tokens=20, stop=[stop, "never said"])
    assert (reply.choices[0].message.content, reply.choices[0].finish_reason) == (
        text[: text.index(stop)],
        "stop",
    )
    after = server.chat(
        "Hello", reply.choices[0].message.content, "Go on"
    )  # the pot has not kept what the client never saw
    assert after.usage.prompt_tokens_details.cached_tokens > 0
    assert after.choices[0].message.content == stock(
        [
            {"role": role, "content": said}
            for role, said in (
                ("user", "Hello"),
                ("assistant", text[: text.index(stop)]),
                ("user", "Go on"),
            )
        ],
        12,
    )
    hot = [
        server.chat("Hello", max_tokens=20, temperature=2, top_p=0.9, seed=seed)
        .choices[0]
        .message.content
        for seed in (1, 1, 2)
    ]
    assert hot[0] == hot[1] != hot[2]


def test_an_answer_ends_by_itself() -> None:
    def load() -> tuple[object, object]:
        model, tokenizer = tiny()
        model.lm_head.weight.data[0] = 5 * model.lm_head.weight.data.mean(dim=0) + 3 * torch.randn(
            64, generator=torch.Generator().manual_seed(1)
        )
        return model, tokenizer

    with live(load=load) as here:
        reply = here.openai.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "Hello"}]
        )
        assert reply.choices[0].finish_reason == "stop"
        assert reply.usage.completion_tokens < 40


def test_a_token_leaves_a_core_to_others() -> None:
    before = torch.get_num_threads()
    try:
        for there, device, used in ((3, "cpu", 2), (1, "cpu", 1), (3, "cuda", 3)):
            torch.set_num_threads(there)
            with spare_core(torch.device(device)):
                assert torch.get_num_threads() == used
            assert torch.get_num_threads() == there
    finally:
        torch.set_num_threads(before)


def test_completions(server: Live) -> None:
    ids = TOKENIZER.encode("Once upon")
    expected = TOKENIZER.decode(
        MODEL.generate(torch.tensor([ids]), max_new_tokens=8, do_sample=False, pad_token_id=0)[
            0, len(ids) :
        ]
    )
    for prompt in ("Once upon", ids, ["Once upon", "a time"], [ids, ids]):
        reply = server.openai.completions.create(model="tiny", prompt=prompt, max_tokens=8)
        assert reply.choices[0].text == expected
        assert [choice.index for choice in reply.choices] == list(range(len(reply.choices)))
    assert len(reply.choices) == 2
    assert reply.usage.completion_tokens == 16
    streamed = server.openai.completions.create(
        model="tiny", prompt="Once upon", max_tokens=8, stream=True
    )
    assert "".join(chunk.choices[0].text for chunk in streamed) == expected


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_echo_gives_the_prompts_own_probabilities(server: Live, max_tokens: int) -> None:
    ids = TOKENIZER.encode(LONG[:150])
    reply = server.openai.completions.create(
        model="tiny", prompt=[ids], max_tokens=max_tokens, echo=True, logprobs=1
    )
    with torch.no_grad():
        logprobs = MODEL(torch.tensor([ids])).logits[0].log_softmax(dim=-1)
    expected = logprobs[:-1].gather(1, torch.tensor(ids)[1:, None])[:, 0]
    said = reply.choices[0].logprobs
    assert reply.choices[0].text.startswith(LONG[:150])
    assert len(said.tokens) == len(ids) + max_tokens
    assert said.token_logprobs[0] is None
    assert torch.allclose(torch.tensor(said.token_logprobs[1 : len(ids)]), expected, atol=1e-4)
    likeliest = [max(top, key=top.get) for top in said.top_logprobs[1 : len(ids)]]
    assert likeliest == [
        TOKENIZER.decode([token]) for token in logprobs[:-1].argmax(dim=-1).tolist()
    ]
    long = server.openai.completions.create(
        model="tiny", prompt=LONG, max_tokens=max_tokens, echo=True, logprobs=0
    )
    assert len(long.choices[0].logprobs.token_logprobs) == len(TOKENIZER.encode(LONG)) + max_tokens
    assert long.usage.pot["distillations"] > 0


def test_conversations_side_by_side_are_those_alone(server: Live) -> None:
    def talk(name: str) -> list[str]:
        said = []
        for turn in range(3):
            said.append(f"I am {name}, turn {turn}.")
            said.append(server.chat(*said, max_tokens=10).choices[0].message.content)
        return said

    alone = [talk(name) for name in ("Anna", "Ben")]
    with ThreadPoolExecutor() as pool:
        assert list(pool.map(talk, ("Anna", "Ben"))) == alone
    assert alone[0][1::2] != alone[1][1::2]


def test_a_retry_finds_the_pot_as_it_was(server: Live) -> None:
    first = server.chat("Tell me")
    said = ("Tell me", first.choices[0].message.content, "More")
    one, two = server.chat(*said), server.chat(*said)
    assert one.choices[0].message.content == two.choices[0].message.content
    assert (
        one.usage.prompt_tokens_details.cached_tokens
        == two.usage.prompt_tokens_details.cached_tokens
        > 0
    )


def test_a_client_that_leaves_frees_its_place(server: Live) -> None:
    stream = server.chat("Hello", max_tokens=100_000, stream=True)
    next(iter(stream))
    server.wait("infinipot_running", 1)
    stream.close()
    server.wait("infinipot_running", 0)
    with pytest.raises(openai.APITimeoutError):
        server.chat("Hello", max_tokens=100_000, timeout=0.3)
    server.wait("infinipot_running", 0)


def test_options_of_the_pot(server: Live) -> None:
    reply = server.chat(LONG, pot_size=200, policy="streaming")
    assert (reply.usage.pot["size"], reply.usage.pot["policy"]) == (200, "streaming")
    for wrong, part in (
        ({"pot_size": 300}, "256 entries"),
        ({"policy": "full"}, "policy='full'"),
        ({"policy": "snapvk"}, "known"),
    ):
        with pytest.raises(openai.BadRequestError, match=part):
            server.chat(LONG, **wrong)


def test_who_listens_uses_no_recordings_and_leaves_those_of_others() -> None:
    runner = ModelRunner(tiny()[0])
    graphs = graph_cache(runner)
    graphs.steps.keep("some", step := object())
    recording = graph_cache(RecordingRunner(runner))
    assert (recording.unrecordable, dict(recording.steps)) == (True, {})
    assert (graphs.unrecordable, dict(graphs.steps)) == (False, {"some": step})


def test_another_policy_leaves_what_was_meant_for_the_server_s_own() -> None:
    base = PotConfig(pot_size=256, preset="facts")
    other, plain, same = (
        config_of(PotOptions(**given), base)
        for given in ({"policy": "h2o"}, {"catalyst": "plain"}, {"pool": 5})
    )
    assert (other.score_memory, other.contrast) == (0.0, None)
    assert (plain.score_memory, plain.contrast) == ("once", None)
    assert (same.score_memory, same.contrast, same.pool) == ("once", "unrelated", 5)


def test_tokenize_models_and_metrics(server: Live) -> None:
    text = "Hello you"
    said = server.http.post("/tokenize", json={"prompt": text, "offsets": True}).json()
    assert said == {"tokens": TOKENIZER.encode(text), "count": 9, "offsets": list(range(9))}
    assert [model.id for model in server.openai.models.list()] == ["tiny"]
    assert server.openai.models.retrieve("tiny").id == "tiny"
    card = server.http.get("/v1/models/tiny").json()
    base = server.service.settings.config
    for name in POLICIES:  # the card names those that a request may choose
        with (
            contextlib.nullcontext() if name in card["pot"]["policies"] else pytest.raises(APIError)
        ):
            config_of(PotOptions(policy=name), base)
    assert card["sampling"]["max_tokens"] == server.service.settings.sampling.max_tokens
    before = server.gauge("infinipot_tokens_generated_total")
    server.chat("Hello", max_tokens=7)
    server.wait("infinipot_tokens_generated_total", before + 7)
    assert server.http.get("/").status_code == 200


def test_pages_name_no_other_host(server: Live) -> None:
    for page in ("/", "/docs"):
        reply = server.http.get(page)
        assert reply.headers["content-security-policy"].startswith("default-src 'self'")
        files = re.findall(r'(?:src|href)="(page/[^"]+)"', reply.text)
        assert files
        for text in (reply.text, *(server.http.get(path).text for path in files)):
            assert (
                re.findall(
                    r"(?:https?:)?//[\w.-]+\.\w+", text.replace("http://www.w3.org/2000/svg", "")
                )
                == []
            )


@pytest.mark.parametrize(
    ("body", "status", "parts"),
    [
        ({"messages": [{"role": "user", "content": "x"}]}, 400, ["model", "missing"]),
        ({"model": "tiny"}, 400, ["messages", "missing"]),
        (
            {"model": "gpt-4", "messages": [{"role": "user", "content": "x"}]},
            404,
            ["'gpt-4'", "'tiny'"],
        ),
        ({"model": "tiny", "messages": []}, 400, ["messages"]),
        ({"model": "tiny", "messages": [{"role": "user", "content": ""}]}, 400, ["empty"]),
        (
            {"model": "tiny", "messages": [{"role": "assistant", "content": "x"}]},
            400,
            ["must be the user's"],
        ),
        (
            {"model": "tiny", "messages": [{"role": "function", "content": "x"}]},
            400,
            ["messages.0.role"],
        ),
        (
            {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "temprature": 1},
            400,
            ["temprature", "not a field"],
        ),
        ({"model": "tiny", "messages": [{"role": "user", "content": "x"}], "n": 0}, 400, ["n:"]),
        (
            {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "top_logprobs": 2},
            400,
            ["logprobs"],
        ),
        (
            {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "max_tokens": 0},
            400,
            ["max_tokens"],
        ),
        (
            {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "pot": "../etc"},
            400,
            ["pot"],
        ),
        (
            {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "pot": "none"},
            404,
            ["there is no pot 'none'"],
        ),
    ],
)
def test_errors_have_openais_form(server: Live, body: dict, status: int, parts: list[str]) -> None:
    for stream in (False, True):
        reply = server.http.post("/v1/chat/completions", json={**body, "stream": stream})
        assert reply.status_code == status
        assert set(reply.json()["error"]) == {"message", "type", "param", "code"}
        for part in parts:
            assert part in reply.json()["error"]["message"]
