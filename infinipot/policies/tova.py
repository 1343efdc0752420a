"""TOVA (arXiv 2401.06104): what the newest token attends to, its heads taken together."""

from __future__ import annotations

from torch import Tensor

from infinipot.policies.base import Observation, Policy


class Tova(Policy):
    """With distil_to one less than the pot, one entry leaves per token, as published."""

    name = "tova"
    summary = "what the newest token attends to, all heads together (TOVA)"
    window = 1
    shared_heads = True

    def needs(self, share: float) -> frozenset[str]:
        return frozenset({"newest"})

    def score(self, seen: Observation) -> Tensor:
        return seen.given("newest")
