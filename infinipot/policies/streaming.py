"""StreamingLLM (arXiv 2309.17453): the first entries and the newest, in the loop of distillations."""

from __future__ import annotations

from torch import Tensor

from infinipot.policies.base import Observation, Policy
from infinipot.selection import choose


class Streaming(Policy):
    name = "streaming"
    summary = "the first entries and the newest (StreamingLLM)"
    sinks = 4

    def keep(self, seen: Observation, budget: int) -> Tensor:
        return choose(budget, scores=seen.index.double(), sinks=seen.sinks, recent=seen.recent)
