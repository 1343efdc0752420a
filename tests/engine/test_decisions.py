"""Small decisions of the engine and the session, each at the size where it turns."""

from __future__ import annotations

import dataclasses
import itertools
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers import CATALYST, greedy, kept, random_ids
from tiny import make_tiny, make_tokenizer

from infinipot import PotConfig, Session, pot_file
from infinipot.cache.attention_stats import AttentionStats
from infinipot.cache.bookkeeping import Bookkeeping
from infinipot.engine.decode import Generation, predict
from infinipot.engine.distill import score_novelty
from infinipot.engine.plan import (
    Plan,
    budgets_of,
    checked_needs,
    chunk_tokens,
    layout_of,
    other_kind,
)
from infinipot.engine.sampling import choose
from infinipot.engine.truncate import CuttingReader
from infinipot.model.runner import ModelRunner
from infinipot.policies import POLICIES
from infinipot.policies.h2o import H2O
from infinipot.policies.self_extend import SelfExtend

TOKENIZER = make_tokenizer()
MODEL = make_tiny("llama", vocab=len(TOKENIZER))
RUNNER = ModelRunner(MODEL)
ANSWER: dict[str, Any] = {"max_tokens": 3, "pick": greedy, "stop_ids": set()}


def opened(**options: Any) -> Session:
    return Session(RUNNER, None, PotConfig(**{"pot_size": 48, "distill_to": 20, **options}))


def lengths_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The length of every forward pass."""
    lengths: list[int] = []
    original = ModelRunner.read

    def noting(self: Any, ids: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
        lengths.append(ids.shape[1])
        return original(self, ids, *args, **options)

    monkeypatch.setattr(ModelRunner, "read", noting)
    return lengths


def test_no_forward_pass_is_longer_than_a_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a text, with the catalyst behind the last one before a distillation, and in a question."""
    session = opened(chunk_tokens=10)
    lengths = lengths_read(monkeypatch)
    session.append(random_ids(43), question=CATALYST)
    assert lengths == [10, 10, 10, 10, 3], "it fills the pot, and no more follows"
    lengths.clear()
    session.append(random_ids(4), question=CATALYST)
    assert lengths == [len(CATALYST), 4]
    assert session.stats.distillations == 1
    lengths.clear()
    list(session.stream_ids(random_ids(14), **ANSWER))
    assert lengths == [10, 4, 1, 1]
    lengths.clear()
    session.append(random_ids(30), question=CATALYST)
    assert lengths == [10, 9 + len(CATALYST), 10, 1]
    assert session.stats.peak_entries == 48


@pytest.mark.parametrize("more", [False, True])
def test_a_part_ends_where_the_pot_is_full(more: bool) -> None:
    """Parts together are read as the whole text is, and each says how much it has read."""
    ids = random_ids(150)
    whole, parted = opened(), opened()
    whole.append(ids, question=CATALYST)
    counts = []
    rest = ids
    while rest:
        counts.append(parted.append_part(rest, CATALYST, 30, more))
        rest = rest[counts[-1] :]
    assert sum(counts) == 150
    assert max(counts) == 30
    assert counts[:6] == [30, 13, 0, 23, 0, 23]
    assert parted.stats.tokens_read == 150
    assert kept(parted) == kept(whole)
    torch.testing.assert_close(parted.logits, whole.logits, rtol=1e-4, atol=1e-4)


def test_a_first_part_begins_the_session(tmp_path: Path) -> None:
    session = Session(RUNNER, TOKENIZER, PotConfig(pot_size=200), system="Be brief.", template=True)
    session.append_part([5, 6], None, 9, False)
    pinned = session.pot.pinned
    assert pinned > 5
    session.append_part([7], None, 9, False)
    assert (session.pot.pinned, session.stats.tokens_read) == (pinned, pinned + 3)
    session.save(tmp_path / "pot")


