"""What is recorded as a CUDA graph does what runs otherwise. The step's own way of attending is compared on any machine."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from helpers import CATALYST, assert_close, greedy, kept, random_ids
from tiny import FAMILIES, make_tiny, make_tokenizer

from infinipot import PotConfig, Session
from infinipot.cache.pot import Pot
from infinipot.engine.cuda_graphs import GraphCache, graph_cache, steady
from infinipot.engine.distill import take
from infinipot.engine.graph_step import Step
from infinipot.model.runner import ModelRunner

CONFIG = PotConfig(pot_size=64, distill_to=24, chunk_tokens=16)
gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_is_a_chunk_of_one(family: str) -> None:
    """Pots of different lengths, a token each, again and again: hidden states, logits and entries are those of ordinary reading."""
    runner = ModelRunner(make_tiny(family))
    pairs = []
    for length in (5, 40, 100):
        session = Session(runner, None, CONFIG)
        session.append(random_ids(length, seed=length), question=CATALYST)
        pairs.append((session.pot, session.fork().pot))
    steps, plain = zip(*pairs, strict=True)
    assert all(steady(pot) for pot in steps)
    step = Step(runner, steps)
    for seed in range(6):
        ids = torch.tensor([[i] for i in random_ids(3, seed=seed)])
        hidden, logits = step(steps, ids)
        for one, other, row, state in zip(steps, plain, ids.split(1), hidden.split(1), strict=True):
            take(runner, [other], row, [False])
            one.follow(row, state, torch.zeros(1, 1))
            assert_close("hidden", one.hidden, other.hidden)
            assert one.length == other.length
            for mine, yours in zip(one.bounded, other.bounded, strict=True):
                assert_close(
                    "keys", mine.read_keys(0, mine.length), yours.read_keys(0, yours.length)
                )
        assert_close("logits", logits, torch.cat([runner.head(pot.hidden)[:, -1] for pot in plain]))
    assert step.serves(steps)
    assert not step.serves(plain)


class AtOnce:
    """Stands in for a recording: runs nothing when it is made, and all of it when it is replayed."""

    def __init__(self, run: Callable[[], Any], pots: list[tuple[Any, ...]]) -> None:
        self.run = run
        self.pots = list(pots)
        self.outputs: Any = None
        self.graph = self

    def replay(self) -> None:
        with contextlib.ExitStack() as stack:
            for pot, start, hidden in self.pots:
                stack.enter_context(RECORDING(pot, start, hidden))
            self.outputs = self.run()


RECORDING = Pot.recording


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> list[AtOnce]:
    """Recordings are made and replayed on a CPU, too; those made."""
    made: list[AtOnce] = []
    pots: list[tuple[Any, ...]] = []

    @contextlib.contextmanager
    def recording(pot: Pot, start: torch.Tensor, hidden: torch.Tensor) -> Iterator[None]:
        pots.append((pot, start, hidden))
        with RECORDING(pot, start, hidden):
            yield
        pots.pop()

    def record(graphs: GraphCache, run: Callable[[], Any]) -> AtOnce:
        made.append(AtOnce(run, pots))
        return made[-1]

    monkeypatch.setattr(Pot, "recording", recording)
    monkeypatch.setattr(GraphCache, "record", record)
    monkeypatch.setattr(GraphCache, "possible", lambda graphs, ids: not graphs.unrecordable)
    return made


OPTIONS = [
    {},
    {"novelty": 0.0, "persist": 0.5},
    {"persist": "once", "gqa": "max"},
    {"policy": "streaming"},
    {"chunk_tokens": 512, "sinks": 3, "pool": 5},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_cycles_and_steps_do_what_runs_otherwise(options: dict, at_once: list[AtOnce]) -> None:
    """The pot's bookkeeping, above all: what is recorded is run by another."""
    model = make_tiny("qwen3")
    recording, plain = ModelRunner(model), ModelRunner(model)
    graph_cache(plain).record_nothing()
    config = PotConfig(**{"pot_size": 64, "distill_to": 24, "chunk_tokens": 16, **options})
    sessions = Session(recording, None, config), Session(plain, None, config)
    one, other = sessions
    for seed, length in enumerate((300, 3, 150, 77)):
        for session in sessions:
            session.append(
                random_ids(length, seed=seed), question=CATALYST if seed < 2 else CATALYST[::-1]
            )
        said = [
            list(
                s.stream_ids(
                    random_ids(4), max_tokens=6, pick=greedy, keep=seed == 2, stop_ids=set()
                )
            )
            for s in sessions
        ]
        assert said[0] == said[1]
        assert kept(one) == kept(other)
        assert_close("logits", one.logits, other.logits)
        assert one.stats == dataclasses.replace(other.stats, timings=one.stats.timings)
        assert one.pot.tokens_read == other.pot.tokens_read
        assert one.pot.novelty.shape == other.pot.novelty.shape
    assert len(at_once) > 2
    assert not graph_cache(recording).unrecordable
    assert graph_cache(recording).of(one.pot).cycles
    fork = one.fork()
    before = kept(fork), fork.logits
    one.append(random_ids(100, seed=9), question=CATALYST)
    assert kept(fork) == before[0]
    assert torch.equal(fork.logits, before[1])


