"""KeyDiff (arXiv 2504.15364): the keys least like the average direction of their head."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from infinipot.policies.base import Observation
from infinipot.policies.options import Scored

LEAST = 1e-12
"""Least length of a key, against a division by 0."""


@dataclass(frozen=True, kw_only=True)
class KeyDiff(Scored):
    name = "keydiff"
    summary = "entries whose keys are unlike the others (KeyDiff)"
    paper = "arXiv 2504.15364"
    stacks = True

    def score(self, layer: Observation) -> Tensor:
        return unlike(layer.rotated)


def unlike(keys: Tensor) -> Tensor:
    """How far each key's direction is from the mean direction of its head, [B, K, P] -> -1 .. 1.

    keys: [B, K, P, D], rotated.
    """
    keys = keys.float()
    lengths = keys.norm(dim=-1, keepdim=True).clamp_min(LEAST)
    anchor = F.normalize(lengths.reciprocal().mT @ keys, dim=-1, eps=LEAST)  # [B, K, 1, D]
    return -(keys @ anchor.mT / lengths).squeeze(-1)