def test_a_part_that_fills_the_pot_is_distilled_if_more_follows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the next call, which reads nothing, and with what the catalyst was seen to do."""
    lengths = lengths_read(monkeypatch)
    for count, more, due in (
        (43, True, True),
        (43, False, False),
        (42, True, False),
        (44, False, True),
    ):
        session = opened()
        assert session.append_part(random_ids(count), CATALYST, 100, more) == min(count, 43)
        assert session.distillation_due == due
        assert session.stats.distillations == 0
        lengths.clear()
        if due:
            assert session.append_part(random_ids(1), CATALYST, 100, more) == 0
            assert lengths == []
        assert session.stats.distillations == due
        assert not session.distillation_due


@pytest.mark.parametrize("how", ["append", "ask", "fork"])
def test_a_full_pot_is_distilled_whatever_comes_next(how: str) -> None:
    due, other = opened(), opened()
    for session in (due, other):
        session.append_part(random_ids(43), CATALYST, 100, True)
    other.append_part([], CATALYST, 100, True)
    if how == "fork":
        due = due.fork()
        assert not due.distillation_due
    for session in (due, other):
        if how == "ask":
            list(session.stream_ids(random_ids(14), **ANSWER))
        session.append(random_ids(20, seed=2), question=CATALYST)
    assert not due.distillation_due
    assert kept(due) == kept(other)
    torch.testing.assert_close(due.logits, other.logits, rtol=1e-4, atol=1e-4)
    session = opened(policy="full")
    assert session.append_part(random_ids(90), None, 100, True) == 90


def test_each_layer_is_distilled_to_its_own_budget() -> None:
    """Those that have no more than it keep all."""
    session = opened(layer_budget=(3.0, 1.0), recent=0)
    session.append(random_ids(10), question=CATALYST)
    for count, lengths in ((0, [10, 10]), (1, [11, 10]), (9, [20, 10]), (15, [30, 10])):
        session.append(random_ids(count), question=CATALYST)
        session._reader.distiller.distill(session.pot, torch.tensor([CATALYST]))
        assert [layer.length for layer in session.pot.bounded] == lengths
        before = session.stats.distillations
        session._reader.distiller.distill(session.pot, torch.tensor([CATALYST]))
        assert session.stats.distillations == before, "there is nothing to evict"


def test_a_catalyst_that_exactly_has_room_distils() -> None:
    """A longer one than before has room in the pot as it is, or the one before makes it."""
    for count, own in ((8, True), (9, False)):
        session = opened()
        session.append(random_ids(40), question=[3, 4])
        used: list[list[int]] = []
        distill = session._reader.distiller.distill
        session._reader.distiller.distill = lambda pot, catalyst, *more: (
            used.append(catalyst[0].tolist()) or distill(pot, catalyst, *more)  # noqa: B023
        )
        question = random_ids(count, seed=1)
        session.append([5], question=question)
        assert used == [question if own else [3, 4]]
        assert session.stats.entries == 21


def test_an_empty_question_is_refused() -> None:
    session = opened()
    for question in ([], torch.zeros(1, 0, dtype=torch.long)):
        with pytest.raises(ValueError, match="the question is empty, so there is nothing"):
            session.append([5], question=question)
    assert session.stats.tokens_read == 0


@pytest.mark.parametrize(
    ("device", "in_groups", "expected"),
    [("cpu", False, 1024), ("cpu", True, 512), ("cuda", True, 2048), ("mps", False, 2048)],
)
def test_how_long_a_chunk_is(device: str, in_groups: bool, expected: int) -> None:
    runner: Any = SimpleNamespace(device=torch.device(device), in_groups=in_groups)
    assert chunk_tokens(PotConfig(), runner) == expected
    assert chunk_tokens(PotConfig(chunk_tokens=7), runner) == 7


def test_a_text_after_an_answer_ends_it() -> None:
    session = Session(RUNNER, TOKENIZER, PotConfig(pot_size=200, distill_to=40))
    assert session._reader.config.chunk_tokens == 1024, "on a CPU"
    states = []
    for step in (
        lambda: session.append("a"),
        lambda: session.stream_ids("Why?", **ANSWER),
        lambda: session.stream_ids("Why?", keep=True, **ANSWER),
        lambda: session.append("b"),
    ):
        list(step() or ())
        states.append((session._dialogue.in_text, session._dialogue.answered))
    assert states == [(True, False), (True, False), (False, True), (True, False)]


def test_logits_of_a_step_go_to_their_own_rows() -> None:
    """All rows of one step, some of them, or rows of several steps."""
    one, two = torch.randn(3, 7), torch.randn(3, 7)

    def rows(*known: tuple[torch.Tensor, int]) -> torch.Tensor:
        generations = [SimpleNamespace(pot=Bookkeeping(predicted=predicted)) for predicted in known]
        return predict(generations)  # type: ignore[arg-type]

    assert rows((one, 0), (one, 1), (one, 2)) is one
    assert torch.equal(rows((one, 0), (one, 1)), one[:2])
    assert torch.equal(rows((one, 2), (one, 1), (one, 0)), one.flip(0))
    mixed = rows((one, 0), (two, 1), (one, 2))
    assert torch.equal(mixed, torch.stack((one[0], two[1], one[2])))


def test_a_part_of_ids_has_no_template() -> None:
    session = Session(RUNNER, TOKENIZER, PotConfig(pot_size=200, distill_to=40))
    assert session.append_part([5, 6], None, 9, False) == 2
    assert session.stats.tokens_read == 2
    assert session._reader.waiting() == ([], 0)
    layer = session.pot.bounded[0]
    for peak, most in ((1, 2), (7, 7), (3, 7)):
        layer.note_peak(peak)
        assert layer.peak == most


def test_what_opens_a_text_is_read_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an answer: once, however many pieces the text has."""
    session = Session(RUNNER, TOKENIZER, PotConfig(pot_size=200, distill_to=40))
    list(session.stream_ids("Why?", keep=True, **ANSWER))
    opening = session._dialogue.opening()
    assert opening
    before = session.stats.tokens_read
    lengths = lengths_read(monkeypatch)
    session.append(iter(["ab", "cd"]))
    assert session.stats.tokens_read - before == sum(lengths) == len(opening) + 4