def test_recordings_last_as_long_as_the_slots(at_once: list[AtOnce]) -> None:
    """They serve the next pot of the same layout; they go with the last object that holds the slots."""
    runner = ModelRunner(make_tiny("llama"))
    graphs = graph_cache(runner)
    session = Session(runner, None, CONFIG)
    for seed in range(3):
        session.append(random_ids(200, seed=seed), question=CATALYST)
    layers = session.pot.layers
    recordings = graphs.of(session.pot)
    at_once.clear()
    for recorded in recordings.cycles.values():
        recorded.recording.pots.clear()  # type: ignore[attr-defined]
        recorded.recording.run = None  # type: ignore[attr-defined]
    assert recordings.cycles
    del session
    gc.collect()
    assert graphs.spare is not None
    again = Session(runner, None, CONFIG)
    assert again.pot.layers is layers
    assert graphs.of(again.pot) is recordings
    assert graphs.spare is None
    fork = again.fork()
    assert not graphs.of(fork.pot).cycles
    del fork, layers
    gc.collect()
    assert len(graphs.by_pot) == 1
    other = Session(runner, None, dataclasses.replace(CONFIG, pot_size=80))
    assert other.pot.layers is not again.pot.layers


def gpu_pair(
    family: str, dtype: torch.dtype, device: str = "cuda", **options
) -> tuple[Session, Session]:
    """A session that records, and one that does not."""
    tokenizer = make_tokenizer() if "contrast" in options else None
    model = make_tiny(family, vocab=97 if tokenizer is None else len(tokenizer)).to(device, dtype)
    recording, plain = ModelRunner(model), ModelRunner(model)
    graph_cache(plain).record_nothing()
    config = PotConfig(**{"pot_size": 64, "distill_to": 24, "chunk_tokens": 16, **options})
    return Session(recording, tokenizer, config), Session(plain, tokenizer, config)


@pytest.mark.parametrize("family", [pytest.param(family, marks=gpu) for family in FAMILIES])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"novelty": 0.0, "score_memory": 0.5},
        {"score_memory": "once", "gqa": "max"},
        {"score_memory": "once", "contrast": "unrelated", "pool_mode": "trailing"},
        {"policy": "streaming"},
        {"chunk_tokens": 512, "sinks": 3, "pool": 5},
    ],
)
def test_recorded_cycles(family: str, options: dict) -> None:
    one, other = gpu_pair(family, torch.float32, **options)
    for seed, length in enumerate((500, 3, 200, 77)):
        for session in (one, other):
            session.append(
                random_ids(length, seed=seed), question=CATALYST if seed < 2 else CATALYST[::-1]
            )
        assert kept(one) == kept(other)
        assert_close("logits", one.logits, other.logits)
        assert one.stats.distillations == other.stats.distillations
        assert one.stats.tokens_read == other.stats.tokens_read
        assert one.stats.peak_entries == 64
    assert graph_cache(one.runner).first is not None, "something was recorded"
    assert not graph_cache(one.runner).unrecordable
    fork = one.fork()
    before = kept(fork), fork.logits
    one.append(random_ids(300, seed=9), question=CATALYST)
    assert kept(fork) == before[0]
    assert torch.equal(fork.logits, before[1])


