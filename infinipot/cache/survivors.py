"""What a layer stores about the entries that have survived a distillation."""

from __future__ import annotations

import torch
from torch import Tensor

FIELDS = ("index", "novelty", "past")


class SurvivorRecords:
    """index: place in the text [B, K, S] int64. novelty: NuC [B, K, S] float32. past: the score at
    the last distillation [B, K, S] float32, or None if the policy does not need it."""

    index: Tensor
    novelty: Tensor
    past: Tensor | None = None

    def survivors(self) -> dict[str, Tensor]:
        """The records by name, [B, K, S] each."""
        return {name: x for name in FIELDS if (x := getattr(self, name, None)) is not None}

    def copy_survivors(self) -> None:
        """Replace the records by copies: a recorded cycle writes into them."""
        for name, x in self.survivors().items():
            setattr(self, name, x.clone())

    def move_survivors(self, places: dict[str, Tensor]) -> None:
        """Copy the records into these tensors, whose addresses a recording uses."""
        for name, place in places.items():
            if getattr(self, name) is not place:  # after a distillation without the recording
                place.copy_(getattr(self, name))
                setattr(self, name, place)

    def restore_survivors(self, state: dict[str, Tensor]) -> None:
        """Replace the records by those of `survivors`."""
        self.index = state["index"]
        self.novelty = state["novelty"]
        self.past = state.get("past")

    def _new_survivors(self, batch: int, heads: int, device: torch.device) -> None:
        self.index = torch.zeros(batch, heads, 0, dtype=torch.int64, device=device)
        self.novelty = torch.zeros(batch, heads, 0, dtype=torch.float32, device=device)

    def _forget_survivors(self) -> None:
        self.index = self.index[..., :0]
        self.novelty = self.novelty[..., :0]
        self.past = None
