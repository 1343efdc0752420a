"""InfiniPot (arXiv 2410.01518): novelty first, then what the catalyst attends to, per head.

The paper smooths nothing; a width of 7 keeps phrases whole (docs/results.md), which single digits need to survive.
"""

from __future__ import annotations

from torch import Tensor

from infinipot.policies.base import Observation, Policy


class InfiniPot(Policy):
    name = "infinipot"
    summary = "novel tokens, and those the catalyst attends to (InfiniPot)"
    pool = 7

    def needs(self, share: float) -> frozenset[str]:
        return frozenset(({"novelty"} if share > 0 else set()) | ({"catalyst"} if share < 1 else set()))

    def share(self, wanted: float) -> float:
        return wanted

    def score(self, seen: Observation) -> Tensor | None:
        return seen.catalyst
