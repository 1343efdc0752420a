"""Readings of several pots in joint forward passes: each as alone, whatever happens to the others."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from families import runner as runner_of
from helpers import CATALYST, assert_close, greedy, kept, random_ids
from tiny import make_tiny

from infinipot import PotConfig, Session
from infinipot.engine import joint
from infinipot.engine.distill import score_novelty
from infinipot.engine.generation import Generation
from infinipot.engine.joint import alone, read_together
from infinipot.engine.passes import Passes
from infinipot.model.runner import ModelRunner

LENGTHS = (40, 9, 130, 61)
"""Of what the pots have read before."""
PROMPTS = (5, 12, 1, 25)


@pytest.fixture
def pots_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many pots each forward pass reads into."""
    read = ModelRunner.read
    found: list[int] = []

    def noting(self: ModelRunner, ids: torch.Tensor, pots: Sequence[Any], *rest: Any) -> Any:
        found.append(len(pots))
        return read(self, ids, pots, *rest)

    monkeypatch.setattr(ModelRunner, "read", noting)
    return found


def sessions_of(runner: ModelRunner, **options: Any) -> list[Session]:
    config = PotConfig(**{"pot_size": 64, "distill_to": 24, "chunk_tokens": 32, **options})
    sessions = [Session(runner, None, config) for _ in LENGTHS]
    for session, length in zip(sessions, LENGTHS, strict=True):
        session.append(random_ids(length, seed=length), question=CATALYST)
    return sessions


def prompts_of(sessions: Sequence[Session], keep: bool = True) -> list[Generation]:
    return [
        session.generation(
            random_ids(count, seed=count), max_tokens=3, pick=greedy, keep=keep, stop_ids=set()
        )
        for session, count in zip(sessions, PROMPTS, strict=True)
    ]


def close(name: str, got: torch.Tensor, expected: torch.Tensor) -> None:
    assert got.shape == expected.shape, name
    if got.dtype == torch.int8:  # rounded to whole numbers
        assert (got.int() - expected.int()).abs().max() <= 1
    elif got.numel() and expected.float().abs().max():
        assert_close(name, got, expected)


def assert_equal(mine: Session, its: Session) -> None:
    for session in (mine, its):
        score_novelty(session.runner, session.pot)
    assert mine.stats.tokens_read == its.stats.tokens_read
    assert mine.pot.distillations == its.pot.distillations
    assert kept(mine) == kept(its)
    close("hidden", mine.pot.hidden, its.pot.hidden)
    close("novelty", mine.pot.novelty, its.pot.novelty)
    for one, other in zip(mine.pot.layers, its.pot.layers, strict=True):
        for name, x in one.state().items():
            close(name, x, other.state()[name])


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("Llama-3", {}),
        ("Qwen3", {"policy": "sirllm"}),
        ("Llama-3", {"policy": "snapkv"}),
        ("Llama-3", {"context_reset": False}),
        ("Llama-3", {"pot_dtype": "int8"}),
        ("Llama-3", {"policy": "truncate"}),
        ("Llama-3", {"policy": "self_extend", "group": 4, "neighbours": 16}),
        ("Llama, dynamic", {}),
        ("Qwen3-MoE", {}),
        ("Gemma-2", {}),
        ("Gemma-3", {}),
        ("gpt-oss", {}),
        ("Qwen3-Next", {}),
    ],
)
def test_prompts_read_together_are_prompts_read_alone(
    family: str, options: dict[str, Any], pots_read: list[int]
) -> None:
    """Of different lengths, behind texts of different lengths, some distilled before or meanwhile."""
    runner = runner_of(family)
    sessions = sessions_of(runner, **options)
    plain = [session.fork() for session in sessions]
    pots_read.clear()
    generations = prompts_of(sessions)
    assert read_together(runner, [one.passes() for one in generations]) == [None] * 4
    assert max(pots_read) > 1
    others = prompts_of(plain)
    for generation in others:
        generation.begin()
    for mine, its in zip(generations, others, strict=True):
        assert mine.prompt_is_read
        close("hidden", mine.pot.hidden, its.pot.hidden)
        mine.end()
        its.end()
    for mine, its in zip(sessions, plain, strict=True):
        assert_equal(mine, its)


def test_texts_of_different_lengths_join(pots_read: list[int]) -> None:
    """Pass by pass, while there are some: a long text reads on alone, and distils."""
    runner = ModelRunner(make_tiny("llama"))
    sessions = sessions_of(runner)
    plain = [session.fork() for session in sessions]
    texts = [random_ids(count, seed=count) for count in (10, 200, 70, 0)]
    pots_read.clear()
    readings = [
        session._reader.text_passes(text, session._reader.last_catalyst)
        for session, text in zip(sessions, texts, strict=True)
    ]
    assert read_together(runner, readings) == [None] * 4
    assert pots_read[0] > 1
    assert pots_read[-1] == 1
    for mine, its, text in zip(sessions, plain, texts, strict=True):
        its._reader.read(text, its._reader.last_catalyst)
        assert_equal(mine, its)
    assert sessions[1].pot.distillations > sessions[0].pot.distillations


