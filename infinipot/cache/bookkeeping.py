"""What a pot stores beside its entries."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

import torch
from torch import Tensor

NEWEST = 32
"""How many of the last token ids are stored, for the catalyst `plain`."""
UNSAVED = {"saved": False}
"""Metadata of a field that a pot file does not store."""


@dataclass(eq=False, repr=False)
class Bookkeeping:
    """All state of a pot that is not in its layers. A new field is added only here.

    Tensors are replaced, never written to, except `newest`.
    """

    pinned: int = 0
    """Entries at the start that no distillation touches."""
    tokens_read: int = 0
    """During a recording: since its start."""
    distillations: int = 0
    distill_s: float = field(default=0.0, metadata=UNSAVED)
    hidden: Tensor | None = None
    """The last token's final hidden state [B, 1, hidden], which predicts the next token."""
    logits: Tensor | None = field(default=None, metadata=UNSAVED)
    """Next-token logits [1, V], if a step has computed them already."""
    novelty: Tensor = field(default_factory=lambda: torch.zeros(1, 0))
    """NuC [B, F] of the F tokens since the last distillation."""
    fresh: Tensor = field(default_factory=lambda: torch.zeros(1, 0, dtype=torch.long))
    """Ids [B, F] of these tokens, in a pot that distils."""
    newest: Tensor = field(default_factory=lambda: torch.zeros(1, NEWEST, dtype=torch.long))
    """The last token ids [B, 32], written in place."""

    def note(self, books: Bookkeeping) -> None:
        """Replace all fields by those of `books`."""
        newest = self.newest.copy_(books.newest)
        vars(self).update(vars(books))
        self.newest = newest

    def snapshot(self) -> Bookkeeping:
        """A copy without the logits, which follow from the hidden state."""
        fields_now = {name: getattr(self, name) for name in FIELDS}
        return Bookkeeping(**{**fields_now, "logits": None, "newest": self.newest.clone()})


FIELDS = [item.name for item in fields(Bookkeeping)]
SAVED = [item.name for item in fields(Bookkeeping) if item.metadata.get("saved", True)]
