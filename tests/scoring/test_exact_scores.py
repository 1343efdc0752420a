"""Scores and choices on small numbers that anyone can compute by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from infinipot.scoring import novelty as novelty_module
from infinipot.scoring import representativeness as cap
from infinipot.scoring.novelty import novelty
from infinipot.scoring.selection import apportion, best, choose, covering, pool, reduce_groups


def table(logits: Tensor) -> Any:
    """A head that gives these logits [B, T, V], and notes the shapes that it is asked for. A hidden
    state is the number of its row."""

    def head(hidden: Tensor, columns: slice) -> Tensor:
        head.asked.append((hidden.shape[1], columns.start, columns.stop))
        rows = hidden[:, :, 0].long()
        picked = logits.gather(1, rows[..., None].expand(-1, -1, logits.shape[-1]))
        return picked[..., columns].clone()

    head.asked = []
    return head


def numbered(batch: int, rows: int) -> Tensor:
    return torch.arange(rows).float().expand(batch, rows)[..., None]


@pytest.mark.parametrize("size", [1.0, 90.0, 3e4])
@pytest.mark.parametrize("block", [3, 10, 64])
def test_novelty_of_any_logits(size: float, block: int) -> None:
    """Also where exp() of a logit, or of its opposite, is beyond float32: above 88 nats."""
    random = torch.Generator().manual_seed(0)
    logits = size * torch.randn(2, 7, 29, generator=random)
    targets = torch.randint(0, 29, (2, 7), generator=random)
    got = novelty(table(logits), numbered(2, 7), targets, 29, block)
    expected = F.cross_entropy(
        logits.double().flatten(0, 1), targets.flatten(), reduction="none"
    ).view(2, 7)
    assert got.dtype == torch.float32
    assert size == 1.0 or float(expected.max()) > 88
    torch.testing.assert_close(got.double(), expected, rtol=2e-6, atol=2e-6 * size)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_novelty_in_half_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    """Only the logits are rounded: the sum over the vocabulary has all its digits."""
    random = torch.Generator().manual_seed(1)
    logits = (3 * torch.randn(1, 5, 4000, generator=random)).to(dtype)
    targets = torch.randint(0, 4000, (1, 5), generator=random)
    got = novelty(table(logits), numbered(1, 5), targets, 4000, 1000)
    expected = F.cross_entropy(logits[0].double(), targets[0], reduction="none")
    assert got.dtype == torch.float32
    torch.testing.assert_close(got[0].double(), expected, rtol=1e-6, atol=1e-6)


def test_novelty_has_few_logits_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows times columns of a block are at most the limit; every row meets every column once."""
    monkeypatch.setitem(novelty_module.LOGITS_AT_ONCE, "cpu", 20)
    logits = torch.randn(1, 5, 25, generator=torch.Generator().manual_seed(2))
    head = table(logits)
    targets = torch.tensor([[0, 9, 10, 24, 7]])
    got = novelty(head, numbered(1, 5), targets, 25, 10)
    assert head.asked == [
        (rows, start, stop) for rows in (2, 2, 1) for start, stop in ((0, 10), (10, 20), (20, 25))
    ]
    expected = F.cross_entropy(logits[0], targets[0], reduction="none")
    torch.testing.assert_close(got[0], expected)
    head.asked.clear()
    novelty(head, numbered(1, 5), targets, 25, 25)
    assert [rows for rows, *_ in head.asked] == [1] * 5, "one row at least"


@pytest.mark.parametrize(
    ("total", "weights", "parts"),
    [
        (10, (1, 1, 1), [4, 3, 3]),
        (11, (1, 1, 1), [4, 4, 3]),
        (7, (2, 1, 1), [3, 2, 2]),
        (10, (0.05, 0.9, 0.05), [1, 9, 0]),
        (5, (1, 3), [1, 4]),
        (9, (1.0,), [9]),
        (6, (3, 2, 1), [3, 2, 1]),
        (100, (1, 1, 1, 1, 1, 1, 1), [15, 15, 14, 14, 14, 14, 14]),
    ],
)
def test_parts_by_the_largest_remainder(total: int, weights: tuple, parts: list[int]) -> None:
    assert apportion(total, weights) == parts
    assert sum(parts) == total


ROW = [1.0, 5.0, 2.0, 5.0, 0.0, 4.0]


@pytest.mark.parametrize(
    ("kernel", "kind", "smooth"),
    [
        (0, "avg", ROW),
        (1, "max", ROW),
        (3, "avg", [3.0, 8 / 3, 4.0, 7 / 3, 3.0, 2.0]),
        (3, "max", [5.0, 5.0, 5.0, 5.0, 5.0, 4.0]),
        (3, "trailing", [1.0, 3.0, 8 / 3, 4.0, 7 / 3, 3.0]),
        (5, "trailing", [1.0, 3.0, 8 / 3, 13 / 4, 13 / 5, 16 / 5]),
        (9, "avg", [13 / 5, 17 / 6, 17 / 6, 17 / 6, 17 / 6, 16 / 5]),
        (11, "avg", [17 / 6] * 6),
        (10**12 + 1, "avg", [17 / 6] * 6),
        (10**12 + 1, "max", [5.0] * 6),
        (10**12 + 1, "trailing", [1.0, 3.0, 8 / 3, 13 / 4, 13 / 5, 17 / 6]),
    ],
)
def test_smoothing_by_hand(kernel: int, kind: str, smooth: list[float]) -> None:
    got = pool(torch.tensor([[ROW, ROW[::-1]]]), kernel, kind)
    torch.testing.assert_close(got[0, 0], torch.tensor(smooth))
    if kind != "trailing":
        torch.testing.assert_close(got[0, 1], torch.tensor(smooth[::-1]))


