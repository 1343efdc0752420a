"""NuC: how surprising a token was to the model that knew only the pot (paper, section 3.3.2, Eq.
4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from infinipot.kernels import launch

BLOCK = {"cpu": 1 << 12, "mps": 1 << 12, "cuda": 1 << 14}
"""Columns of the vocabulary at a time, by kind of device. Cut this way, and not by rows, the head's
weights are read once for a whole chunk. On a CPU blocks are small, for what the C library keeps of
freed memory is as large as they are: the peak of a long run would wander with it."""
LOGITS_AT_ONCE = 1 << 24
"""Most logits alive at a time (64 MiB in float32): never a whole chunk times the vocabulary."""

Head = Callable[[Tensor, slice], Tensor]
"""Hidden states [B, T, hidden] and a range of token ids -> logits [B, T, ids], the model's own,
with its scaling and soft-cap."""


def novelty(head: Head, hidden: Tensor, targets: Tensor, vocabulary: int, block: int) -> Tensor:
    """-log p(target) in nats, [B, T] float32: the log-sum-exp over all logits, block by block, less
    the target's own.

    hidden: [B, T, hidden], row i predicts targets[:, i]. targets: token ids [B, T]. The value a
    token gets when it is read stays with its entry. Eq. 4 taken literally would score survivors
    again under the compressed context; but heads keep different tokens, so there is no one
    compressed text to score them under.
    """
    rows = max(1, LOGITS_AT_ONCE // block)
    return torch.cat(
        [
            _losses(head, h, t, vocabulary, block)
            for h, t in zip(hidden.split(rows, dim=1), targets.split(rows, dim=1), strict=True)
        ],
        dim=1,
    )


def _losses(head: Head, hidden: Tensor, targets: Tensor, vocabulary: int, block: int) -> Tensor:
    total = torch.full(targets.shape, -torch.inf, device=hidden.device)
    wanted = torch.zeros_like(total)
    targets = targets.to(hidden.device).contiguous()
    for start in range(0, vocabulary, block):
        logits = head(hidden, slice(start, min(start + block, vocabulary)))
        if launch.fits(logits):
            launch.add_losses(
                logits.flatten(0, 1), targets.view(-1), start, total.view(-1), wanted.view(-1)
            )
        else:
            total, wanted = add_losses(logits, targets, start, total, wanted)
    return total - wanted


def add_losses(
    logits: Tensor, targets: Tensor, start: int, total: Tensor, own: Tensor
) -> tuple[Tensor, Tensor]:
    """Add a block of columns to the running log-sum-exp `total` and to `own`, each target's logit:
    [B, T] float32 both.

    logits: [B, T, columns], of the ids from `start` on.
    """
    logits = logits.float()
    place = targets - start
    inside = (place >= 0) & (place < logits.shape[-1])
    found = logits.gather(-1, place.clamp(0, logits.shape[-1] - 1)[..., None])[..., 0]
    largest = logits.amax(dim=-1)
    part = logits.sub_(largest[..., None]).exp_().sum(dim=-1).log() + largest
    return torch.logaddexp(total, part), torch.where(inside, found, own)


def predicted(logits: Sequence[Tensor | None], said: Tensor) -> Tensor | None:
    """NuC [B, 1] of one token each that was said, and so predicted just before: logits [1, V]
    float32 of each, said [B, 1].

    None where that is not so: several tokens, or logits that are not known.
    """
    known = [x for x in logits if x is not None]
    if said.shape[1] > 1 or len(known) < len(logits):
        return None
    return F.cross_entropy(torch.cat(known), said[:, 0].to(known[0].device), reduction="none")[
        :, None
    ]
