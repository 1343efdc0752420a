"""KeyDiff (arXiv 2504.15364): the keys least like the average direction of their head."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from infinipot.policies.base import Observation
from infinipot.policies.options import Scored


@dataclass(frozen=True, kw_only=True)
class KeyDiff(Scored):
    name = "keydiff"
    summary = "entries whose keys are unlike the others (KeyDiff)"
    paper = "arXiv 2504.15364"

    def score(self, layer: Observation) -> Tensor:
        return unlike(layer.rotated)


def unlike(keys: Tensor) -> Tensor:
    """How far each key's direction is from the mean direction of its head, [B, K, P] -> -1 .. 1.

    keys: [B, K, P, D], rotated.
    """
    directions = F.normalize(keys.float(), dim=-1)
    return -F.cosine_similarity(directions, directions.mean(dim=2, keepdim=True), dim=-1)
