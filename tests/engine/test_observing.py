"""What a policy is shown of a full pot, against plain loops and numbers by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers import CATALYST, greedy, random_ids
from tiny import make_tiny

from infinipot import PotConfig, Session
from infinipot.engine import observe as module
from infinipot.engine.generation import Generation
from infinipot.engine.observe import FLOOR, CatalystLook, Watcher
from infinipot.kernels import launch
from infinipot.model.runner import ModelRunner
from infinipot.scoring.novelty import novelty
from infinipot.scoring.representativeness import Scoring

RUNNER = ModelRunner(make_tiny("llama"))


def opened(**options: Any) -> Session:
    return Session(RUNNER, None, PotConfig(**{"pot_size": 48, "distill_to": 20, **options}))


def attention_of(layer: Any, queries: torch.Tensor, how: str) -> torch.Tensor:
    """The attention that entries receive from the newest tokens, in plain loops. [K, P]"""
    keys = layer.read_keys(0, layer.length)[0]
    rows = queries.shape[2]
    by_head = torch.zeros(4, layer.length)
    for head in range(4):
        for row in range(rows):
            stop = layer.length - rows + row + 1
            query = layer.rotation.rotate_to(queries[:, :, row : row + 1], torch.tensor([stop - 1]))
            products = keys[head // 2, :stop] @ query[0, head, 0] / 4
            by_head[head, :stop] += products.softmax(dim=0)
    pairs = by_head.view(2, 2, -1)
    return {"mean": pairs.mean(dim=1), "max": pairs.amax(dim=1), "sum": pairs.sum(dim=1)}[how]


@pytest.mark.parametrize(
    ("fresh", "recent", "rows"), [(3, 0, 3), (3, 5, 5), (1, 0, 1), (20, 0, 8), (3, 40, 8)]
)
def test_the_newest_tokens_that_stand_last_vote(fresh: int, recent: int, rows: int) -> None:
    """Not those before the last distillation that were not kept as the newest."""
    session = opened(policy="snapkv", window=8, gqa="max")
    session.append(random_ids(48))
    session._reader.distiller.distill(session.pot, None)
    session.append(random_ids(fresh, seed=1))
    layer: Any = session.pot.bounded[1]
    got, count = session._reader.distiller.watcher.newest(session.pot, 1, recent)
    assert count == rows
    expected = attention_of(layer, layer.attention_stats.queries[:, :, -rows:], "max")
    torch.testing.assert_close(got[0], expected)


def test_pinned_entries_do_not_vote() -> None:
    session = opened(policy="snapkv", window=8)
    session._reader.pin([5, 6, 7])
    session.append(random_ids(4))
    got, count = session._reader.distiller.watcher.newest(session.pot, 0, 0)
    assert (count, got.shape) == (4, (1, 2, 7))


@pytest.mark.parametrize("pinned", [0, 3])
@pytest.mark.parametrize(
    "options",
    [{}, {"score_memory": 0.5, "novelty": 0.0}, {"novelty": 1.0}, {"score_memory": "once"}],
    ids=str,
)
def test_layers_at_once_are_the_layers_one_by_one(options: dict[str, Any], pinned: int) -> None:
    session = opened(**options)
    session._reader.pin(random_ids(pinned, seed=3))
    session.append(random_ids(70), question=CATALYST)
    pot = session.pot
    watcher = session._reader.distiller.watcher
    places, nats = pot.described(pot.bounded)
    seen: dict[str, Any] = {}
    if "catalyst" in session._reader.plan.needs:
        seen = watcher.prompted(pot, torch.tensor([CATALYST]), None)
    both = watcher.layers(pot, [0, 1], (places, nats), seen)
    rows = zip(places.split(1), nats.split(1), strict=True)
    single = [watcher.layer(pot, n, own, seen) for n, own in enumerate(rows)]
    for name in ("novelty", "catalyst", "past", "index"):
        mine, its = getattr(both, name), [getattr(one, name) for one in single]
        assert (mine is None) == (its[0] is None)
        if mine is not None:
            assert torch.equal(mine, torch.cat(its))
    assert torch.equal(both.rotated, torch.cat([one.rotated for one in single]))
    for number, one in enumerate(single):
        layer = pot.bounded[number]
        count = layer.length - pinned
        assert one.index.tolist() == places[number : number + 1, :, pinned:].tolist()
        assert torch.equal(one.keys, layer.keys[:, :, pinned : layer.length])
        assert torch.equal(one.values, layer.values[:, :, pinned : layer.length])
        assert torch.equal(one.rotated, layer.read_keys(pinned, layer.length))
        shapes = {x.shape for x in (one.novelty, one.catalyst, one.index) if x is not None}
        assert shapes == {(1, 2, count)}
        if one.past is not None:
            assert torch.equal(one.past, layer.past[..., pinned:])
        plan = session._reader.plan.layers[number]
        for shown in (one, both):
            assert (shown.sinks, shown.recent, shown.window) == (plan.sinks, plan.recent, 0)
            assert (shown.pool, shown.pool_mode) == (plan.pool, plan.pool_mode)


def test_a_look_at_the_catalyst_in_plain_loops() -> None:
    """Its rows see all entries before them, and their own columns are left out."""
    random = torch.Generator().manual_seed(0)
    query = torch.randn(1, 4, 6, 16, generator=random)
    key = torch.randn(1, 2, 9, 16, generator=random)
    by_head = torch.zeros(4, 6)
    for head in range(4):
        for row in range(3):
            products = key[0, head // 2, : 7 + row] @ query[0, head, 3 + row] / 4
            by_head[head] += products.softmax(dim=0)[:6]
    pairs = by_head.view(2, 2, 6)
    for how, expected in (("mean", pairs.mean(dim=1)), ("sum", pairs.sum(dim=1))):
        got = CatalystLook(3, how)(query, key, Scoring(0.25))
        torch.testing.assert_close(got[0], expected)
    assert (CatalystLook(3).alone, CatalystLook(3, "mean", True).alone) == (0, 3)
    plan = SimpleNamespace(gqa="sum", once=True)
    watcher = Watcher(RUNNER, plan)  # type: ignore[arg-type]
    assert watcher.look(torch.zeros(2, 7)) == CatalystLook(7, "sum", True)


def test_a_contrast_divides(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the attention of the second row. The first is not looked at again if it has been already."""
    asked: list[tuple[list[int], int]] = []

    def observe(runner: Any, pot: Any, ids: torch.Tensor, look: Any, alone: int) -> Any:
        asked.append((ids[0].tolist(), alone))
        return {n: torch.full((1, 2, 3), float(ids[0, 0] * (n + 1))) for n in (0, 1)}

    monkeypatch.setattr(module, "observe", observe)
    plan = SimpleNamespace(gqa="mean", once=True, needs=frozenset({"catalyst"}))
    plan.policy = SimpleNamespace(name="own")
    watcher = Watcher(RUNNER, plan)  # type: ignore[arg-type]
    one = watcher.catalyst(None, torch.tensor([[4, 5]]))  # type: ignore[arg-type]
    assert [float(one[n][0, 0, 0]) for n in (0, 1)] == [4, 8]
    assert asked == [([4, 5], 2)]
    asked.clear()
    two = watcher.catalyst(None, torch.tensor([[4, 5], [2, 3]]))  # type: ignore[arg-type]
    assert asked == [([4, 5], 2), ([2, 3], 2)]
    assert [float(two[n][0, 1, 2]) for n in (0, 1)] == pytest.approx(
        [4 / (2 + FLOOR), 8 / (4 + FLOOR)]
    )
    asked.clear()
    seen = {0: torch.ones(1, 2, 3), 1: torch.ones(1, 2, 3)}
    got = watcher.prompted(None, torch.tensor([[4, 5], [2, 3]]), seen)  # type: ignore[arg-type]
    assert asked == [([2, 3], 2)]
    assert float(got["catalyst"][1][0, 0, 0]) == pytest.approx(1 / (4 + FLOOR))
    with pytest.raises(AssertionError, match="'own' was to distil without its catalyst"):
        watcher.prompted(None, None, None)  # type: ignore[arg-type]
    plan.needs = frozenset({"novelty"})
    assert watcher.prompted(None, None, None) == {}  # type: ignore[arg-type]


