"""SnapKV (arXiv 2404.14469): what the newest tokens attend to, smoothed along the text; they themselves stay."""

from __future__ import annotations

from torch import Tensor

from infinipot.policies.base import Observation, Policy


class SnapKV(Policy):
    """Inside the bounded loop the newest tokens are those read last before the pot was full; with prefill="whole", those of the question."""

    name = "snapkv"
    summary = "what the newest 32 tokens attend to, with its neighbours (SnapKV)"
    window = 32

    def recent(self, budget: int, window: int) -> int:
        return min(window, budget // 2)

    def smoothing(self, budget: int, asked: bool) -> tuple[int, str]:
        return 7, "max"

    def needs(self, share: float) -> frozenset[str]:
        return frozenset({"newest"})

    def score(self, seen: Observation) -> Tensor:
        before = seen.given("newest").clone()
        before[..., before.shape[-1] - seen.window :] = 0  # the window votes, and is not voted for
        return before
