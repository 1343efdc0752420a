"""H2O (arXiv 2306.14048): heavy hitters, with most attention so far, and as many of the newest."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from infinipot.policies.base import Observation
from infinipot.policies.options import Attended


@dataclass(frozen=True, kw_only=True)
class H2O(Attended):
    """Half of the survivors are the newest. As published, one entry leaves per token: distill_to is
    one less than pot_size. InfiniPot's paper compares with four heavy hitters: recent is then
    distill_to - 4."""

    name = "h2o"
    summary = "entries that received most attention so far, and the newest (H2O)"
    paper = "arXiv 2306.14048"

    def default_recent(self, budget: int) -> int:
        return budget // 2

    def needs(self) -> frozenset[str]:
        return frozenset({"received"})

    def score(self, layer: Observation) -> Tensor:
        return layer.require("received")
