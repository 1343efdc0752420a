"""Penalties, biases and ends of answers: as plain loops compute them, alone and in a batch, without waiting for a device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from operations import WAITS, Operations
from tiny import make_tiny, make_tokenizer
from torch import Tensor
from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor

from infinipot import PotConfig, Sampling, Session
from infinipot.engine.decode import together
from infinipot.engine.sampling import Sampler, SamplerBatch, sample

OPTIONS: list[dict[str, Any]] = [
    {},
    {"repetition_penalty": 1.7},
    {"presence_penalty": 1.5},
    {"frequency_penalty": 0.8},
    {"repetition_penalty": 0.6, "presence_penalty": -0.7, "frequency_penalty": -0.4},
    {"logit_bias": {3: 50.0, 5: -2.0}},
    {"min_tokens": 4},
    {"repetition_penalty": 1.3, "frequency_penalty": 2.0, "temperature": 1.2, "top_p": 0.9},
    {"logit_bias": {7: 3.0}, "temperature": 0.9, "presence_penalty": 1.0, "min_tokens": 2},
]
PROMPT = [3, 4, 4, 9, 20]
ENDS = {11, 12}
SIZE = 60


def begun(**more: Any) -> list[Sampler]:
    made = [Sampler(Sampling(seed=row, **one, **more)) for row, one in enumerate(OPTIONS)]
    for row, one in enumerate(made):
        one.answer.begin(PROMPT[row % 3 :], ENDS)
    return made


def logits_of(step: int, rows: int = len(OPTIONS)) -> Tensor:
    return 3 * torch.randn(rows, SIZE, generator=torch.Generator().manual_seed(step))


def changed(logits: list[float], options: dict, prompt: list[int], answer: list[int]) -> Tensor:
    """The logits of a row [V], token by token; the repetition by transformers' own processor."""
    values = list(logits)
    for token, bias in options.get("logit_bias", {}).items():
        values[token] += bias
    if "repetition_penalty" in options:
        processor = RepetitionPenaltyLogitsProcessor(options["repetition_penalty"])
        values = processor(torch.tensor([prompt + answer]), torch.tensor([values]))[0].tolist()
    for token in set(answer):
        values[token] -= options.get("presence_penalty", 0)
        values[token] -= options.get("frequency_penalty", 0) * answer.count(token)
    if len(answer) < options.get("min_tokens", 0):
        for token in ENDS:
            values[token] = float("-inf")
    return torch.tensor(values)


def test_logits_are_those_of_plain_loops() -> None:
    made = begun()
    answers: list[list[int]] = [[] for _ in made]
    for step in range(8):
        logits = logits_of(step)
        before = logits.clone()
        penalties = SamplerBatch(made, torch.device("cpu")).penalties
        assert penalties is not None
        got = penalties(logits)
        assert torch.equal(logits, before)
        for row, options in enumerate(OPTIONS):
            expected = changed(logits[row].tolist(), options, PROMPT[row % 3 :], answers[row])
            torch.testing.assert_close(got[row], expected, rtol=1e-5, atol=1e-5)
        for row, token in enumerate(sample(made, logits).tolist()):
            assert len(answers[row]) >= OPTIONS[row].get("min_tokens", 0) or token not in ENDS
            made[row].answer.accept(token)
            answers[row].append(token)
    assert answers[5] == [3] * 8
    assert torch.equal(got[0], logits[0])


def test_a_row_in_a_batch_is_as_alone() -> None:
    alone = begun()
    batch = begun()
    going_on = list(range(len(OPTIONS)))
    for step in range(24):
        logits = logits_of(step)
        expected = [alone[row](logits[row : row + 1]) for row in going_on]
        picked = sample([batch[row] for row in going_on], logits[going_on]).tolist()
        assert picked == expected
        for row, token in zip(going_on, picked, strict=True):
            alone[row].answer.accept(token)
            batch[row].answer.accept(token)
        if step % 4 == 3:  # an answer ends
            going_on.pop(step % len(going_on))


def test_nothing_waits_for_the_device() -> None:
    made = begun()
    batch = SamplerBatch(made, torch.device("cpu"))
    with Operations() as seen:
        for step in range(3):
            batch.sample(logits_of(step))
            for one in made:
                one.answer.accept(step)
    assert not WAITS & set(seen.names)