def test_a_joint_pass_has_a_bound(pots_read: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """As many whole prompts as it has room for, in their order; a longer one is alone."""
    monkeypatch.setitem(joint.MOST_TOKENS, "cpu", 17)
    runner = ModelRunner(make_tiny("llama"))
    sessions = sessions_of(runner, pot_size=512, chunk_tokens=512)
    generations = prompts_of(sessions)
    pots_read.clear()
    read_together(runner, [one.passes() for one in generations])
    assert pots_read == [2, 1, 1]


class Interruption(KeyboardInterrupt):
    """Unlike its base it can be referred to weakly."""


class Trouble:
    """Lets certain forward passes fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, when: Callable[[Sequence[Any]], bool]):
        read = ModelRunner.read
        self.kind: type[BaseException] = torch.OutOfMemoryError
        self.raised: list[weakref.ref[BaseException]] = []

        def failing(runner: ModelRunner, ids: torch.Tensor, pots: Sequence[Any], *rest: Any) -> Any:
            hidden = read(runner, ids, pots, *rest)  # fails with all entries written
            if when(pots):
                problem = self.kind("no memory")
                self.raised.append(weakref.ref(problem))
                try:
                    raise problem
                finally:
                    del problem
            return hidden

        monkeypatch.setattr(ModelRunner, "read", failing)


def test_without_memory_for_a_joint_pass_each_reads_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = ModelRunner(make_tiny("llama"))
    sessions = sessions_of(runner)
    plain = [session.fork() for session in sessions]
    for generation in prompts_of(plain):
        generation.begin()
        generation.end()
    trouble = Trouble(monkeypatch, lambda pots: len(pots) > 1)
    generations = prompts_of(sessions)
    assert read_together(runner, [one.passes() for one in generations]) == [None] * 4
    assert trouble.raised
    for generation in generations:
        generation.end()
    for mine, its in zip(sessions, plain, strict=True):
        assert_equal(mine, its)


def test_one_that_fails_does_not_take_the_others_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pot is as before, and nothing of it stays in memory."""
    runner = ModelRunner(make_tiny("llama"))
    sessions = sessions_of(runner)
    plain = [session.fork() for session in sessions]
    before = sessions[1].fork()
    bad = sessions[1].pot
    trouble = Trouble(monkeypatch, lambda pots: any(pot is bad for pot in pots))
    generations = prompts_of(sessions)
    problems = read_together(runner, [one.passes() for one in generations])
    assert isinstance(problems[1], torch.OutOfMemoryError)
    assert [problems[0], *problems[2:]] == [None] * 3
    for generation in generations:
        generation.end()
    assert_equal(sessions[1], before)
    monkeypatch.undo()
    for number, (session, generation) in enumerate(zip(plain, prompts_of(plain), strict=True)):
        generation.begin()
        generation.end()
        if number != 1:
            assert_equal(sessions[number], session)
    gc.disable()
    try:
        problems = []
        assert len(trouble.raised) == 2, "in the joint pass, then alone"
        assert [problem() for problem in trouble.raised] == [None] * 2, "they keep pots in memory"
    finally:
        gc.enable()


def test_an_interruption_leaves_all_pots_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = ModelRunner(make_tiny("llama"))
    sessions = sessions_of(runner)
    before = [session.fork() for session in sessions]
    trouble = Trouble(monkeypatch, lambda pots: len(pots) > 1)
    trouble.kind = Interruption
    readings = [session.part_passes([5, 6, 7], CATALYST, 9, False) for session in sessions]
    with pytest.raises(Interruption):
        read_together(runner, readings)
    monkeypatch.undo()
    for mine, its in zip(sessions, before, strict=True):
        assert_equal(mine, its)
        mine.append([5], question=CATALYST)  # nobody holds it


def test_a_reading_sees_its_own_failure() -> None:
    """It may end otherwise than by that, or go on."""
    runner = ModelRunner(make_tiny("llama"))
    session = sessions_of(runner)[0]

    def text(then: Any) -> Iterator[Any]:
        try:
            yield from session._reader.text_passes([5, 10**6], None)
        except ValueError:
            if isinstance(then, Exception):
                raise then from None
        return then

    failure = KeyError("own")
    readings: list[Passes[Any]] = [text(7), text(failure)]  # type: ignore[list-item]
    assert read_together(runner, readings) == [7, failure]
    assert alone(runner, text(8)) == 8  # type: ignore[arg-type]
    with pytest.raises(KeyError, match="own"):
        alone(runner, text(failure))  # type: ignore[arg-type]
    assert read_together(runner, []) == []