def test_the_text_is_read_again_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each behind the whole catalyst; the largest attention of all of them counts."""
    session = opened(policy="kvzip", catalyst="question")
    session.append(random_ids(20), question=CATALYST)
    watcher = session._reader.distiller.watcher
    size = watcher.plan.replay_tokens
    asked: list[list[int]] = []
    original = module.observe

    def observe(*arguments: Any) -> Any:
        asked.append(arguments[2][0].tolist())
        return original(*arguments)

    monkeypatch.setattr(module, "observe", observe)
    got = watcher.replay(session.pot, torch.tensor([CATALYST]))
    pieces = [random_ids(20)[start : start + size] for start in range(0, 20, size)]
    assert asked == [[*CATALYST, *piece] for piece in pieces]
    assert len(pieces) > 2
    for number, layer in enumerate(session.pot.bounded):
        largest = torch.zeros(4, 20)
        for piece in pieces:
            rows = torch.zeros(4, 20)

            def note(own: int, query: torch.Tensor, key: torch.Tensor, how: Any) -> None:
                if own != number:  # noqa: B023
                    return
                for head in range(4):
                    for row in range(query.shape[2]):
                        products = key[0, head // 2, : 21 + row] @ query[0, head, row] / 4
                        new = products.softmax(dim=0)[:20]
                        rows[head] = torch.maximum(rows[head], new)  # noqa: B023

            mark = session.pot.mark()
            observer = SimpleNamespace(watch=note, alone=0)
            RUNNER.read(
                torch.tensor([[*CATALYST, *piece]]),
                [session.pot],
                module.Observer(observer.watch, 0),
            )
            session.pot.rollback(mark)
            largest = torch.maximum(largest, rows)
        torch.testing.assert_close(got[number][0], largest.view(2, 2, 20).amax(dim=1))
        assert layer.length == 20


def test_a_distillation_without_its_catalyst_is_a_fault() -> None:
    session = opened()
    session.append(random_ids(30), question=CATALYST)
    before = session.pot.length
    with pytest.raises(AssertionError, match="'infinipot' was to distil without its catalyst"):
        session._reader.distiller.distill(session.pot, None)
    assert session.pot.length == before


@pytest.mark.parametrize("keep", [False, True])
def test_what_an_answer_leaves_room_for(keep: bool) -> None:
    """In a full pot: one token less, and it is distilled before the prompt; else whenever it is full.
    An answer that stays needs room for the next catalyst, too."""
    reserve = len(CATALYST) * keep
    for tokens, fits in ((28 - 10 - reserve, True), (29 - 10 - reserve, False)):
        session = opened()
        session.append(random_ids(43), question=CATALYST)
        catalyst = session._reader.last_catalyst
        options = {"max_tokens": tokens, "pick": greedy, "stop_ids": set(), "catalyst": catalyst}
        generation = Generation(session._reader, random_ids(10, seed=2), keep=keep, **options)
        assert generation.length == tokens + 10
        assert not generation.fits
        generation.begin()
        assert generation.fits == fits
        assert generation.pot.distillations == 1
        assert (generation.pot is session.pot) == keep
        generation.end()
        assert session.stats.distillations == int(keep)
        assert not session._reader.busy


def test_losses_of_a_kernel_are_given_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each block adds to one sum a row and to the target's logit, of flat rows."""
    logits = torch.randn(2, 3, 10, generator=torch.Generator().manual_seed(1))
    targets = torch.tensor([[0, 4, 9], [5, 5, 7]])
    starts: list[int] = []

    def add(
        block: torch.Tensor,
        own: torch.Tensor,
        start: int,
        total: torch.Tensor,
        picked: torch.Tensor,
    ) -> None:
        starts.append(start)
        assert block.ndim == 2
        for row in range(6):
            total[row] = torch.logaddexp(total[row], block[row].logsumexp(dim=0))
            place = int(own[row]) - start
            if 0 <= place < block.shape[1]:
                picked[row] = block[row, place]

    monkeypatch.setattr(launch, "fits", lambda x: True)
    monkeypatch.setattr(launch, "add_losses", add)
    got = novelty(lambda hidden, ids: logits[..., ids], torch.zeros(2, 3, 1), targets, 10, 4)
    assert starts == [0, 4, 8]
    expected = -logits.log_softmax(dim=-1).gather(-1, targets[..., None])[..., 0]
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("rows", [1, 2])
def test_a_distillation_by_a_catalyst_that_is_read_alone(rows: int) -> None:
    """The survivors are those of the highest attention; with a second row, of the quotient."""
    session = opened(novelty=0.0, pool=0, recent=0)
    session.append(random_ids(40), question=CATALYST)
    pot = session.pot
    catalyst = torch.tensor([CATALYST, CATALYST[::-1]][:rows])
    seen = [CatalystScores(session, row) for row in catalyst]
    expected = []
    for number in (0, 1):
        scores = seen[0].scores[number]
        if rows == 2:
            scores = scores / (seen[1].scores[number] + FLOOR)
        expected.append(scores.topk(20, dim=-1).indices.sort(dim=-1).values.tolist())
    session._reader.distiller.distill(pot, catalyst)
    assert [layer.index[0].tolist() for layer in pot.bounded] == expected
    assert (pot.tokens_read, pot.length, pot.distillations) == (40, 20, 1)


