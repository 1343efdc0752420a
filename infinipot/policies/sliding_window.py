"""Sliding-window attention (Longformer, arXiv 2004.05150): only the newest entries."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from infinipot.checks import whole_number
from infinipot.policies.base import Observation, Policy


@dataclass(frozen=True, kw_only=True)
class SlidingWindow(Policy):
    name = "sliding_window"
    summary = "the newest entries (sliding-window attention)"
    paper = "arXiv 2004.05150"

    sinks: int = 0
    """First entries after the pinned ones that always stay, counted in distill_to."""

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number("sinks", self.sinks, 0)

    def score(self, layer: Observation) -> Tensor:
        return layer.index.double()
