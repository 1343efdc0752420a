"""What a layer remembers of the attention it saw while text was read, for policies that judge entries by it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from infinipot.scoring.representativeness import Scoring, received


@dataclass(frozen=True)
class Witness:
    """Never changed, only followed by a new one: so a mark or a copy of a pot needs no copy of it.

    counting: whether `received` is kept, the sum of the attention each entry got since it was read, [B, H, P] float32.
    rows: of how many newest tokens the `queries` are kept, [B, H, at most rows, D], before rotary embedding; 0 keeps none.
    """

    counting: bool = False
    rows: int = 0
    received: Tensor | None = None
    queries: Tensor | None = None

    def seeing(self, raw: Tensor, query: Tensor, key: Tensor, scoring: Scoring) -> Witness:
        """After T more tokens: queries raw and rotated [B, H, T, D], rotated keys of all entries [B, K, N, D]."""
        total, queries = self.received, self.queries
        if self.counting:
            total = received(query, key, scoring)
            if self.received is not None:
                total[..., : self.received.shape[-1]] += self.received
        if self.rows:
            queries = (raw if queries is None else torch.cat((queries, raw), dim=2))[:, :, -self.rows :].clone()
        return replace(self, received=total, queries=queries)

    def keeping(self, slots: Tensor) -> Witness:
        """After a distillation that kept the entries at `slots` [B, K, C]."""
        if self.received is None:
            return self
        groups = self.received.shape[1] // slots.shape[1]
        return replace(self, received=self.received.gather(2, slots.repeat_interleave(groups, dim=1)))

    def state(self) -> dict[str, Tensor]:
        return {name: x for name in ("received", "queries") if (x := getattr(self, name)) is not None}

    def restored(self, state: dict[str, Tensor]) -> Witness:
        return replace(self, received=state.get("received"), queries=state.get("queries"))
