"""NuC: how surprising each token was, given the pot (paper, section 3.3.2, Eq. 4)."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from infinipot.kernels import launch

BLOCK = {"cpu": 1 << 12, "mps": 1 << 12, "cuda": 1 << 16}
"""Columns of the vocabulary at a time, by kind of device.

Blocks of columns, not of rows, read the head's weights only once per chunk. Blocks are small on a
CPU: the C library keeps freed memory of about one block, and large blocks would make the peak
memory of a long run vary.
"""
LOGITS_AT_ONCE = {"cpu": 1 << 20, "mps": 1 << 20, "cuda": 1 << 26}
"""Most logits in memory at a time, by kind of device: 4 MiB in float32, 128 MiB in half precision. A
text times the vocabulary is larger."""
OTHER_LOGITS_AT_ONCE = 1 << 24
LOG2_E = 1 / math.log(2)

Head = Callable[[Tensor, slice], Tensor]
"""(hidden states [B, T, hidden], range of token ids) -> the model's logits [B, T, ids], with its
scaling and soft-cap."""
Parts = Callable[[Tensor], list[Tensor]]
"""A tensor -> those of all processes that share out the vocabulary."""


def novelty(
    head: Head,
    hidden: Tensor,
    targets: Tensor,
    vocabulary: int,
    block: int,
    parts: Parts | None = None,
) -> Tensor:
    """-log p(target) in nats, [B, T] float32.

    It is the log-sum-exp over all logits, block by block, minus the target's logit. hidden:
    [B, T, hidden]; row i predicts targets[:, i]. targets: token ids [B, T]; those of other processes
    are below 0 or not below `vocabulary`, which is the number of ids of this one.

    A token is scored once, when it is read, and its entry keeps the value. Eq. 4 taken literally
    scores survivors again in the compressed context. This is not possible here: heads keep
    different tokens, so there is no single compressed text.
    """
    most = LOGITS_AT_ONCE.get(hidden.device.type, OTHER_LOGITS_AT_ONCE)
    rows = max(1, most // block)
    return torch.cat(
        [
            _losses(head, h, t, vocabulary, block, parts)
            for h, t in zip(hidden.split(rows, dim=1), targets.split(rows, dim=1), strict=True)
        ],
        dim=1,
    )


def _losses(
    head: Head, hidden: Tensor, targets: Tensor, vocabulary: int, block: int, parts: Parts | None
) -> Tensor:
    total = torch.full(targets.shape, -torch.inf, device=hidden.device)
    own = torch.zeros_like(total)
    targets = targets.to(hidden.device).contiguous()
    for start in range(0, vocabulary, block):
        logits = head(hidden, slice(start, min(start + block, vocabulary)))
        if launch.fits(logits):
            launch.add_losses(
                logits.flatten(0, 1), targets.view(-1), start, total.view(-1), own.view(-1)
            )
        else:
            total, own = add_losses(logits, targets, start, total, own)
    if parts is None:
        return total - own
    sums = torch.stack(parts(torch.stack((total, own))))
    return sums[:, 0].logsumexp(dim=0) - sums[:, 1].sum(dim=0)


def add_losses(
    logits: Tensor, targets: Tensor, start: int, total: Tensor, own: Tensor
) -> tuple[Tensor, Tensor]:
    """`total` and `own` after one more block of the vocabulary's columns.

    logits: [B, T, columns], for the ids from `start` on. total: the running log-sum-exp. own: the
    target's logit. Both are [B, T] float32.
    """
    logits = logits.float()
    place = targets - start
    inside = (place >= 0) & (place < logits.shape[-1])
    picked = logits.gather(-1, place.clamp(0, logits.shape[-1] - 1)[..., None])[..., 0]
    largest = logits.amax(dim=-1)
    # on a CPU torch finds powers of 2 in half of the time
    powers = logits.sub_(largest[..., None]).mul_(LOG2_E).exp2_()
    part = powers.sum(dim=-1).log() + largest
    return torch.logaddexp(total, part), torch.where(inside, picked, own)
