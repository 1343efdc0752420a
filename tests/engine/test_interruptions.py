"""Whatever ends in the middle, or is removed again, leaves a pot as if it had never begun."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import CATALYST, Killed, config_for, greedy, kept, random_ids
from tiny import make_tiny

from infinipot import Session
from infinipot.cache.bookkeeping import FIELDS
from infinipot.engine.decode import Generation
from infinipot.model.runner import ModelRunner

MODEL = make_tiny("llama")
RUNNER = ModelRunner(MODEL)
POLICIES: dict[str, dict[str, Any]] = {
    "default": {"policy": "infinipot", "catalyst": "question"},
    "remembers": {"policy": "infinipot", "catalyst": "question", "score_memory": 0.7},
    "plain": {"policy": "infinipot", "catalyst": "plain"},
    "positions grow": {"policy": "infinipot", "catalyst": "question", "context_reset": False},
    "h2o": {"policy": "h2o"},
    "tova": {"policy": "tova", "window": 4},
    "snapkv": {"policy": "snapkv", "window": 6},
    "kvzip": {"policy": "kvzip", "catalyst": "question"},
}


def opened(name: str) -> Session:
    size = 76 if name == "plain" else 48
    return Session(
        RUNNER, None, config_for(pot_size=size, distill_to=20, chunk_tokens=13, **POLICIES[name])
    )


def read_on(session: Session, count: int, seed: int) -> None:
    asked = CATALYST if session.config.catalyst == "question" else None
    session.append(random_ids(count, seed=seed), question=asked)


def everything(session: Session) -> dict[str, Any]:
    """All that a pot consists of: its entries, its records, and every field of its bookkeeping."""
    pot = session.pot
    found: dict[str, Any] = {name: getattr(pot, name) for name in FIELDS}
    for name in ("predicted", "distill_s", "unmerged", "last_ids"):
        found.pop(name)
    found["newest"] = pot.newest.clone()
    for number, layer in enumerate(pot.layers):
        found |= {f"{number} {name}": x.clone() for name, x in layer.state().items()}
        found[f"{number} sizes"] = (layer.length, layer.position)
        found[f"{number} read"] = layer.read_keys(0, layer.length).clone()
    return found


def assert_equal(one: Any, other: Any, name: str = "") -> None:
    assert type(one) is type(other), name
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_equal(one[key], other[key], f"{name} {key}")
    elif isinstance(one, tuple):
        assert len(one) == len(other), name
        for mine, yours in zip(one, other, strict=True):
            assert_equal(mine, yours, name)
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other), name
    else:
        assert one == other, name


@contextmanager
def killed_at(layer: int, calls: int) -> Iterator[None]:
    """The model stops at this call of a layer."""
    count = 0

    def stop(*_: Any) -> None:
        nonlocal count
        count += 1
        if count == calls:
            raise Killed

    hook = MODEL.model.layers[layer].register_forward_pre_hook(stop)
    try:
        with pytest.raises(Killed):
            yield
    finally:
        hook.remove()


@pytest.mark.parametrize("name", POLICIES)
def test_a_stop_inside_a_chunk_leaves_the_pot_before_it(name: str) -> None:
    """Of every field, and what follows is read as by a session that was never stopped."""
    stopped, whole = opened(name), opened(name)
    for session in (stopped, whole):
        read_on(session, 110, seed=1)
    assert stopped.stats.distillations >= 2
    before = everything(stopped)
    room = 9 if int(stopped.pot.room) > 14 else 1
    with killed_at(1, 1):
        read_on(stopped, room, seed=2)
    assert_equal(everything(stopped), before)
    for session in (stopped, whole):
        read_on(session, 60, seed=3)
    assert_equal(everything(stopped), everything(whole))


@pytest.mark.parametrize("name", ["default", "remembers", "plain", "kvzip"])
def test_a_stop_inside_the_catalyst_leaves_the_pot_full(name: str) -> None:
    """Nothing of the catalyst stays, nothing is evicted, and the next reading distils."""
    stopped, whole = opened(name), opened(name)
    for session in (stopped, whole):
        read_on(session, 22, seed=1)
        count = session._reader.until_full(session._reader.last_catalyst)
        read_on(session, count, seed=2)
    before = everything(stopped)
    with killed_at(1, 1):
        read_on(stopped, 5, seed=3)
    after = everything(stopped)
    if name != "kvzip":  # its replay is read in several parts
        for session in (stopped, whole):
            assert session.stats.distillations == 0
    for state in (before, after):  # the wait for novelty may end: its values may not change
        for field in ("novelty", "unscored", "before"):
            state.pop(field)
    assert_equal(after, before)
    for session in (stopped, whole):
        read_on(session, 60, seed=3)
    assert_equal(everything(stopped), everything(whole))


@pytest.mark.parametrize("name", POLICIES)
def test_an_answer_leaves_nothing_behind(name: str) -> None:
    """Short, and long enough to distil a copy; also one that is stopped, and one that fails."""
    asked, plain = opened(name), opened(name)
    for session in (asked, plain):
        read_on(session, 90, seed=1)
    before = everything(asked)
    for count in (2, 32):
        tokens = list(
            asked.stream_ids(random_ids(4), max_tokens=count, pick=greedy, stop_ids=set())
        )
        assert len(tokens) == count
        assert_equal(everything(asked), before)
    tokens = asked.stream_ids(random_ids(4), max_tokens=9, pick=greedy, stop_ids=set())
    next(tokens)
    tokens.close()
    assert_equal(everything(asked), before)
    with killed_at(1, 3):
        list(asked.stream_ids(random_ids(4), max_tokens=9, pick=greedy, stop_ids=set()))
    assert_equal(everything(asked), before)
    for session in (asked, plain):
        read_on(session, 60, seed=3)
    assert_equal(everything(asked), everything(plain))


@pytest.mark.parametrize("name", ["remembers", "plain", "h2o", "snapkv"])
def test_a_fork_and_a_file_go_on_alike_and_apart(name: str, tmp_path: Path) -> None:
    """After an answer that was kept: every field of a fork and of a loaded pot goes on as the
    original, and reading a fork changes no field of the original."""
    session, alone = opened(name), opened(name)
    for one in (session, alone):
        read_on(one, 90, seed=1)
        list(one.stream_ids([7, 8], max_tokens=5, pick=greedy, stop_ids=set(), keep=True))
    fork = session.fork()
    session.save(tmp_path / "pot")
    loaded = Session.load(tmp_path / "pot", RUNNER)
    mine, its = session._reader.last_catalyst, loaded._reader.last_catalyst
    assert (mine is None) == (its is None)
    if mine is not None:
        assert torch.equal(mine, its)
        assert (mine is session.pot.newest) == (its is loaded.pot.newest)
    before = everything(session)
    read_on(fork, 60, seed=2)
    list(fork.stream_ids([9], max_tokens=4, pick=greedy, stop_ids=set(), keep=True))
    assert_equal(everything(session), before)
    for one in (session, alone, loaded):
        read_on(one, 60, seed=2)
        list(one.stream_ids([9], max_tokens=4, pick=greedy, stop_ids=set(), keep=True))
    assert kept(session) == kept(alone) == kept(loaded) == kept(fork)
    for one in (alone, loaded, fork):
        assert torch.equal(one.logits, session.logits)
        assert torch.equal(one.pot.newest, session.pot.newest)
        assert one.pot.tokens_read == session.pot.tokens_read
        assert one.pot.distillations == session.pot.distillations
    for one in (alone, fork):
        assert_equal(everything(one), everything(session))


def test_the_newest_ids_are_those_last_read() -> None:
    """The catalyst `plain`, after answers that were removed, and of forks that read other texts."""
    session = opened("plain")
    ids = random_ids(150, seed=1)
    session.append(ids[:20])
    assert session.pot.newest[0].tolist() == [0] * 12 + ids[:20]
    mark = session.pot.mark()
    session.append(ids[20:41])
    assert session.pot.newest[0].tolist() == ids[9:41]
    session.pot.rollback(mark)
    assert session.pot.newest[0].tolist() == [0] * 12 + ids[:20]
    for start in range(20, 60):  # one by one, as an answer is read
        session.append(ids[start : start + 1])
    session.append(ids[60:])
    fork = session.fork()
    assert fork._reader.last_catalyst is fork.pot.newest is not session.pot.newest
    list(session.stream_ids([5, 6], max_tokens=30, pick=greedy, stop_ids=set()))
    other = random_ids(40, seed=2)
    fork.append(other)
    assert session.pot.newest[0].tolist() == ids[-32:]
    assert fork.pot.newest[0].tolist() == other[-32:]
    assert fork._reader.last_catalyst is fork.pot.newest is not session.pot.newest


def test_an_answer_that_is_not_kept_ends_with_its_copy() -> None:
    """The copy's catalyst `plain` is the copy's own newest ids."""
    session = opened("plain")
    session.append(random_ids(100, seed=1))
    generation = Generation(
        session._reader,
        random_ids(4),
        max_tokens=70,
        pick=greedy,
        stop_ids=set(),
        catalyst=session._reader.last_catalyst,
    )
    assert generation.pot is not session.pot
    assert generation.catalyst is generation.pot.newest
    generation.begin()
    assert generation.pot.newest[0, -4:].tolist() == random_ids(4)
    assert session._reader.busy
    generation.end()
    assert not session._reader.busy
    assert session.pot.newest[0].tolist() == random_ids(100, seed=1)[-32:]
    assert session.stats.peak_entries == generation.pot.peak
