"""Random entries in each head: the lower bound for every score."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from infinipot.policies.base import Observation
from infinipot.policies.options import Scored


@dataclass(frozen=True, kw_only=True)
class Random(Scored):
    name = "random"
    summary = "entries drawn at random, the same at every reading of a text"

    def score(self, layer: Observation) -> Tensor:
        # the place in the text is the seed
        chance = torch.Generator().manual_seed(int(layer.index[..., -1].max()))
        return torch.rand(layer.index.shape, generator=chance).to(layer.index.device)