def test_a_restored_pot_is_checked() -> None:
    session = opened()
    session.append(random_ids(60), question=CATALYST)
    score_novelty(session.runner, session.pot)
    session.pot.check()
    books = session.pot.snapshot()
    for field, values in {
        "hidden": (None, torch.zeros(1, 64)),
        "pinned": (-1, True, 1.0, None),
        "tokens_read": (-1, 2.5),
        "distillations": (-1,),
        "novelty": (torch.zeros(3), torch.zeros(1, 1, 3)),
        "fresh_parts": ((torch.zeros(1, 1, 3, dtype=torch.long),),),
    }.items():
        for value in values:
            session.pot.note(dataclasses.replace(books, **{field: value}))
            with pytest.raises(ValueError, match="its (numbers are not whole|tensors have other)"):
                session.pot.check()
    session.pot.note(books)
    session.pot.check()
    layer = session.pot.bounded[1]
    index, novelty = layer.index, layer.novelty
    for part in ((slice(None), slice(1)), (slice(None), slice(None), slice(-1))):
        layer.index = index[part]
        if len(part) == 2:  # one head of two, in both
            layer.novelty = novelty[part]
        with pytest.raises(ValueError, match="its layers have other shapes"):
            session.pot.check()
        layer.novelty = novelty
    layer.index = index
    session.pot.check()
    layer.position = -1
    with pytest.raises(ValueError, match="not whole"):
        session.pot.check()


