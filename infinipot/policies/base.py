"""What a policy is: given what was observed of a full pot, it says which entries survive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Observation:
    """One layer of a full pot, as a policy sees it. `P` counts the entries that may be distilled; pinned ones are not among them.

    keys, values  [B, K, P, D]  keys before rotary embedding
    index         [B, K, P]     place of each entry's token in the text, int64
    novelty       [B, K, P]     NuC in nats, float32; None unless the policy needs "novelty"
    scores        [B, K, P]     CaP representativeness, reduced to KV heads and pooled, float32; None unless it needs "catalyst"
    share                       part of the free slots that novelty fills, 0 .. 1
    sinks, recent               how many of the first and of the last entries must stay
    """

    keys: Tensor
    values: Tensor
    index: Tensor
    novelty: Tensor | None
    scores: Tensor | None
    share: float
    sinks: int
    recent: int


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

    def keep(self, seen: Observation, budget: int) -> Tensor:
        """Indices [B, K, budget] of the entries that stay, ascending, sinks and recent ones among them."""
        raise TypeError(f"policy {self.name!r} never distils")
