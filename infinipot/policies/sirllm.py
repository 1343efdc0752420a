"""SirLLM (ACL 2024, long.143): the tokens of the highest cross-entropy, the same in all heads, behind the first four."""

from __future__ import annotations

from torch import Tensor

from infinipot.policies.base import Observation, Policy


class SirLLM(Policy):
    name = "sirllm"
    summary = "the most surprising tokens, the same in all heads (SirLLM)"
    sinks = 4

    def needs(self, share: float) -> frozenset[str]:
        return frozenset({"novelty"})

    def share(self, wanted: float) -> float:
        return 1.0

    def score(self, seen: Observation) -> Tensor | None:
        return None
