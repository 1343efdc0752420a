"""KVzip (arXiv 2505.23416): what the model looks at when it has to repeat the text; here a pot's text at a time."""

from __future__ import annotations

from torch import Tensor

from infinipot.policies.base import Observation, Policy


class KVzip(Policy):
    """Before each distillation the tokens read since the last are read once more behind the catalyst, piece by piece, and forgotten again:
    reading costs twice. Older survivors, whose text is gone, keep the score they once had."""

    name = "kvzip"
    summary = "what is looked at when the text is read once more (KVzip)"
    catalyst = "repeat"
    persist = 1.0

    def needs(self, share: float) -> frozenset[str]:
        return frozenset({"catalyst", "replay"})

    def score(self, seen: Observation) -> Tensor:
        return seen.given("replay")