def test_how_many_tokens_fill_the_pot() -> None:
    """Until the next distillation, or the one after it where the pot is full."""
    catalyst = torch.tensor([CATALYST])
    session = opened()
    assert session._reader.until_full(catalyst) == 43
    session.append(random_ids(41), question=CATALYST)
    counts = []
    for _ in range(3):
        counts.append(session._reader.until_full(catalyst))
        session.append([5], question=CATALYST)
    assert counts == [2, 1, 23]
    assert session._reader.until_full(catalyst) == 22
    assert session._reader.until_full(None) == 27
    assert opened(policy="full")._reader.until_full(None) is None
    assert opened(policy="truncate")._reader.until_full(None) is None


def test_a_session_that_answers_is_busy_at_once() -> None:
    """Before anything is iterated over, and until the answer ends."""
    session = opened()
    session.append(random_ids(20), question=CATALYST)
    answer = session.stream_ids([5], **ANSWER)
    next(answer)
    for call in (
        lambda: Generation(session._reader, [5], **ANSWER),
        lambda: session.stream_ids([5], **ANSWER),
        lambda: session.generation([5], **ANSWER),
        lambda: session.append([5], question=CATALYST),
        lambda: session.append_part([5], CATALYST, 9, False),
        lambda: session.fork(),
        lambda: session.save("nowhere"),
    ):
        with pytest.raises(RuntimeError, match="still being streamed from this session"):
            call()
    answer.close()
    later = session.stream_ids([5], **ANSWER)
    session.append([7], question=CATALYST)
    with pytest.raises(RuntimeError, match="has read on since this answer was asked for"):
        next(later)
    assert session.fork().stats.tokens_read == 21


def test_what_is_asked_first_counts_the_head_of_the_template() -> None:
    """Question and answer alone would fit: with the head they do not, and its own question is the catalyst."""
    question = "What is the matter?"
    probe = Session(RUNNER, TOKENIZER, PotConfig(pot_size=200), system="Be brief.")
    generation = probe.generation(question, **ANSWER)
    prompt = len(generation.prompt)
    head = probe.pot.pinned
    generation.end()
    assert head > 5
    for count, fits in ((120 - prompt - head, True), (120 - prompt, False)):
        config = PotConfig(pot_size=120, distill_to=30)
        session = Session(RUNNER, TOKENIZER, config, system="Be brief.")
        options = {**ANSWER, "max_tokens": count}
        generation = session.generation(question, **options)
        assert generation.fits == fits
        assert (generation.catalyst is None) == fits
        generation.end()
        assert len(list(session.stream_ids(question, **options))) == count


@pytest.mark.parametrize(
    ("keep", "aware", "kind"),
    [(True, False, "general"), (True, True, "question"), (False, True, None), (False, False, None)],
)
def test_an_answer_that_stays_settles_the_kind_of_catalyst(
    keep: bool, aware: bool, kind: str | None
) -> None:
    session = Session(RUNNER, TOKENIZER, PotConfig(pot_size=200, distill_to=40))
    list(session.stream_ids("Why?", keep=keep, aware=aware, **ANSWER))
    assert session._reader.plan.catalyst == kind
    assert (session._reader.last_catalyst is not None) == (kind == "question")


def test_a_pot_has_the_shape_of_its_plan() -> None:
    def layout(**options: Any) -> Any:
        config = PotConfig(**{"pot_size": 48, "distill_to": 20, **options})
        return layout_of(config, Plan.of(config, 2))

    plain = layout()
    assert (plain.size, plain.sizes, plain.reset, plain.kind) == (48, (48, 48), True, None)
    assert (plain.attention_stats, plain.grouping, plain.distils, plain.scores) == (
        None,
        None,
        True,
        True,
    )
    assert layout(novelty=0.0).scores is False
    assert layout(policy="h2o").attention_stats == AttentionStats(True, 0)
    assert layout(policy="snapkv", window=5).attention_stats == AttentionStats(False, 5)
    assert layout(policy="truncate").size == 48
    assert layout(policy="truncate").sizes is None
    assert layout(policy="self_extend", group=3, neighbours=9).grouping == (3, 9)
    for options in ({"policy": "full"}, {"policy": "self_extend"}, {"prefill": "whole"}):
        assert layout(**options).size is None
    assert layout(policy="full").distils is False
    assert layout(pot_dtype="int8").kind == "int8"
    assert layout(context_reset=False).reset is False
    assert layout(layer_budget=(3.0, 1.0)).sizes == (58, 38)
    pot = opened(policy="truncate").pot
    assert (pot.size, [layer.size for layer in pot.bounded]) == (48, [48, 48])