@pytest.fixture(scope="module")
def session() -> Session:
    one = Session(make_tiny("llama"), make_tokenizer(), PotConfig(pot_size=256, distill_to=60))
    one.append("Anna hid the letter under the lamp. " * 12)
    return one


def test_the_question_counts_and_the_text_does_not(session: Session) -> None:
    """A penalty so high that every token comes once. The text has letters that the question has not."""
    question = "Who did?"
    answer = session.stream(question, max_tokens=40, repetition_penalty=1e4)
    list(answer)
    ids = answer.ids
    assert len(set(ids)) == len(ids) == 40
    assert not set(ids) & set(session.tokenizer.encode(question))
    assert set(ids) & set(session.tokenizer.encode("Anna hid the letter under the lamp."))
    counted = session.stream(question, max_tokens=80, presence_penalty=1e4)
    list(counted)
    assert len(set(counted.ids)) == 80
    assert set(counted.ids) & set(session.tokenizer.encode(question))


def test_answers_together_are_as_alone(session: Session) -> None:
    options = [
        {},
        {"repetition_penalty": 1.4},
        {"frequency_penalty": 1.0, "temperature": 1.0, "seed": 3},
    ]
    alone = []
    for one in options:
        answer = session.stream("Who did?", max_tokens=20, **one)
        list(answer)
        alone.append(answer.ids)
    forks = [session.fork() for _ in options]
    runs = [
        fork.generation("Who did?", max_tokens=20, pick=Sampler(Sampling(max_tokens=20, **one)))
        for fork, one in zip(forks, options, strict=True)
    ]
    tokens: list[list[int]] = [[] for _ in options]
    for step in together(runs):
        for number, token in step:
            tokens[number].append(token)
    assert tokens == alone
    assert len({tuple(one) for one in tokens}) == 3


def test_ends_of_answers(session: Session) -> None:
    plain = session.stream("Who did?", max_tokens=12, ignore_eos=True)
    list(plain)
    stop = plain.ids[4]
    cut = session.stream("Who did?", max_tokens=12, stop_token_ids=[stop])
    list(cut)
    assert cut.ids == plain.ids[: plain.ids.index(stop)]
    assert cut.finish_reason == "stop"
    held = session.stream("Who did?", max_tokens=12, stop_token_ids=[stop], min_tokens=8)
    list(held)
    assert len(held.ids) >= 8 and stop not in held.ids
    end = session.tokenizer.eos_token_id
    always = {"max_tokens": 6, "logit_bias": {end: 1e4}}
    assert session.ask("Who did?", **always) == ""
    ignored = session.stream("Who did?", ignore_eos=True, **always)
    assert "".join(ignored) == ""
    assert ignored.ids == [end] * 6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stop_token_ids": [97]}, "stop_token_ids names the token 97.*0 to 96"),
        ({"logit_bias": {1000: 1}}, "logit_bias names the token 1000.*0 to 96"),
        ({"logit_bias": 5}, "logit_bias=5 is not allowed.*by token id"),
        ({"logit_bias": {1: float("nan")}}, "logit_bias=nan is not allowed"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens=9 is not allowed.*max_tokens=8"),
        ({"repetition_penalty": 0}, "repetition_penalty=0 is not allowed"),
        ({"presence_penalty": True}, "presence_penalty=True is not allowed"),
        ({"stop_token_ids": 5}, "stop_token_ids=5 is not allowed"),
        ({"ignore_eos": 1}, "ignore_eos=1 is not allowed"),
    ],
)
def test_one_sentence_for_what_cannot_be(session: Session, options: dict, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        session.ask("Who?", **options)
    assert session.ask("Who?", max_tokens=3)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_nothing_waits_and_logits_are_those_of_the_cpu() -> None:
    here = begun()
    there = begun()
    for step in range(4):
        logits = logits_of(step)
        on_gpu = logits.cuda()
        on_cpu = SamplerBatch(here, torch.device("cpu")).penalties
        batch = SamplerBatch(there, torch.device("cuda")).penalties
        assert on_cpu is not None and batch is not None
        torch.cuda.set_sync_debug_mode("error" if step else "default")
        try:
            got = batch(on_gpu)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        torch.testing.assert_close(got.cpu(), on_cpu(logits), rtol=1e-5, atol=1e-5)
        for row, (one, other) in enumerate(zip(here, there, strict=True)):
            one.answer.accept(row + step)
            other.answer.accept(row + step)
