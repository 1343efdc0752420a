"""SnapKV (arXiv 2404.14469): what the newest tokens attend to, smoothed along the text; they
themselves stay."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from infinipot.checks import whole_number
from infinipot.policies.base import Observation
from infinipot.policies.options import Attended


@dataclass(frozen=True, kw_only=True)
class SnapKV(Attended):
    """Inside the bounded loop the newest tokens are those read last before the pot was full; with
    prefill="whole", those of the question."""

    name = "snapkv"
    summary = "what the newest 32 tokens attend to, with its neighbours (SnapKV)"
    paper = "arXiv 2404.14469"

    window: int = 32
    """How many newest tokens' attention counts."""

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number("window", self.window, 1)

    def needs(self) -> frozenset[str]:
        return frozenset({"newest"})

    def default_recent(self, budget: int) -> int:
        return min(self.window, budget // 2)

    def default_smoothing(self, budget: int, asked: bool) -> tuple[int, str]:
        return 7, "max"

    def score(self, seen: Observation) -> Tensor:
        before = seen.given("newest").clone()
        before[..., before.shape[-1] - seen.window :] = 0  # the window votes, and is not voted for
        return before