def test_a_plan_by_numbers() -> None:
    for pot_size, distill_to, tokens in (
        (60, 30, 3),
        (10, 5, 1),
        (8, 1, 1),
        (1024, 500, 64),
        (540, 28, 64),
        (531, 20, 63),
    ):
        config = PotConfig(policy="kvzip", pot_size=pot_size, distill_to=distill_to)
        plan = Plan.of(config, 2)
        assert plan.replay_tokens == tokens
        assert plan.reserve(torch.tensor([CATALYST])) == len(CATALYST) + tokens
        assert plan.reserve(None) == 0
    plan = Plan.of(PotConfig(pot_size=60), 3)
    assert (plan.distill_to, plan.chunk_tokens, plan.replay_tokens, plan.gqa) == (
        30,
        1024,
        0,
        "mean",
    )
    assert (plan.whole, plan.remembers, plan.once, plan.catalyst, plan.undecided) == (
        False,
        False,
        False,
        None,
        True,
    )
    assert {(layer.size, layer.budget, layer.recent, layer.sinks) for layer in plan.layers} == {
        (60, 30, 2, 0)
    }
    assert Plan.of(PotConfig(pot_size=8192), 1).undecided
    assert not Plan.of(PotConfig(pot_size=8192, catalyst="facts"), 1).undecided
    assert not Plan.of(PotConfig(pot_size=8192, pool=7, pool_mode="avg"), 1).undecided
    once = Plan.of(PotConfig(score_memory="once"), 1)
    assert once.once and once.remembers
    some = Plan.of(PotConfig(score_memory=0.5), 1)
    assert some.remembers and not some.once
    whole = Plan.of(PotConfig(prefill="whole"), 1)
    assert whole.whole and whole.layers[0].size is None
    full = Plan.of(PotConfig(policy="full", prefill="whole"), 1)
    assert not full.whole and full.layers[0].size is None
    assert [other_kind(kind) for kind in (None, "question", "general", "facts", "plain")] == [
        *["general"] * 2,
        *["question"] * 3,
    ]
    assert checked_needs(POLICIES["kvzip"]()) == {"catalyst", "replay"}


def test_budgets_of_layers_by_numbers() -> None:
    def budgets(weights: Any, count: int, **options: Any) -> list[int]:
        config = PotConfig(**{"pot_size": 64, "distill_to": 20, "layer_budget": weights, **options})
        return budgets_of(config, count)

    assert budgets("uniform", 3) == [20, 20, 20]
    assert budgets((3, 2, 1), 3) == [30, 20, 10]
    assert budgets((1, 1, 1.01), 3, recent=0) == [20, 20, 20]
    assert budgets((39, 1), 2, recent=0) == [39, 1]
    assert budgets((38, 2), 2, recent=1, sinks=1) == [38, 2]
    with pytest.raises(ValueError, match="layer_budget has 2 weights, but the model has 3 layers"):
        budgets((1, 1), 3)
    with pytest.raises(ValueError, match="leaves a layer 0 entries"):
        budgets((100, 1), 2, recent=0)
    with pytest.raises(
        ValueError, match=r"leaves a layer 2 entries, fewer than sinks=2 \+ recent=1"
    ):
        budgets((38, 2), 2, recent=1, sinks=2)


