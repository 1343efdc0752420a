"""SnapKV (arXiv 2404.14469): the newest tokens, and entries that they attend to, smoothed along the
text."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from infinipot.checks import whole_number
from infinipot.policies.base import Observation
from infinipot.policies.options import Attended


@dataclass(frozen=True, kw_only=True)
class SnapKV(Attended):
    """The newest tokens are the last before the pot is full; with prefill="whole", the question."""

    name = "snapkv"
    summary = "what the newest 32 tokens attend to, with its neighbours (SnapKV)"
    paper = "arXiv 2404.14469"

    window: int = 32
    """Number of newest tokens whose attention counts."""

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number("window", self.window, 1)

    def needs(self) -> frozenset[str]:
        return frozenset({"newest"})

    def default_recent(self, budget: int) -> int:
        return min(self.window, budget // 2)

    def default_smoothing(self, budget: int, asked: bool) -> tuple[int, str]:
        return 7, "max"

    def score(self, layer: Observation) -> Tensor:
        before = layer.require("newest").clone()
        before[..., before.shape[-1] - layer.window :] = 0  # the window itself gets no score
        return before
