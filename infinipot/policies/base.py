"""What a policy is: given what was observed of a full pot, it says which entries survive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from infinipot.scoring.selection import choose, pool


@dataclass(frozen=True, kw_only=True)
class Observation:
    """One layer of a full pot, as a policy sees it. `P` counts the entries that may be distilled; pinned ones are not among them.

    keys, values     [B, K, P, D]  keys before rotary embedding
    rotated          [B, K, P, D]  keys as attention reads them
    index            [B, K, P]     place of each entry's token in the text, int64
    novelty          [B, K, P]     NuC in nats, float32
    catalyst         [B, K, P]     CaP representativeness: attention received from the catalyst's rows together
    received         [B, K, P]     attention received from all tokens of the text since the entry was read, together
    newest           [B, K, P]     attention received from the newest `window` tokens of the text together
    replay           [B, K, P]     most attention received from any one row while the text is read once more behind the catalyst
    past             [B, K, S]     the scores with which the S first entries survived last time; None unless scores persist
    share                          part of the free slots that novelty fills, 0 .. 1
    sinks, recent                  how many of the first and of the last entries must stay
    window                         how many newest tokens `newest` speaks of
    pool, pool_kind                how scores are smoothed along the slots
    shared_heads                   whether all heads keep the same entries
    persist                        how much of its past score an entry keeps, 0 .. 1; "once": all of it, and no other

    Attention is float32, reduced to KV heads. What a policy does not need (`Policy.needs`) is None.
    """

    keys: Tensor
    values: Tensor
    rotated: Tensor
    index: Tensor
    novelty: Tensor | None = None
    catalyst: Tensor | None = None
    received: Tensor | None = None
    newest: Tensor | None = None
    replay: Tensor | None = None
    past: Tensor | None = None
    share: float = 0.0
    sinks: int = 0
    recent: int = 0
    window: int = 0
    pool: int = 0
    pool_kind: str = "avg"
    shared_heads: bool = False
    persist: float | str = 0.0

    def given(self, name: str) -> Tensor:
        """What a policy needs and has therefore been given."""
        found: Tensor | None = getattr(self, name)
        if found is None:
            raise TypeError(f"{name} was not observed: a policy must name it in `needs`")
        return found


class Policy:
    """How survivors are chosen. To add one: a file in this folder, a line in `policies/__init__.py`, a test.

    The class variables are defaults for the options of the same names; `recent` and `smoothing` give those that depend on sizes.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    sinks: ClassVar[int] = 0
    window: ClassVar[int] = 0
    shared_heads: ClassVar[bool] = False
    persist: ClassVar[float | str] = 0.0
    catalyst: ClassVar[str | None] = None
    """The kind of catalyst, where it is not the question, or `general` without one."""
    grouped: ClassVar[bool] = False
    """Whether distant positions are shared by groups of entries (SelfExtend)."""
    reads: ClassVar[Literal["pot", "ends", "all"]] = "pot"
    """What is read: everything into a bounded pot, only the two ends of the text, or everything without a bound."""

    def recent(self, budget: int, window: int) -> int:
        """Default of the option `recent`, given |C| and the option `window`."""
        return 0

    def smoothing(self, budget: int, asked: bool) -> tuple[int, str]:
        """Defaults of the options `pool` and `pool_kind`, given |C| and whether the question is known."""
        return 0, "avg"

    def needs(self, share: float) -> frozenset[str]:
        """Which of {"novelty", "catalyst", "received", "newest", "replay"} must be observed, given novelty's share of the slots."""
        return frozenset()

    def score(self, seen: Observation) -> Tensor | None:
        """How much each entry deserves to stay, [B, K, P]; None if novelty alone decides."""
        raise TypeError(f"policy {self.name!r} never distils")

    def share(self, wanted: float) -> float:
        """Novelty's share of the free slots, given the one wanted: none unless the policy says so."""
        return 0.0

    def judge(self, seen: Observation) -> Tensor | None:
        """The score with what the options say about heads and the past."""
        scores = self.score(seen)
        if scores is None:
            return None
        if seen.shared_heads:
            scores = scores.mean(dim=1, keepdim=True).expand_as(scores)
        if seen.past is None:
            return scores if seen.persist != "once" else pool(scores, seen.pool, seen.pool_kind)
        old, new = scores[..., : seen.past.shape[-1]], scores[..., seen.past.shape[-1] :]
        if isinstance(seen.persist, str):  # smoothed among what is new: its neighbours will not be the same again
            return torch.cat((seen.past, pool(new, seen.pool, seen.pool_kind)), dim=-1)
        return torch.cat((torch.maximum(old, seen.persist * seen.past), new), dim=-1)

    def choose(self, seen: Observation, scores: Tensor | None, budget: int) -> Tensor:
        """Indices [B, K, budget] of the entries that stay, ascending, sinks and recent ones among them."""
        smooth = scores if scores is None or seen.persist == "once" else pool(scores, seen.pool, seen.pool_kind)
        share = self.share(seen.share)
        return choose(budget, novelty=seen.novelty, scores=smooth, share=share, sinks=seen.sinks, recent=seen.recent)
