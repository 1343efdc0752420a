"""What is recorded as a CUDA graph does what runs otherwise. The step's own way of attending is compared on any machine."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import CATALYST, assert_close, greedy, kept, random_ids
from tiny import FAMILIES, make_tiny, make_tokenizer

from infinipot import PotConfig, Session
from infinipot.cache.storage import QUANTISED
from infinipot.engine import cuda_graphs, decode
from infinipot.engine.cuda_graphs import GraphCache, graph_cache, unrecorded
from infinipot.engine.decode import together
from infinipot.engine.distill import score_novelty, take
from infinipot.engine.graph_chunk import Chunk
from infinipot.engine.graph_step import Step
from infinipot.engine.observe import CatalystLook, watching
from infinipot.engine.sampling import Sampler
from infinipot.model.runner import ModelRunner
from infinipot.sampling import Sampling
from infinipot.server.step import step

CONFIG = PotConfig(pot_size=64, distill_to=24, chunk_tokens=16)
gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


STORED = [*((family, None) for family in FAMILIES), ("llama", "int8"), ("qwen3", "fp8")]
"""Families, and how their entries are stored."""


def tiny_runner(family: str, kind: str | None) -> ModelRunner:
    """With a model in float64 for entries in eight bits: a difference in the last bit of float32 may
    round to another number."""
    model = make_tiny(family)
    if kind:
        model.double()
    return ModelRunner(model)


@pytest.mark.parametrize(("family", "kind"), STORED)
def test_a_step_is_a_chunk_of_one(family: str, kind: str | None) -> None:
    """Pots of different lengths and sizes, a token each, again and again: hidden states, logits and entries are those of ordinary reading."""
    runner = tiny_runner(family, kind)
    pairs = []
    for length, size in ((5, 64), (40, 64), (100, 80)):
        config = dataclasses.replace(CONFIG, pot_size=size, pot_dtype=kind)
        session = Session(runner, None, config)
        session.append(random_ids(length, seed=length), question=CATALYST)
        pairs.append((session.pot, session.fork().pot))
    steps, plain = zip(*pairs, strict=True)
    assert all(pot.by_address for pot in steps)
    step = Step(runner, steps[0], rows=4, size=128)
    for seed in range(6):
        ids = torch.tensor([[i] for i in random_ids(3, seed=seed)])
        hidden, logits = step(steps, [1, 1, 1], ids)
        rows = zip(steps, plain, ids.split(1), hidden.split(1), strict=True)
        for number, (one, other, row, state) in enumerate(rows):
            take(runner, [other], row)
            one.follow(row, state, (logits, number))
            assert_close("hidden", one.hidden, other.hidden)
            assert one.length == other.length
            for mine, yours in zip(one.bounded, other.bounded, strict=True):
                assert_close(
                    "keys", mine.read_keys(0, mine.length), yours.read_keys(0, yours.length)
                )
        assert_close("logits", logits, torch.cat([runner.head(pot.hidden)[:, -1] for pot in plain]))


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_of_a_step_may_be_short_texts(family: str) -> None:
    runner = ModelRunner(make_tiny(family))
    sessions = [Session(runner, None, CONFIG) for _ in range(3)]
    for seed, session in enumerate(sessions):
        session.append(random_ids(20 + 30 * seed, seed=seed), question=CATALYST)
    plain = [session.fork().pot for session in sessions]
    counts = [4, 1, 3]
    texts = [random_ids(count, seed=9 + count) for count in counts]
    ids = torch.tensor([[i] for text in texts for i in text])
    pots = [session.pot for session in sessions]
    hidden, _ = Step(runner, pots[0], rows=16, size=64)(pots, counts, ids)
    for pot, text, states in zip(plain, texts, hidden.split(counts), strict=True):
        expected = runner.read(torch.tensor([text]), [pot])
        assert_close("hidden", states.transpose(0, 1), expected)


@pytest.mark.parametrize(("rows", "looks"), [(9, True), (9, False), (16, False)])
@pytest.mark.parametrize(("family", "kind"), STORED)
def test_a_chunk_for_any_pot(family: str, kind: str | None, rows: int, looks: bool) -> None:
    """Read into pots in turn, at several places, padded or not, with the catalyst's look or without: hidden states, attention and
    entries are those of ordinary reading."""
    runner = tiny_runner(family, kind)
    look = CatalystLook(3)
    chunk = None
    for seed in range(3):
        ids = torch.tensor([random_ids(9 - seed, seed=3)])
        session = Session(runner, None, dataclasses.replace(CONFIG, pot_dtype=kind))
        session.append(random_ids(24 + seed, seed=seed), question=CATALYST)
        plain = session.fork().pot
        chunk = chunk or Chunk(runner, session.pot, rows, 64, look if looks else None)
        hidden, scores = chunk(session.pot, ids, 3)
        expected: dict[int, torch.Tensor] = {}
        assert_close("hidden", hidden, runner.read(ids, [plain], watching(expected, look)))
        assert session.pot.length == plain.length
        for number, (mine, yours) in enumerate(
            zip(session.pot.bounded, plain.bounded, strict=True)
        ):
            assert_close("keys", mine.read_keys(0, mine.length), yours.read_keys(0, yours.length))
            if looks:
                seen = expected[number]
                assert_close("attention", scores[number][..., : seen.shape[-1]], seen)
                assert not scores[number][..., seen.shape[-1] :].any()
        assert bool(scores) == looks


class AtOnce:
    """Stands in for a recording: runs nothing when it is made, and all of it when it is replayed."""

    def __init__(self, run: Callable[[], Any]) -> None:
        self.run = run

    def replay(self) -> tuple[torch.Tensor, ...]:
        return tuple(x.clone() for x in self.run())


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> list[AtOnce]:
    """Recordings are made and replayed on a CPU, too; those made."""
    made: list[AtOnce] = []

    def record(graphs: GraphCache, run: Callable[[], Any]) -> AtOnce:
        made.append(AtOnce(run))
        return made[-1]

    monkeypatch.setattr(cuda_graphs, "CHUNK_ROWS", (4, 8, 16))
    monkeypatch.setattr(GraphCache, "record", record)
    monkeypatch.setattr(GraphCache, "possible", lambda graphs, ids: not graphs.unrecordable)
    return made


OPTIONS = [
    {},
    {"novelty": 0.0, "score_memory": 0.5},
    {"score_memory": "once", "gqa": "max"},
    {"policy": "streaming"},
    {"chunk_tokens": 512, "sinks": 3, "pool": 5},
    {"pot_dtype": "int8"},
    {"pot_dtype": "fp8", "policy": "outliers"},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_chunks_and_steps_do_what_runs_otherwise(options: dict, at_once: list[AtOnce]) -> None:
    """The pot's bookkeeping, above all: what is recorded is run by another."""
    recording = tiny_runner("qwen3", options.get("pot_dtype"))
    plain = unrecorded(recording)
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
        assert one.pot.fresh.tolist() == other.pot.fresh.tolist()
    assert len(at_once) > 2
    assert not graph_cache(recording).unrecordable
    fork = one.fork()
    before = kept(fork), fork.logits
    one.append(random_ids(100, seed=9), question=CATALYST)
    assert kept(fork) == before[0]
    assert torch.equal(fork.logits, before[1])


