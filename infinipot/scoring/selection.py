"""The choice of survivors: two steps (paper, section 3.3.3, Code 1), and smoothing."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from infinipot.kernels import distill

REDUCTIONS = ("mean", "max", "sum")
POOLINGS = ("avg", "max", "trailing")


def reduce_groups(scores: Tensor, kv_heads: int, how: str = "mean") -> Tensor:
    """Scores per query head [B, H, P] -> scores per KV head [B, K, P].

    The H/K query heads of a KV head are neighbours.
    """
    groups = scores.unflatten(1, (kv_heads, -1))
    return {"mean": groups.mean, "max": groups.amax, "sum": groups.sum}[how](dim=2)


def pool(scores: Tensor, kernel: int, kind: str = "avg") -> Tensor:
    """Smooth scores [B, K, P] along the slots, so that whole phrases survive.

    kernel: length of the window in slots, odd; 0 or 1 changes nothing. kind: `avg` or `max` over a
    window around the slot, or `trailing`, the average of the slot and the kernel - 1 slots before
    it. `trailing` keeps the entries after a strong one. At the ends the window has fewer slots,
    and an average is over those only.
    """
    kernel = min(kernel, 2 * scores.shape[-1] - 1)  # a longer one holds no more slots
    if kernel <= 1:
        return scores
    if kind == "trailing":
        sums = kernel * F.avg_pool1d(F.pad(scores, (kernel - 1, 0)), kernel, stride=1)
        return sums / torch.arange(1, sums.shape[-1] + 1, device=sums.device).clamp(max=kernel)
    if kind == "max":
        return F.max_pool1d(scores, kernel, stride=1, padding=kernel // 2)
    return F.avg_pool1d(scores, kernel, stride=1, padding=kernel // 2, count_include_pad=False)


def covering(mass: Tensor, share: float) -> int:
    """The smallest count of entries that covers `share` of the mass in every row.

    mass: [B, K, P], not negative. Each row counts its own largest entries.
    """
    sums = mass.sort(dim=-1, descending=True).values.double().cumsum(dim=-1)
    return int((sums < share * sums[..., -1:]).sum(dim=-1).max()) + 1


def apportion(total: int, weights: Sequence[float]) -> list[int]:
    """Whole parts of `total` in proportion to the weights, by the largest-remainder method.

    Of equal remainders, the first is rounded up.
    """
    exact = [total * weight / sum(weights) for weight in weights]
    parts = [int(x) for x in exact]
    order = sorted(range(len(parts)), key=lambda i: (parts[i] - exact[i], i))
    for place in order[: total - sum(parts)]:
        parts[place] += 1
    return parts


def best(scores: Tensor, count: int) -> Tensor:
    """Mask [B, K, P] of the `count` highest scores in each row. Of equal scores, the first slot
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
    """Indices [B, K, budget] of the survivors, ascending, so that slots stay in text order.

    budget: entries to keep in total. novelty, scores: [B, K, P] float32, at least one of them. The
    first `sinks` and the last `recent` slots always stay. Of the remaining budget, `share` (0 .. 1)
    goes to the entries of highest novelty, and the rest to the highest scores among the others.
    """
    if scores is None:
        some = novelty
    else:
        some = scores
    assert some is not None, "a choice needs novelty or scores"
    if distill.supports_choice(some, budget, sinks, recent):
        return distill.choose_indices(scores, novelty, budget, share, sinks, recent)
    kept = torch.zeros_like(some, dtype=torch.bool)
    kept[..., :sinks] = True
    kept[..., some.shape[-1] - recent :] = True
    free = budget - sinks - recent
    novel = 0
    if novelty is not None and share > 0:
        novel = int(share * free + 0.5)
        kept |= best(novelty.masked_fill(kept, -torch.inf), novel)
    if scores is not None:
        kept |= best(scores.masked_fill(kept, -torch.inf), free - novel)
    return kept.byte().argsort(dim=-1, descending=True, stable=True)[..., :budget]
