"""KVzip (arXiv 2505.23416): entries that the model attends to when it repeats the text; here one
pot at a time."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from infinipot.policies.base import Observation
from infinipot.policies.options import Prompted


@dataclass(frozen=True, kw_only=True)
class KVzip(Prompted):
    """Each distillation reads the tokens since the last one again behind the catalyst, piece by piece,
    and removes them again: reading takes twice the time. Older survivors keep their scores, as their
    text is gone."""

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

    def score(self, layer: Observation) -> Tensor:
        return layer.require("replay")
