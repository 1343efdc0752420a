"""What a layer stores about the entries that have survived a distillation."""

from __future__ import annotations

import torch
from torch import Tensor

FIELDS = ("index", "novelty", "past")


class SurvivorRecords:
    """index: place in the text [B, K, S] int32. novelty: NuC [B, K, S] float32. past: the score at
    the last distillation [B, K, S] float32, or None if the policy does not need it."""

    index: Tensor
    novelty: Tensor
    past: Tensor | None = None

    def survivors(self) -> dict[str, Tensor]:
        """The records by name, [B, K, S] each."""
        return {name: x for name in FIELDS if (x := getattr(self, name, None)) is not None}

    def restore_survivors(self, state: dict[str, Tensor]) -> None:
        """Replace the records by those of `survivors`."""
        self.index = state["index"].int()
        self.novelty = state["novelty"]
        self.past = state.get("past")

    def _new_survivors(self, batch: int, heads: int, device: torch.device) -> None:
        self.index = torch.zeros(batch, heads, 0, dtype=torch.int32, device=device)
        self.novelty = torch.zeros(batch, heads, 0, dtype=torch.float32, device=device)