class CatalystScores:
    """Attention from a row of ids, which is read and forgotten. scores: by layer, [K, P]."""

    def __init__(self, session: Session, row: torch.Tensor) -> None:
        self.scores: dict[int, torch.Tensor] = {}
        mark = session.pot.mark()
        RUNNER.read(row[None], [session.pot], module.Observer(self.note, 0))
        session.pot.rollback(mark)

    def note(self, number: int, query: torch.Tensor, key: torch.Tensor, how: Scoring) -> None:
        before = key.shape[2] - query.shape[2]
        by_head = torch.zeros(4, before)
        for head in range(4):
            for row in range(query.shape[2]):
                products = key[0, head // 2, : before + row + 1] @ query[0, head, row] / 4
                by_head[head] += products.softmax(dim=0)[:before]
        self.scores[number] = by_head.view(2, 2, -1).mean(dim=1)


@pytest.mark.parametrize("keep", [False, True])
def test_an_answer_that_ends_before_it_begins_is_none(keep: bool) -> None:
    session = opened()
    session.append(random_ids(20), question=CATALYST)
    latest = session._reader.last_catalyst
    settled: list[int] = []
    generation = Generation(
        session._reader, [5, 6], max_tokens=3, pick=greedy, stop_ids=set(), keep=keep,
        catalyst=torch.tensor([[7]]), settled=lambda: settled.append(1),
    )  # fmt: skip
    assert session._reader.busy
    assert (generation.tokens, generation.complete, generation.reads) == ([], False, True)
    generation.end()
    assert not session._reader.busy
    assert (session.stats.tokens_read, settled) == (20, [])
    assert session._reader.last_catalyst is latest


def test_which_tokens_an_answer_takes() -> None:
    session = opened()
    session.append(random_ids(20), question=CATALYST)
    for keep, reads in ((False, [True, False]), (True, [True, True])):
        settled: list[int] = []
        generation = Generation(
            session._reader, [5, 6], max_tokens=2, pick=greedy, stop_ids={9}, keep=keep,
            catalyst=torch.tensor([CATALYST]), settled=lambda: settled.append(1),  # noqa: B023
        )  # fmt: skip
        assert generation.accept(9) is None
        got = []
        for token in (3, 4):
            assert generation.accept(token) == token
            got.append(generation.reads)
        assert got == reads
        assert generation.complete
        assert generation.accept(5) is None
        assert generation.tokens == [3, 4]
        generation.begin()
        generation.end()
        assert settled == [1] * keep
        assert session.stats.tokens_read == 20 + 2 * keep