@pytest.mark.parametrize("asked_at_once", [False, True])
def test_no_novelty_is_lost_in_recordings(asked_at_once: bool, at_once: list[AtOnce]) -> None:
    """Where every token's loss is asked for, and where it waits for a distillation."""
    model = make_tiny("qwen3")
    recording, plain = ModelRunner(model), ModelRunner(model)
    graph_cache(plain).record_nothing()
    losses: list[list[float]] = []
    for runner in (recording, plain):
        session = Session(runner, None, CONFIG)
        losses.append([])
        if asked_at_once:
            session.score_all()
        for seed, length in enumerate((300, 3, 150)):

            def note(session: Session = session, own: list[float] = losses[-1]) -> None:
                if asked_at_once:
                    count = session.stats.tokens_read - len(own)
                    own.extend(session.pot.novelty[0, -count:].tolist())

            session.append(random_ids(length, seed=seed), question=CATALYST, progress=note)
        score_novelty(runner, session.pot)
        losses[-1] += session.pot.novelty[0].tolist()
    assert len(at_once) > 1
    assert len(losses[0]) == len(losses[1]) > 453 * asked_at_once
    assert_close("novelty", *map(torch.tensor, losses))


def test_all_pots_share_the_recordings(at_once: list[AtOnce]) -> None:
    """New sessions, forks, loaded pots, other sizes and other groups record nothing anew."""
    runner = ModelRunner(make_tiny("llama"))

    def use(session: Session) -> None:
        for seed in range(2):
            session.append(random_ids(200, seed=seed), question=CATALYST)
            list(session.stream_ids([5, 6], max_tokens=4, pick=greedy, stop_ids=set()))

    use(Session(runner, None, CONFIG))
    use(Session(runner, None, CONFIG))
    made = len(at_once)
    assert made > 1
    session = Session(runner, None, CONFIG)
    use(session)
    assert len(at_once) == made
    sessions = [session.fork() for _ in range(5)]
    for group in (sessions[:3], sessions[1:5], sessions[:2], sessions[3:]):
        turns = [s.generation([7, 8], max_tokens=5, pick=greedy, stop_ids=set()) for s in group]
        list(together(turns))
    assert len(at_once) <= made + 3, "steps of 2, 4 and 8 rows"


