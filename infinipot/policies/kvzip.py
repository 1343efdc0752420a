"""KVzip (arXiv 2505.23416): what the model looks at when it has to repeat the text; here a pot's
text at a time."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from infinipot.policies.base import Observation
from infinipot.policies.options import Prompted


@dataclass(frozen=True, kw_only=True)
class KVzip(Prompted):
    """Before each distillation the tokens read since the last are read once more behind the
    catalyst, piece by piece, and forgotten again: reading costs twice. Older survivors, whose text
    is gone, keep the score they once had."""

    name = "kvzip"
    summary = "what is looked at when the text is read once more (KVzip)"
    paper = "arXiv 2505.23416"

    catalyst: str | None = "repeat"
    """The prompt behind which the text is read once more: `repeat`, another name, or a text of
    several words."""
    score_memory: float | str = 1.0
    """How much of its earlier score an entry keeps (0 to 1): the text of older survivors cannot be
    read once more."""

    def needs(self) -> frozenset[str]:
        return frozenset({"catalyst", "replay"})

    def score(self, seen: Observation) -> Tensor:
        return seen.given("replay")
