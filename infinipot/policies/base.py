"""What a policy is: given what was observed of a full pot, it says which entries survive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from infinipot.selection import choose, pool


@dataclass(frozen=True, kw_only=True)
class Observation:
    """One layer of a full pot, as a policy sees it. `P` counts the entries that may be distilled; pinned ones are not among them.

    keys, values     [B, K, P, D]  keys before rotary embedding
    rotated          [B, K, P, D]  keys as attention reads them
    index            [B, K, P]     place of each entry's token in the text, int64
    novelty          [B, K, P]     NuC in nats, float32; None unless the policy needs "novelty"
    catalyst         [B, K, P]     CaP representativeness, reduced to KV heads, float32; None unless the policy needs "catalyst"
    share                          part of the free slots that novelty fills, 0 .. 1
    sinks, recent                  how many of the first and of the last entries must stay
    pool, pool_kind                how scores are smoothed along the slots
    """

    keys: Tensor
    values: Tensor
    rotated: Tensor
    index: Tensor
    novelty: Tensor | None
    catalyst: Tensor | None
    share: float
    sinks: int
    recent: int
    pool: int
    pool_kind: str


class Policy:
    """How survivors are chosen. To add one: a file in this folder, a line in `policies/__init__.py`, a row in the tests' table."""

    name: ClassVar[str]
    summary: ClassVar[str]
    sinks: ClassVar[int] = 0
    """Default number of sinks: the first entries of the text, which always stay."""
    reads: ClassVar[Literal["pot", "ends", "all"]] = "pot"
    """What is read: everything into a bounded pot, only the two ends of the text, or everything without a bound."""

    def needs(self, share: float) -> frozenset[str]:
        """Which of {"novelty", "catalyst"} must be observed, given novelty's share of the slots."""
        return frozenset()

    def score(self, seen: Observation) -> Tensor | None:
        """How much each entry deserves to stay, [B, K, P]; None if novelty alone decides."""
        raise TypeError(f"policy {self.name!r} never distils")

    def share(self, wanted: float) -> float:
        """Novelty's share of the free slots, given the one wanted: none unless the policy says so."""
        return 0.0

    def keep(self, seen: Observation, budget: int) -> Tensor:
        """Indices [B, K, budget] of the entries that stay, ascending, sinks and recent ones among them."""
        scores = self.score(seen)
        scores = None if scores is None else pool(scores, seen.pool, seen.pool_kind)
        share = self.share(seen.share)
        return choose(budget, novelty=seen.novelty, scores=scores, share=share, sinks=seen.sinks, recent=seen.recent)