def test_pots_of_different_types_have_steps_of_their_own(at_once: list[AtOnce]) -> None:
    """Together they run without a recording, and say what each says alone."""
    runner = tiny_runner("llama", "int8")
    options: dict[str, Any] = {"max_tokens": 9, "pick": greedy, "stop_ids": set()}
    sessions = []
    for kind in (None, *QUANTISED):
        sessions.append(Session(runner, None, dataclasses.replace(CONFIG, pot_dtype=kind)))
        sessions[-1].append(random_ids(200), question=CATALYST)
    alone = [list(session.stream_ids([7, 8], **options)) for session in sessions]
    graphs = graph_cache(runner)
    assert {key[-1] for key in graphs.steps} == {key[-1] for key in graphs.chunks}
    assert {key[-1] for key in graphs.steps} == {None, *QUANTISED}
    ids = torch.ones(2, 1, dtype=torch.long)
    for pots in ([s.pot for s in sessions[:2]], [s.pot for s in sessions[1:]]):
        before = [pot.length for pot in pots]
        assert graphs.step(pots, [1, 1], ids, watched=False) is None
        assert [pot.length for pot in pots] == before
    turns = [session.generation([7, 8], **options) for session in sessions]
    list(together(turns))
    assert [turn.tokens for turn in turns] == alone


def test_recordings_keep_no_pot_alive(at_once: list[AtOnce]) -> None:
    runner = ModelRunner(make_tiny("llama"))
    for seed in range(3):
        session = Session(runner, None, CONFIG)
        session.append(random_ids(200, seed=seed), question=CATALYST)
        list(session.stream_ids([5, 6], max_tokens=4, pick=greedy, stop_ids=set()))
    assert at_once
    gone = weakref.ref(session.pot)
    slots = weakref.ref(session.pot.bounded[0].slots[0])
    del session
    gc.collect()
    assert gone() is None
    assert slots() is None


def test_few_recordings_are_kept(at_once: list[AtOnce], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graphs, "CHUNKS", 3)
    runner = ModelRunner(make_tiny("llama"))
    for size in (40, 80, 150, 300):
        session = Session(runner, None, dataclasses.replace(CONFIG, pot_size=size, distill_to=24))
        session.append(random_ids(400), question=CATALYST)
    assert len(graph_cache(runner).chunks) == 3


