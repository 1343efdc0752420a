"""InfiniPot (arXiv 2410.01518): novelty first, then attention from the catalyst, per head. Without a
question `Outliers` chooses instead, unless options ask for the paper's way.

The paper does not smooth scores. Averages over 7 slots keep phrases whole, for example all digits of
a number. A question attends to the start of its answer: with enough room, the entries after a strong
entry stay, too. A twelfth of the survivors is the newest text (docs/results.md).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from infinipot.catalysts import PROMPTS
from infinipot.policies.base import QUESTION, Observation, Policy
from infinipot.policies.options import Attended, Prompted, check_prompt, check_share
from infinipot.policies.outliers import Outliers


@dataclass(frozen=True, kw_only=True)
class InfiniPot(Prompted, Attended):
    """Novel tokens first, then tokens that a prompt, the catalyst, attends to."""

    name = "infinipot"
    summary = "novel tokens, and those the catalyst attends to (InfiniPot)"
    paper = "arXiv 2410.01518"
    stacks = True

    novelty: float = 0.25
    """Share for novelty (NuC) of the slots beside `sinks` and `recent`: 0 is CaP alone, 1 NuC alone."""
    contrast: str | None = None
    """Divide the catalyst's attention by a second prompt's, to discount tokens that every prompt
    attends to: `unrelated` is made for it."""

    def __post_init__(self) -> None:
        check_share("novelty", self.novelty)
        super().__post_init__()
        check_prompt("contrast", self.contrast, tuple(PROMPTS))
        if self.contrast is not None and self.novelty >= 1:
            raise ValueError(
                f"contrast={self.contrast!r} goes by the catalyst's attention: "
                "use policy 'infinipot' with novelty below 1"
            )
        if self.contrast is not None and self.catalyst == "plain":
            raise ValueError(
                f"contrast={self.contrast!r} divides by a second prompt: not with catalyst='plain'"
            )

    def for_catalyst(self, kind: str | None) -> Policy:
        plain = InfiniPot(sinks=self.sinks, recent=self.recent)
        if kind in QUESTION or self != plain:
            return self
        return Outliers(sinks=self.sinks, recent=self.recent)

    def default_recent(self, budget: int) -> int:
        return budget // 12

    def default_smoothing(self, budget: int, asked: bool) -> tuple[int, str]:
        if asked and budget >= 3072:
            return 45, "trailing"
        return 7, "avg"

    def needs(self) -> frozenset[str]:
        needs = set()
        if self.novelty > 0:
            needs.add("novelty")
        if self.novelty < 1:
            needs.add("catalyst")
        return frozenset(needs)

    def score(self, layer: Observation) -> Tensor | None:
        return layer.catalyst
