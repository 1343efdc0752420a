"""Which entries survive: the paper's two-step choice (section 3.3.3, Code 1) and the smoothing of
scores along the text."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

REDUCTIONS = ("mean", "max", "sum")
POOLINGS = ("avg", "max", "trailing")


def reduce_groups(scores: Tensor, kv_heads: int, how: str = "mean") -> Tensor:
    """Scores per query head [B, H, P] -> per KV head [B, K, P]; the H/K query heads of a KV head
    stand together."""
    groups = scores.unflatten(1, (kv_heads, -1))
    return {"mean": groups.mean, "max": groups.amax, "sum": groups.sum}[how](dim=2)


def pool(scores: Tensor, kernel: int, kind: str = "avg") -> Tensor:
    """Smooth scores [B, K, P] along the slots over a window of `kernel` (odd) slots, centred unless
    it trails; 0 or 1 leaves them.

    At the ends the window holds fewer slots and the average divides by how many there are.
    Smoothing keeps neighbours of a strong entry, so phrases survive whole. trailing: the average of
    an entry and the kernel - 1 before it, so that what follows a strong entry stays.
    """
    if kernel <= 1:
        return scores
    if kind == "trailing":
        sums = kernel * F.avg_pool1d(F.pad(scores, (kernel - 1, 0)), kernel, stride=1)
        return sums / torch.arange(1, sums.shape[-1] + 1, device=sums.device).clamp(max=kernel)
    if kind == "max":
        return F.max_pool1d(scores, kernel, stride=1, padding=kernel // 2)
    return F.avg_pool1d(scores, kernel, stride=1, padding=kernel // 2, count_include_pad=False)


def covering(mass: Tensor, share: float) -> int:
    """Fewest entries that hold `share` of each row's mass [B, K, P] (>= 0), each row taking its own
    largest."""
    held = mass.sort(dim=-1, descending=True).values.double().cumsum(dim=-1)
    return int((held < share * held[..., -1:]).sum(dim=-1).max()) + 1


def apportion(total: int, weights: Sequence[float]) -> list[int]:
    """Whole parts of `total` in proportion to the weights, by largest remainder; of equal
    remainders the earlier gets more."""
    exact = [total * weight / sum(weights) for weight in weights]
    parts = [int(x) for x in exact]
    for place in sorted(range(len(parts)), key=lambda i: (parts[i] - exact[i], i))[
        : total - sum(parts)
    ]:
        parts[place] += 1
    return parts


def best(scores: Tensor, count: int) -> Tensor:
    """Mask [B, K, P] of the `count` highest scores of each row. Of equal scores the lower slot
    wins."""
    order = scores.argsort(dim=-1, descending=True, stable=True)[..., :count]
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, order, True)


def choose(
    budget: int,
    *,
    novelty: Tensor | None = None,
    scores: Tensor | None = None,
    share: float = 0.0,
    sinks: int = 0,
    recent: int = 0,
) -> Tensor:
    """Indices [B, K, budget] of the survivors, ascending: slot order stays text order.

    budget: entries to keep in all. novelty, scores [B, K, P] float32, at least one. The first
    `sinks` and the last `recent` slots stay; `share` (0 .. 1) of the slots then free go to the
    highest novelty, the others to the highest scores among the rest.
    """
    if scores is not None:
        some = scores
    else:
        some = novelty
    assert some is not None, "a choice needs novelty or scores"
    kept = torch.zeros_like(some, dtype=torch.bool)
    kept[..., :sinks] = True
    kept[..., some.shape[-1] - recent :] = True
    free = budget - sinks - recent
    if novelty is not None:
        novel = int(share * free + 0.5)
    else:
        novel = 0
    if novelty is not None:
        kept |= best(novelty.masked_fill(kept, -torch.inf), novel)
    if scores is not None:
        kept |= best(scores.masked_fill(kept, -torch.inf), free - novel)
    return kept.byte().argsort(dim=-1, descending=True, stable=True)[..., :budget]
