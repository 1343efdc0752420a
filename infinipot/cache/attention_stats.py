"""What a layer remembers of the attention it saw while text was read, for policies that judge
entries by it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from infinipot.scoring.representativeness import Scoring, received


@dataclass(frozen=True)
class AttentionStats:
    """Never changed, only replaced: so a mark or a copy of a pot needs no copy of it.

    counts: whether `received` is kept, the sum of the attention each entry got since it was read,
    [B, H, P] float32. rows: of how many newest tokens the `queries` are kept, [B, H, at most rows,
    D], before rotary embedding; 0 keeps none.
    """

    counts: bool = False
    rows: int = 0
    received: Tensor | None = None
    queries: Tensor | None = None

    def after(self, raw: Tensor, query: Tensor, key: Tensor, scoring: Scoring) -> AttentionStats:
        """After T more tokens: queries raw and rotated [B, H, T, D], rotated keys of all entries
        [B, K, N, D]."""
        total = self.received
        queries = self.queries
        if self.counts:
            total = received(query, key, scoring)
            if self.received is not None:
                total[..., : self.received.shape[-1]] += self.received
        if self.rows:
            queries = (raw if queries is None else torch.cat((queries, raw), dim=2))[
                :, :, -self.rows :
            ].clone()
        return replace(self, received=total, queries=queries)

    def select(self, indices: Tensor) -> AttentionStats:
        """After a distillation that kept the entries at `indices` [B, K, C]."""
        if self.received is None:
            return self
        groups = self.received.shape[1] // indices.shape[1]
        return replace(
            self, received=self.received.gather(2, indices.repeat_interleave(groups, dim=1))
        )

    def state(self) -> dict[str, Tensor]:
        return {
            name: x for name in ("received", "queries") if (x := getattr(self, name)) is not None
        }

    def with_state(self, state: dict[str, Tensor]) -> AttentionStats:
        return replace(self, received=state.get("received"), queries=state.get("queries"))
