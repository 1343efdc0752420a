"""An answer's step, in fewer operations: what is the same small one for several answers is done once for all, and what is known not again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def turned(layers: Sequence[Any], x: Tensor, ahead: int) -> Sequence[Tensor | None]:
    """x [B, heads, 1, D], a vector for each pot's layer, turned in one go to the place of its next entry, less `ahead`: [1, heads, 1, D] each.

    None each where every layer must turn its own: several vectors, or layers that do not turn alike.
    """
    first = layers[0]
    if x.shape[2] > 1 or not all(_alike(first, layer) for layer in layers):
        return [None] * len(layers)
    places = torch.tensor([layer.position - ahead for layer in layers], device=x.device)
    return first.rotation.covered(x.transpose(0, 2), places).transpose(0, 2).split(1)


def _alike(one: Any, other: Any) -> bool:
    """Whether both layers turn what stands in one slot alike: by slot, and by equal tables."""
    if not all(x.window is None and x.is_initialized and x.reset and x.size and x.rotation is not None for x in (one, other)):
        return False
    return len(one.rotation.tables[one.device][0]) == len(other.rotation.tables[other.device][0])


def predicted(logits: Sequence[Tensor | None], said: Tensor) -> Tensor | None:
    """NuC [B, 1] of one token each that was said, and so predicted just before: logits [1, V] float32 of each, said [B, 1].

    None where that is not so: several tokens, or logits that are not known.
    """
    known = [x for x in logits if x is not None]
    if said.shape[1] > 1 or len(known) < len(logits):
        return None
    return F.cross_entropy(torch.cat(known), said[:, 0].to(known[0].device), reduction="none")[:, None]