@pytest.mark.parametrize("keep", [pytest.param(False, marks=gpu), pytest.param(True, marks=gpu)])
def test_recorded_answers(keep: bool) -> None:
    one, other = gpu_pair("qwen3", torch.float32)
    for session in (one, other):
        session.append(random_ids(150), question=CATALYST)
    for seed in range(3):
        said = [
            list(
                s.stream_ids(
                    random_ids(6, seed=seed), max_tokens=90, pick=greedy, keep=keep, stop_ids=set()
                )
            )
            for s in (one, other)
        ]
        assert said[0] == said[1]
    assert graph_cache(one.runner).of(one.pot).steps or not keep
    assert kept(one) == kept(other)
    assert_close("logits", one.logits, other.logits)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
@pytest.mark.parametrize("length", [70, 400])
def test_a_card_that_is_not_the_current_one(length: int) -> None:
    """Steps with and without a cycle before them: recorded on the model's card, or they would say the same token for ever."""
    one, other = gpu_pair("llama", torch.float32, device="cuda:1")
    for seed in range(3):
        for session in (one, other):
            session.append(random_ids(length, seed=seed), question=CATALYST)
        said = [
            list(s.stream_ids(random_ids(6, seed=seed), max_tokens=20, pick=greedy, stop_ids=set()))
            for s in (one, other)
        ]
        assert said[0] == said[1]
    assert kept(one) == kept(other)
    assert torch.cuda.current_device() == 0
    assert graph_cache(one.runner).first is not None, "something was recorded"
    assert not graph_cache(one.runner).unrecordable


@pytest.mark.parametrize(
    "options",
    [pytest.param(options, marks=gpu) for options in ({}, {"novelty": 0.0, "catalyst": "plain"})],
)
def test_a_new_pot_takes_the_place_of_one_that_was_dropped(options: dict) -> None:
    one, other = gpu_pair("llama", torch.float32, **options)
    before: list[int] = []
    for seed in range(4):
        mine, yours = (Session(session.runner, None, session.config) for session in (one, other))
        said = []
        for session in (mine, yours):
            session.append(random_ids(400 - 50 * seed, seed=seed), question=CATALYST)
            said.append(
                list(session.stream_ids(random_ids(6), max_tokens=20, pick=greedy, stop_ids=set()))
            )
        assert said[0] == said[1]
        assert kept(mine) == kept(yours)
        assert_close("logits", mine.logits, yours.logits)
        assert mine.stats == dataclasses.replace(yours.stats, timings=mine.stats.timings)
        slots = [layer.slots[0].data.data_ptr() for layer in mine.pot.bounded]
        assert slots == (before or slots), "the same memory again"
        before = slots
        del mine


METHODS = ["full", "h2o", "tova", "snapkv", "truncate"]


@pytest.mark.parametrize("policy", [pytest.param(policy, marks=gpu) for policy in METHODS])
def test_answers_of_every_method_are_recorded(policy: str) -> None:
    """Also of those that remember attention, which an answer that is forgotten again does not need, and without a bound."""
    one, other = gpu_pair("llama", torch.float32, policy=policy)
    graph_cache(one.runner).first = None
    said = []
    for session in (one, other):
        session.append(random_ids(1000, seed=1))
        before = kept(session)
        said.append(
            [
                list(
                    session.stream_ids(
                        random_ids(6, seed=seed), max_tokens=25, pick=greedy, stop_ids=set()
                    )
                )
                for seed in range(2)
            ]
        )
        assert kept(session) == before
        session.append(random_ids(500, seed=2))
    assert said[0] == said[1]
    assert kept(one) == kept(other)
    assert_close("logits", one.logits, other.logits)
    assert graph_cache(one.runner).first is not None, "something was recorded"
