"""Layers that carry a state: it goes back, along and to disk with the pot, and is otherwise left alone."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch
from families import FAMILIES
from helpers import CATALYST, assert_close, greedy, kept, random_ids

from infinipot import PotConfig, Session
from infinipot.engine.cuda_graphs import graph_cache
from infinipot.model.runner import ModelRunner

CARRYING = ["Qwen3-Next", "Falcon-H1", "LFM2", "Nemotron-H"]
SMALL = PotConfig(pot_size=40, distill_to=16, chunk_tokens=9)


@cache
def runner(name: str) -> ModelRunner:
    return ModelRunner(FAMILIES[name].build())


def reading(name: str, count: int = 90) -> Session:
    session = Session(runner(name), None, SMALL)
    session.append(random_ids(count), question=CATALYST)
    return session


def states(session: Session) -> list[torch.Tensor]:
    return [
        x.clone()
        for layer in session.pot.layers
        for name, x in layer.state().items()
        if "states" in name
    ]


def assert_same(one: list[torch.Tensor], other: list[torch.Tensor]) -> None:
    assert len(one) == len(other) > 0
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("name", CARRYING)
def test_asking_leaves_the_state_as_it_was(name: str) -> None:
    """Whether the answer fits or distils a copy; and what is read afterwards is read as if nothing had been asked."""
    session, unasked = reading(name), reading(name)
    before, logits = states(session), session.logits
    for asked, count in ([7, 8], 3), (random_ids(12), 20):
        assert (
            len(list(session.stream_ids(asked, max_tokens=count, pick=greedy, stop_ids=set())))
            == count
        )
        assert_same(states(session), before)
        assert torch.equal(session.logits, logits)
    for one in (session, unasked):
        one.append(random_ids(50, seed=1), question=CATALYST)
    assert kept(session) == kept(unasked)
    assert torch.equal(session.logits, unasked.logits)


@pytest.mark.parametrize("name", CARRYING)
def test_a_distillation_leaves_the_state_as_it_was(name: str) -> None:
    """The catalyst is read, and leaves no trace in the state; nor does a choice of survivors."""

    session = reading(name, 35)
    before = states(session)
    assert session.stats.distillations == 0
    session._reader.distiller.distill(session.pot, torch.tensor([CATALYST]))
    assert session.stats.entries == 16
    assert_same(states(session), before)


@pytest.mark.parametrize("name", CARRYING)
def test_a_fork_and_a_file_carry_the_state(name: str, tmp_path: Path) -> None:
    session = reading(name)
    session.save(tmp_path / "a.pot")
    others = [session.fork(), Session.load(tmp_path / "a.pot", runner(name))]
    before = states(session)
    assert_same(states(others[1]), before)
    others[0].append(random_ids(60, seed=2), question=CATALYST)
    assert_same(states(session), before)
    for one in (session, others[1]):
        one.append(random_ids(60, seed=2), question=CATALYST)
    for other in others:
        assert kept(other) == kept(session)
        assert torch.equal(other.logits, session.logits)
    assert session.stats.pot_bytes > sum(x.nbytes for x in before)


def test_interrupted_reading_leaves_a_whole_state() -> None:
    session = reading("Qwen3-Next", 20)
    before, last = states(session), session.runner.model.model.layers[-1]

    def boom(*args) -> None:
        raise MemoryError

    hook = last.register_forward_pre_hook(boom)
    with pytest.raises(MemoryError):
        session.append(random_ids(10, seed=1), question=CATALYST)
    hook.remove()
    assert_same(states(session), before)


def test_begun_in_inference_mode_goes_on_outside() -> None:
    with torch.inference_mode():
        session = reading("Falcon-H1")
    session.append(random_ids(50, seed=1), question=CATALYST)
    other = reading("Falcon-H1")
    other.append(random_ids(50, seed=1), question=CATALYST)
    assert_close("logits", session.logits, other.logits)


def test_a_state_is_never_part_of_a_recording() -> None:
    assert graph_cache(runner("Falcon-H1")).unrecordable
    assert not graph_cache(ModelRunner(FAMILIES["Llama-3"].build())).unrecordable