def test_without_memory_to_pick_ahead_nothing_is_read_twice(
    at_once: list[AtOnce], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session(ModelRunner(make_tiny("llama")), None, CONFIG)
    session.append(random_ids(200), question=CATALYST)
    options = {"max_tokens": 9, "pick": Sampler(Sampling(temperature=0)), "stop_ids": set()}
    answers = []
    for fails in (False, True):

        def refuse(tokens: torch.Tensor) -> Any:
            raise MemoryError

        if fails:
            monkeypatch.setattr(decode, "PickedTokens", refuse)
        pots = [session.fork() for _ in range(2)]
        turns = [s.generation([5, 6], keep=True, **options) for s in pots]
        for turn in turns:
            turn.begin()
        for _ in range(9):
            assert all(isinstance(token, int) for token in step(turns))
        for turn in turns:
            turn.end()
        answers.append(([turn.tokens for turn in turns], [s.pot.tokens_read for s in pots]))
    assert at_once
    assert answers[0] == answers[1]


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


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=gpu) for kind in QUANTISED])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("policy", ["infinipot", "outliers"])
def test_recordings_of_pots_in_eight_bits(
    kind: str, dtype: torch.dtype, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They do what the same kernels do without a recording: reading, distilling and answering."""
    one, _ = gpu_pair("llama", dtype, pot_dtype=kind, policy=policy)
    other = Session(ModelRunner(one.runner.model), None, one.config)
    monkeypatch.setattr(graph_cache(other.runner), "record", None)
    for seed, length in enumerate((500, 3, 200, 77)):
        said = []
        for session in (one, other):
            session.append(random_ids(length, seed=seed), question=CATALYST)
            answer = session.stream_ids(
                random_ids(6), max_tokens=20, pick=greedy, keep=seed == 2, stop_ids=set()
            )
            said.append(list(answer))
        assert said[0] == said[1]
        assert kept(one) == kept(other)
        assert torch.equal(one.logits, other.logits)
        for mine, its in zip(one.pot.bounded, other.pot.bounded, strict=True):
            assert torch.equal(mine.read_keys(0, mine.length), its.read_keys(0, its.length))
            assert torch.equal(mine.read_values(0, mine.length), its.read_values(0, its.length))
    assert one.stats.distillations > 10
    for forwards in (graph_cache(one.runner).chunks, graph_cache(one.runner).steps):
        assert any(forward.recording for forward in forwards.values())
    for forwards in (graph_cache(other.runner).chunks, graph_cache(other.runner).steps):
        assert forwards
        assert not any(forward.recording for forward in forwards.values())
    fork = one.fork()
    before = kept(fork), fork.logits
    one.append(random_ids(300, seed=9), question=CATALYST)
    assert kept(fork) == before[0]
    assert torch.equal(fork.logits, before[1])


NEIGHBOURS = {"int8": 1.1 / 127, "fp8": 1.1 * 32 / 448}
"""The largest distance of two neighbours in eight bits, of a vector's largest element, and a tenth."""


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=gpu) for kind in QUANTISED])
def test_recordings_of_pots_in_eight_bits_and_plain_torch(kind: str) -> None:
    """Without their kernels a number may round to its neighbour, and scores may choose another entry: so
    survivors are chosen by their places."""
    one, other = gpu_pair("llama", torch.float32, pot_dtype=kind, policy="streaming")
    for seed, length in enumerate((500, 3, 200, 77)):
        for session in (one, other):
            session.append(random_ids(length, seed=seed), question=CATALYST)
            list(session.stream_ids([5, 6], max_tokens=9, pick=lambda logits: 7, stop_ids=set()))
        assert kept(one) == kept(other)
        assert_close("logits", one.logits, other.logits, NEIGHBOURS[kind])
        for mine, its in zip(one.pot.bounded, other.pot.bounded, strict=True):
            for got, expected in zip(mine.slots, its.slots, strict=True):
                pair = got.read(0, mine.length), expected.read(0, its.length)
                assert_close("entries", *pair, NEIGHBOURS[kind])
    assert graph_cache(one.runner).first is not None, "something was recorded"


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
    assert graph_cache(one.runner).steps
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
def test_new_pots_use_the_recordings_of_others(options: dict) -> None:
    one, other = gpu_pair("llama", torch.float32, **options)
    chunks: list[list] = []
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
        assert mine.stats == dataclasses.replace(
            yours.stats, timings=mine.stats.timings, pot_bytes=mine.stats.pot_bytes
        )
        chunks.append([id(chunk.recording) for chunk in graph_cache(one.runner).chunks.values()])
        del mine
    assert chunks[-1]
    assert set(chunks[2]) <= set(chunks[3])


METHODS = ["full", "h2o", "tova", "snapkv", "truncate"]


@pytest.mark.parametrize("policy", [pytest.param(policy, marks=gpu) for policy in METHODS])
def test_answers_of_every_method_are_recorded(policy: str) -> None:
    """Also of those that remember attention, which an answer that is forgotten again does not need, and without a bound."""
    one, other = gpu_pair("llama", torch.float32, policy=policy)
    graph_cache(one.runner).first = None
    said = []
    for session in (one, other):
        session.append(random_ids(990, seed=1))  # leaves room for the answers
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
