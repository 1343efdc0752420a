"""H2O (arXiv 2306.14048): heavy hitters, which received most attention so far, and as many of the newest."""

from __future__ import annotations

from torch import Tensor

from infinipot.policies.base import Observation, Policy


class H2O(Policy):
    """With distil_to one less than the pot, one entry leaves per token, as published."""

    name = "h2o"
    summary = "entries that received most attention so far, and the newest (H2O)"

    def recent(self, budget: int, window: int) -> int:
        return budget // 2

    def needs(self, share: float) -> frozenset[str]:
        return frozenset({"received"})

    def score(self, seen: Observation) -> Tensor:
        return seen.given("received")
