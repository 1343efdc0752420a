"""SirLLM (ACL 2024, long.143): the first four tokens, and those of the highest cross-entropy, the
same in all heads."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from infinipot.policies.base import Observation, fixed
from infinipot.policies.options import Ends


@dataclass(frozen=True, kw_only=True)
class SirLLM(Ends):
    """The criterion alone, as in InfiniPot's paper. SirLLM's decay of entropies between the turns of
    a chat is left out."""

    name = "sirllm"
    summary = "the most surprising tokens, the same in all heads (SirLLM)"
    paper = "ACL 2024, long.143"
    novelty = fixed(1.0)

    sinks: int = 4
    """First entries after the pinned ones that always stay, counted in distill_to."""

    def needs(self) -> frozenset[str]:
        return frozenset({"novelty"})

    def score(self, layer: Observation) -> Tensor | None:
        return None
