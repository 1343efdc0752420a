"""InfiniPot (arXiv 2410.01518): novelty first, then what the catalyst attends to, per head.

The paper smooths nothing; averages over 7 slots keep phrases whole, which single digits need to survive. A question looks for where its answer
begins, and the end would be lost: so where there is room for wide windows, what follows a strong entry stays with it. A twelfth is the
newest text, on which the model goes on (docs/results.md).
"""

from __future__ import annotations

from torch import Tensor

from infinipot.policies.base import Observation, Policy


class InfiniPot(Policy):
    name = "infinipot"
    summary = "novel tokens, and those the catalyst attends to (InfiniPot)"

    def recent(self, budget: int, window: int) -> int:
        return budget // 12

    def smoothing(self, budget: int, asked: bool) -> tuple[int, str]:
        return (45, "trailing") if asked and budget >= 3072 else (7, "avg")

    def needs(self, share: float) -> frozenset[str]:
        return frozenset(({"novelty"} if share > 0 else set()) | ({"catalyst"} if share < 1 else set()))

    def share(self, wanted: float) -> float:
        return wanted

    def score(self, seen: Observation) -> Tensor | None:
        return seen.catalyst