def test_what_is_shown_of_layers_that_differ() -> None:
    plan = Plan.of(PotConfig(pot_size=64, distill_to=24, layer_budget=(3.0, 1.0)), 2)
    shown = plan.shown_in(PotConfig(pot_size=64, layer_budget=(3.0, 1.0)))
    assert (shown.distill_to, shown.recent, shown.pool, shown.pool_mode) == (24, None, 7, "avg")
    undecided = plan.shown_in(PotConfig(pot_size=64), decided=False)
    assert (undecided.distill_to, undecided.recent, undecided.pool) == (24, None, None)
    full = PotConfig(policy="full")
    assert Plan.of(full, 2).shown_in(full) == full
    again = plan.restored(plan.saved())
    assert again == plan
    for change in ({"pool": 4}, {"budget": 0}, {"recent": 99}, {"pool_mode": "mean"}):
        saved = plan.saved()
        saved["layers"][1] |= change
        with pytest.raises(ValueError):
            plan.restored(saved)
    with pytest.raises(ValueError, match="did you mean 'general'"):
        plan.restored({**plan.saved(), "catalyst": "generl"})
    with pytest.raises(ValueError, match="other sizes"):
        Plan.of(PotConfig(pot_size=65, distill_to=24), 2).restored(plan.saved())


def test_books() -> None:
    logits = torch.arange(6.0).view(3, 2)
    books = Bookkeeping()
    assert books.logits is None
    assert books.fresh.shape == (1, 0)
    for row in range(3):
        assert Bookkeeping(predicted=(logits, row)).logits.tolist() == [logits[row].tolist()]
    books.fresh_parts = (torch.tensor([[1, 2]]), torch.tensor([[3]]))
    assert books.fresh.tolist() == [[1, 2, 3]]
    books.unmerged = (torch.tensor([[1, 2]]), torch.arange(40)[None])
    newest = books.newest
    assert newest is books.last_ids
    assert newest[0].tolist() == list(range(8, 40))
    assert books.unmerged == ()


def test_an_empty_session_says_nothing(tmp_path: Path) -> None:
    session = opened()
    stats = session.stats
    assert (stats.tokens_read, stats.entries, stats.peak_entries, stats.distillations) == (
        0,
        0,
        0,
        0,
    )
    assert session.pot.bytes_per_token == 0
    with pytest.raises(pot_file.PotFileError, match="nothing has been read"):
        session.save(tmp_path / "pot")
    session.append([], question=CATALYST)
    with pytest.raises(pot_file.PotFileError, match="nothing has been read"):
        session.save(tmp_path / "pot")
    session.append(random_ids(60), question=CATALYST)
    session.save(tmp_path / "pot")
    assert pot_file.describe(tmp_path / "pot")["entries"] == session.stats.entries
    fork = session.fork()
    assert fork.pot.block is not None
    assert fork.pot.block is not session.pot.block
    for pot in (session.pot, fork.pot):
        for number, layer in enumerate(pot.bounded):
            for slots, memory in zip(layer.slots, pot.block.tensors, strict=True):
                assert slots.data.data_ptr() == memory[number].data_ptr()
    endless = opened(policy="full")
    endless.append(random_ids(5))
    assert not endless.pot.block.tensors, "it would have to move as a whole"
    assert fork.stats == session.stats


