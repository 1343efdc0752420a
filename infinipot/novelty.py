"""NuC: how surprising a token was to the model that knew only the pot (paper, section 3.3.2, Eq. 4)."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

LOGITS_AT_ONCE = 1 << 24
"""Most logits alive at a time (64 MiB in float32): never a whole chunk times the vocabulary."""


def novelty(head: Callable[[Tensor], Tensor], hidden: Tensor, targets: Tensor, vocabulary: int) -> Tensor:
    """-log p(target) in nats, [B, T] float32.

    head: hidden states [B, t, hidden] -> logits [B, t, V], the model's own, with its final norm, scaling and soft-cap.
    hidden: [B, T, hidden], row i predicts targets[:, i]. targets: token ids [B, T].
    The value a token gets when it is read stays with its entry. Eq. 4 taken literally would score survivors again under the compressed
    context; but heads keep different tokens, so there is no one compressed text to score them under.
    """
    rows = max(1, LOGITS_AT_ONCE // vocabulary)
    losses = []
    for part, wanted in zip(hidden.split(rows, dim=1), targets.split(rows, dim=1), strict=True):
        logits = head(part)
        loss = F.cross_entropy(logits.flatten(0, 1).float(), wanted.flatten().to(logits.device), reduction="none")
        losses.append(loss.view(wanted.shape))
    return torch.cat(losses, dim=1)
