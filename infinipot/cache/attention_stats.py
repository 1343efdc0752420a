"""Attention statistics of a layer, collected during reading, for policies that need them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from infinipot.scoring.representativeness import Scoring, received

STORED = ("received", "queries", "hidden_states")
"""What a layer stores of them."""


@dataclass(frozen=True)
class AttentionStats:
    """Immutable, so that marks and copies of a pot can share it.

    counts: whether to compute `received`, the sum of attention that each entry received since it
    was read, [B, H, P] float32. rows: number of newest tokens with stored `queries`, [B, H, at most
    rows, D], before rotary embedding. hidden_rows: number of newest tokens with stored
    `hidden_states`, [B, at most hidden_rows, hidden], as the attention module gets them.
    """

    counts: bool = False
    rows: int = 0
    hidden_rows: int = 0
    received: Tensor | None = None
    queries: Tensor | None = None
    hidden_states: Tensor | None = None

    def after(self, raw: Tensor, query: Tensor, key: Tensor, scoring: Scoring) -> AttentionStats:
        """The statistics after T more tokens. raw, query: their queries before and after rotation
        [B, H, T, D]. key: rotated keys of all entries [B, K, N, D]."""
        total = self.received
        queries = self.queries
        if self.counts:
            total = received(query, key, scoring)
            if self.received is not None:
                total[..., : self.received.shape[-1]] += self.received
        if self.rows:
            queries = newest_rows(queries, raw, self.rows)
        return replace(self, received=total, queries=queries)

    def with_hidden(self, states: Tensor) -> AttentionStats:
        """The statistics with the hidden states of T more tokens [B, T, hidden]."""
        if not self.hidden_rows:
            return self
        return replace(
            self, hidden_states=newest_rows(self.hidden_states, states, self.hidden_rows)
        )

    def select(self, indices: Tensor) -> AttentionStats:
        """The statistics after a distillation that keeps the entries at `indices` [B, K, C]."""
        if self.received is None:
            return self
        groups = self.received.shape[1] // indices.shape[1]
        rows = indices.repeat_interleave(groups, dim=1)
        return replace(self, received=self.received.gather(2, rows))

    def state(self) -> dict[str, Tensor]:
        return {name: x for name in STORED if (x := getattr(self, name)) is not None}

    def with_state(self, state: dict[str, Tensor]) -> AttentionStats:
        stored: dict[str, Any] = {name: state.get(name) for name in STORED}
        return replace(self, **stored)


def newest_rows(old: Tensor | None, new: Tensor, count: int) -> Tensor:
    """The newest `count` rows, dimension -2, of the old ones followed by the new ones."""
    if old is not None and new.shape[-2] < count:
        new = torch.cat((old, new), dim=-2)
    return new[..., -count:, :].clone()