def test_groups_are_neighbours() -> None:
    scores = torch.tensor([[[1.0], [3.0], [10.0], [30.0]]])
    assert reduce_groups(scores, 2).flatten().tolist() == [2, 20]
    assert reduce_groups(scores, 2, "max").flatten().tolist() == [3, 30]
    assert reduce_groups(scores, 2, "sum").flatten().tolist() == [4, 40]
    assert reduce_groups(scores, 4, "sum").flatten().tolist() == [1, 3, 10, 30]


def test_how_many_entries_cover_a_share() -> None:
    mass = torch.tensor([[[1.0, 4.0, 3.0, 2.0], [0.0, 10.0, 0.0, 0.0]]])
    assert [covering(mass, share) for share in (0.3, 0.4, 0.5, 0.7, 0.75, 0.95)] == [
        1,
        1,
        2,
        2,
        3,
        4,
    ]
    assert covering(mass[:, 1:], 0.99) == 1


def test_of_equal_scores_the_first_slot_wins() -> None:
    assert best(torch.tensor([[ROW]]), 1)[0, 0].nonzero().flatten().tolist() == [1]
    assert best(torch.zeros(1, 2, 5), 2)[0, 1].tolist() == [True, True, False, False, False]
    assert not best(torch.zeros(1, 1, 5), 0).any()


NOVEL = [9.0, 0.0, 8.0, 1.0, 7.0, 2.0, 6.0, 3.0]
SCORES = [0.0, 9.0, 0.0, 8.0, 1.0, 7.0, 2.0, 0.0]


@pytest.mark.parametrize(
    ("budget", "options", "slots"),
    [
        (4, {"share": 0.5}, [0, 1, 2, 3]),
        (3, {"share": 0.5}, [0, 1, 2]),  # half of three is two
        (4, {"share": 0.0}, [1, 3, 5, 6]),
        (4, {"share": 1.0}, [0, 2, 4, 6]),
        (4, {"share": 0.5, "sinks": 1, "recent": 1}, [0, 1, 2, 7]),
        (5, {"share": 0.4, "recent": 2}, [0, 1, 3, 6, 7]),
        (2, {"share": 0.5, "sinks": 1, "recent": 1}, [0, 7]),
        (8, {"share": 0.5, "sinks": 2}, [0, 1, 2, 3, 4, 5, 6, 7]),
    ],
)
def test_choice_by_hand(budget: int, options: dict, slots: list[int]) -> None:
    """Sinks and recent ones first, then the most novel, then the best of the others."""
    novel, scores = torch.tensor([[NOVEL]]), torch.tensor([[SCORES]])
    assert choose(budget, novelty=novel, scores=scores, **options)[0, 0].tolist() == slots


def test_choice_by_one_measure() -> None:
    novel, scores = torch.tensor([[NOVEL]]), torch.tensor([[SCORES]])
    assert choose(3, scores=scores)[0, 0].tolist() == [1, 3, 5]
    assert choose(3, novelty=novel, share=1.0, sinks=1)[0, 0].tolist() == [0, 2, 4]
    with pytest.raises(AssertionError, match="needs novelty or scores"):
        choose(3)


def test_attention_by_hand() -> None:
    """Two tokens behind three entries: causal, scaled, capped, with sinks, and with hidden entries."""
    random = torch.Generator().manual_seed(3)
    queries, keys = (
        torch.randn(1, 4, 2, 8, generator=random),
        torch.randn(1, 2, 5, 8, generator=random),
    )
    sinks = torch.tensor([0.5, -1.0, 2.0, 0.0])
    for scoring in (
        cap.Scoring(0.3),
        cap.Scoring(0.3, softcap=0.7),
        cap.Scoring(0.3, sinks=sinks),
        cap.Scoring(2.0, hidden=(1, 3)),
    ):
        got = cap.causal_softmax(queries, keys, scoring)
        for head in range(4):
            for row in range(2):
                scores = keys[0, head // 2] @ queries[0, head, row] * scoring.scaling
                if scoring.softcap:
                    scores = scoring.softcap * torch.tanh(scores / scoring.softcap)
                weights = scores.exp()
                weights[slice(*scoring.hidden)] = 0
                weights[4 + row :] = 0
                extra = 0 if scoring.sinks is None else float(sinks[head].exp())
                expected = weights / (weights.sum() + extra)
                torch.testing.assert_close(got[0, head, row], expected)


@pytest.mark.parametrize("rows", [1, 2, 3, 64])
def test_attention_received_does_not_depend_on_the_rows_at_a_time(rows: int) -> None:
    random = torch.Generator().manual_seed(4)
    queries, keys = (
        torch.randn(1, 4, 5, 8, generator=random),
        torch.randn(1, 2, 9, 8, generator=random),
    )
    expected = cap.causal_softmax(queries, keys, cap.Scoring(0.4)).sum(dim=2)
    torch.testing.assert_close(cap.received(queries, keys, cap.Scoring(0.4), rows), expected)


def test_a_contrast_is_as_long_as_the_catalyst() -> None:
    catalyst = torch.tensor([[1, 2, 3, 4, 5]])
    for contrast, row in (
        ([7], [7] * 5),
        ([7, 8], [8, 7, 8, 7, 8]),
        ([6, 7, 8, 9, 10, 11], [7, 8, 9, 10, 11]),
    ):
        assert cap.contrasted(catalyst, torch.tensor([contrast])).tolist() == [[1, 2, 3, 4, 5], row]


def test_representativeness_leaves_the_catalyst_out() -> None:
    attention = torch.arange(20.0).view(1, 2, 2, 5)
    assert cap.representativeness(attention).tolist() == [[[5, 7, 9], [25, 27, 29]]]