def test_time_goes_forwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that ticks at every look: reading contains its distillations, an answer its steps."""
    ticks = itertools.count(1)
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(ticks)))
    session = opened()
    assert session.stats.timings == {"read_s": 0.0, "distill_s": 0.0, "answer_s": 0.0}
    session.append(random_ids(60), question=CATALYST)
    first = session.stats.timings
    assert (first["distill_s"], first["answer_s"]) == (1.0, 0.0)
    assert 3 <= first["read_s"] <= 5
    list(session.stream_ids([5], **ANSWER))
    second = session.stats.timings
    assert 1 <= second["answer_s"] <= 5
    assert second == {**first, "answer_s": second["answer_s"]}
    session.append(random_ids(3), question=CATALYST)
    list(session.stream_ids([5], **ANSWER))
    third = session.stats.timings
    assert 1 <= third["read_s"] - first["read_s"] <= 3
    assert third["answer_s"] == 2 * second["answer_s"]


def test_small_weights_beside_large_ones_are_drawn() -> None:
    """Sums over the vocabulary are exact: float32 would lose the last id beside the first."""
    weights = torch.zeros(1, 600)
    weights[0, :256] = 1
    weights[0, 0] = 2.0**25
    weights[0, 256] = 1
    total = 2.0**25 + 256
    for aim, token in (
        (0.0, 0),
        (2.0**25 - 1, 0),
        (2.0**25 + 0.5, 1),
        (2.0**25 + 254.5, 255),
        (total - 0.5, 256),
    ):
        numbers = torch.tensor([aim / total], dtype=torch.float64)
        assert choose(weights, numbers).tolist() == [token]


def test_truncation_by_numbers() -> None:
    """Head and tail, what is skipped, and what an answer leaves out."""
    session = opened(policy="truncate", pot_size=21)
    reader = session._reader
    assert isinstance(reader, CuttingReader)
    assert (session.stats.tokens_read, session.stats.tokens_skipped) == (0, 0)
    ids = random_ids(60)
    session.append(ids[:7])
    session.append(ids[7:25])
    assert (session.stats.entries, reader.waiting()) == (10, (ids[14:25], 4))
    assert reader.progress == (25, 0)
    session.append(ids[25:])
    assert reader.waiting() == (ids[49:60], 39)
    assert (session.stats.tokens_read, session.stats.tokens_skipped) == (10, 39)
    assert reader.unread(1, 3) == ids[53:60]
    assert (session.stats.tokens_read, session.stats.tokens_skipped) == (17, 43)
    assert reader.unread(0, 0) == ids[49:60]
    assert reader.unread(3, 1)
    twin = session.fork()
    session.append(ids[:2])
    assert (reader.left_out, reader.waiting()) == (2, ([*ids[51:60], *ids[:2]], 41))
    assert (session.stats.tokens_read, session.stats.tokens_skipped) == (17, 43)
    assert twin._reader.waiting() == (ids[49:60], 39)
    session.append(ids[:9])
    assert reader.left_out == 0
    session.append(ids[:30])
    assert reader.waiting()[0] == ids[19:30]
    restored = opened(policy="truncate", pot_size=21)._reader
    restored.restore_waiting([5, 6], 3)
    assert (restored.unread(1, 3), restored.waiting()) == ([5, 6], ([5, 6], 3))


def test_the_smallest_options_by_numbers() -> None:
    """What is just allowed, and just refused."""
    layer = opened(policy="infinipot")._reader.plan.layers[0]
    full = dataclasses.replace(layer, sinks=layer.budget - 3, recent=3)
    full.check()
    with pytest.raises(ValueError, match="does not fit its layer"):
        dataclasses.replace(full, recent=4).check()
    dataclasses.replace(full, size=2, budget=1, sinks=0, recent=1, pool=0).check()
    for changes, words in (
        ({"size": 1}, "size=1"),
        ({"budget": 0}, "budget=0"),
        ({"sinks": -1}, "sinks=-1"),
        ({"recent": -1}, "recent=-1"),
        ({"pool": -1}, "pool=-1"),
        ({"pool": 4}, "pool=4 is not odd"),
        ({"pool_mode": "mean"}, "unknown pool_mode 'mean'"),
        ({"size": full.budget}, f"budget={full.budget} does not fit its layer"),
    ):
        with pytest.raises(ValueError, match=words):
            dataclasses.replace(full, **changes).check()
    dataclasses.replace(full, size=full.budget + 1).check()
    dataclasses.replace(full, size=None).check()
    for name in ("group", "neighbours"):
        assert getattr(SelfExtend(**{name: 1}), name) == 1
        with pytest.raises(ValueError, match=f"{name}=0"):
            SelfExtend(**{name: 0})
    with pytest.raises(ValueError, match=r"\bgqa\b"):
        H2O(gqa="no")
