"""H2O (arXiv 2306.14048): heavy hitters, which received most attention so far, and as many of the
newest."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from infinipot.policies.base import Observation
from infinipot.policies.options import Attended


@dataclass(frozen=True, kw_only=True)
class H2O(Attended):
    """With distil_to one less than the pot, one entry leaves per token, as published. Half of the
    survivors are the newest."""

    name = "h2o"
    summary = "entries that received most attention so far, and the newest (H2O)"
    paper = "arXiv 2306.14048"

    def default_recent(self, budget: int) -> int:
        return budget // 2

    def needs(self) -> frozenset[str]:
        return frozenset({"received"})

    def score(self, seen: Observation) -> Tensor:
        return seen.given("received")
