"""TOVA (arXiv 2401.06104): entries that the newest token attends to, the mean over heads."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from infinipot.checks import whole_number
from infinipot.policies.base import Observation
from infinipot.policies.options import Attended


@dataclass(frozen=True, kw_only=True)
class Tova(Attended):
    """As published, one entry leaves per token: distill_to is one less than pot_size. InfiniPot's
    paper calls this criterion in its own loop "without CaP and NuC"."""

    name = "tova"
    summary = "what the newest token attends to, all heads together (TOVA)"
    paper = "arXiv 2401.06104"

    window: int = 1
    """Number of newest tokens whose attention counts."""
    shared_heads: bool = True
    """Whether all heads of a layer keep the same entries, by the mean of their scores."""

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number("window", self.window, 1)

    def needs(self) -> frozenset[str]:
        return frozenset({"newest"})

    def score(self, layer: Observation) -> Tensor:
        return layer.require("newest")
