"""A pot is distilled when it is full: a text and an answer that fit are stock's, whatever max_tokens allows."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from helpers import greedy, random_ids
from tiny import make_tiny, make_tokenizer

from infinipot import PotConfig, Session, generate
from infinipot.model.runner import ModelRunner

MODEL = make_tiny("llama")
MODEL.lm_head.weight.data[:4] = 0
RUNNER = ModelRunner(MODEL)
SIZE = 96
QUESTION = random_ids(12, seed=2)


@functools.cache
def stock(length: int, count: int) -> list[int]:
    ids = [*random_ids(length, seed=1), *QUESTION]
    with torch.no_grad():
        for _ in range(count):
            ids.append(int(MODEL(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[length + len(QUESTION) :]


def session(length: int, policy: str) -> Session:
    config = PotConfig(pot_size=SIZE, distill_to=40, policy=policy, chunk_tokens=16)
    one = Session(RUNNER, None, config)
    one.append(random_ids(length, seed=1), question=QUESTION)
    assert one.stats.distillations == 0
    return one


def answer(one: Session, count: int, **options: Any) -> list[int]:
    return list(one.stream_ids(QUESTION, pick=greedy, stop_ids=set(), max_tokens=count, **options))


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("policy", ["infinipot", "h2o"])
@pytest.mark.parametrize("length", [76, 84])
def test_any_max_tokens(length: int, policy: str, keep: bool) -> None:
    """84: the text and its question fill the pot but for nothing."""
    room = SIZE - length - len(QUESTION)
    expected = stock(length, room + 1)
    for count in {room, room + 1, room + 20}:
        one = session(length, policy)
        before = one.stats.distillations, one.logits.tolist()
        got = answer(one, count, keep=keep)
        assert len(got) == count
        assert got[: room + 1] == expected[:count]
        assert one.stats.peak_entries <= SIZE
        if keep:
            assert one.pot.tokens_read == length + len(QUESTION) + count
            one.append(random_ids(30, seed=3), question=QUESTION)  # the catalyst has room again
        else:
            assert (one.stats.distillations, one.logits.tolist()) == before


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("length", [76, 84])
def test_truncation_at_any_max_tokens(length: int, keep: bool) -> None:
    """A text that fits is cut when the answer needs its room, and goes on as stock does on what stays."""
    room = SIZE - length - len(QUESTION)
    text = random_ids(length, seed=1)
    expected = stock(length, room + 1)
    for count in {max(1, room), room + 1, room + 20}:
        one = session(length, "truncate")
        assert one.stats.tokens_read == SIZE // 2  # the end waits for its question
        got = answer(one, count, keep=keep)
        assert len(got) == count
        assert got[: room + 1] == expected[:count]
        cut = max(0, count - room) if count > room + 1 else 0
        left = text[: SIZE // 2] + text[SIZE // 2 + cut :]
        for place in range(room + 1, count):
            ids = torch.tensor([[*left, *QUESTION, *got[:place]]])
            assert int(MODEL(ids).logits[0, -1].argmax()) == got[place]
        if keep:
            everything = length + len(QUESTION) + count
            assert one.stats.tokens_read + one.stats.tokens_skipped == everything
            assert one._reader.waiting()[0][-count:] == got
        else:
            assert (one.stats.tokens_read, one.stats.tokens_skipped) == (length - cut, cut)
            assert answer(one, 1) == expected[:1]  # what the answer before left out is read again
            assert (one.stats.tokens_read, one.stats.tokens_skipped) == (length, 0)
        assert one.stats.peak_entries <= SIZE


def test_truncation_of_what_does_not_fit() -> None:
    """Then question and longest answer have their room from the start. Numbers tell what was read."""
    one = session(300, "truncate")
    assert (one.stats.tokens_read, one.stats.tokens_skipped) == (48, 300 - SIZE)
    for count in (4, 20):
        tokens = one.stream_ids(QUESTION, pick=greedy, stop_ids=set(), max_tokens=count)
        next(tokens)
        assert one.stats.tokens_read == SIZE - count + 1  # with question and first token
        assert len(list(tokens)) == count - 1
        read = SIZE - len(QUESTION) - count
        assert (one.stats.tokens_read, one.stats.tokens_skipped) == (read, 300 - read)


def test_what_does_not_fit_is_as_if_it_had_been_distilled_in_time() -> None:
    """The late distillation goes back to where the catalyst had room."""
    one = session(60, "infinipot")
    answered = answer(one, 40, keep=True)
    other = session(60, "infinipot")
    reserve = SIZE - len(QUESTION) - 60
    other.append(QUESTION + answered, question=QUESTION)
    assert one.stats.distillations == other.stats.distillations == 1
    assert reserve > 0
    torch.testing.assert_close(one.logits, other.logits, atol=1e-4, rtol=1e-4)


def test_forks_and_chats() -> None:
    tokenizer = make_tokenizer()
    ids = tokenizer.encode("Anna hid it. ", add_special_tokens=False)
    config = PotConfig(pot_size=160, distill_to=60, policy="streaming")
    for said in ("chat", "ask"):
        answers = set()
        for count in (8, 150):
            one = Session(RUNNER, tokenizer, config)
            one.append(ids, question="Who?")
            twin = one.fork()
            text = getattr(twin, said)("Who hid it?", max_tokens=count)
            answers.add(text[:8])
        assert len(answers) == 1


@pytest.mark.parametrize("length", [60, 90])
def test_generate(length: int) -> None:
    ids = random_ids(length, seed=1)
    options = {"do_sample": False, "pad_token_id": 0}
    room = SIZE - length
    free = MODEL.generate(torch.tensor([ids]), max_new_tokens=room + 1, **options)[0].tolist()
    pot = PotConfig(pot_size=SIZE, distill_to=40)
    for count in (room, room + 10):
        out = MODEL.generate(
            torch.tensor([ids]),
            max_new_tokens=count,
            pot=pot,
            runner=RUNNER,
            custom_generate=generate,
            **options,
        )
        assert out[0].tolist()[: length + min(count, room)] == free[: length + min(count, room)]
        assert out.shape[1] == length + count


def test_a_refused_answer_leaves_the_session_free() -> None:
    one = Session(RUNNER, None, PotConfig(pot_size=SIZE, distill_to=40, prefill="whole"))
    one.append(random_ids(60), question=QUESTION)
    with pytest.raises(ValueError, match="prefill='whole'"):
        answer(one, 3, keep=True)
    assert len(answer(one, 3)) == 3
