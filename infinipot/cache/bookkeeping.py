"""What a pot stores beside its entries."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

import torch
from torch import Tensor

NEWEST = 32
"""How many of the last token ids are stored, for the catalyst `plain`."""
SAVED = (
    "pinned",
    "tokens_read",
    "distillations",
    "hidden",
    "novelty",
    "fresh",
    "newest",
)
"""What a pot file stores of it."""


@dataclass(eq=False, repr=False)
class Bookkeeping:
    """All state of a pot that is not in its layers. A new field is added only here.

    Tensors are replaced, never written to, except `last_ids`.
    """

    pinned: int = 0
    """Entries at the start that no distillation touches."""
    tokens_read: int = 0
    distillations: int = 0
    distill_s: float = 0.0
    hidden: Tensor | None = None
    """The last token's final hidden state [B, 1, hidden], which predicts the next token."""
    predicted: tuple[Tensor, int] | None = None
    """Next-token logits of several pots [rows, V], if a step has computed them, and this pot's row."""
    novelty: Tensor = field(default_factory=lambda: torch.zeros(1, 0))
    """NuC [B, F] of the first F tokens since the last distillation."""
    unscored: tuple[tuple[Tensor, Tensor], ...] = ()
    """Ids [B, T] and hidden states [B, T, hidden] of the tokens after these, in the order of
    reading."""
    before: Tensor | None = None
    """The hidden state before the first of them; None at the start of a text."""
    fresh_parts: tuple[Tensor, ...] = ()
    """Ids since the last distillation, [B, T] each, in a pot that distils."""
    last_ids: Tensor = field(default_factory=lambda: torch.zeros(1, NEWEST, dtype=torch.long))
    """The last token ids but `unmerged`, [B, 32], written in place."""
    unmerged: tuple[Tensor, ...] = ()
    """Ids [B, T] that are newer than `last_ids`."""

    @property
    def fresh(self) -> Tensor:
        """Ids [B, F] since the last distillation, in a pot that distils."""
        if not self.fresh_parts:
            return self.last_ids[:, :0]
        return torch.cat(self.fresh_parts, dim=1)

    @property
    def newest(self) -> Tensor:
        """The last token ids [B, 32]. It is always the same tensor, which is the catalyst `plain`."""
        if self.unmerged:
            device = self.last_ids.device
            ids = torch.cat([self.last_ids, *(x.to(device) for x in self.unmerged)], dim=1)
            self.last_ids.copy_(ids[:, -NEWEST:])
            self.unmerged = ()
        return self.last_ids

    @property
    def logits(self) -> Tensor | None:
        """Next-token logits [1, V], if a step has computed them."""
        if self.predicted is None:
            return None
        rows, own = self.predicted
        return rows[own : own + 1]

    def note(self, books: Bookkeeping) -> None:
        """Replace all fields by those of `books`."""
        last_ids = self.last_ids.copy_(books.last_ids)
        vars(self).update(vars(books))
        self.last_ids = last_ids

    def snapshot(self) -> Bookkeeping:
        """A copy without the logits, which follow from the hidden state."""
        fields_now = {name: getattr(self, name) for name in FIELDS}
        return Bookkeeping(**{**fields_now, "predicted": None, "last_ids": self.last_ids.clone()})


FIELDS = [item.name for item in fields(Bookkeeping)]
