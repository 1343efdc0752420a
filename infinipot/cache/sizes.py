"""The sizes of a pot, in entries and bytes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from infinipot.cache.layer import PotLayer
from infinipot.cache.storage import Block


class PotSizes:
    """What a pot says about its layers together."""

    layers: list[Any]
    bounded: list[PotLayer]
    block: Block | None
    hidden: Tensor | None

    @property
    def length(self) -> int:
        """Entries per head, in the longest bounded layer."""
        return max(layer.length for layer in self.bounded)

    @property
    def entries(self) -> int:
        """Entries per head, the mean over the bounded layers, rounded up."""
        return -(-sum(layer.length for layer in self.bounded) // len(self.bounded))

    @property
    def room(self) -> float:
        """How many more entries fit into every layer; infinite without a bound."""
        rooms = [layer.size - layer.length for layer in self.bounded if layer.size is not None]
        return min(rooms, default=torch.inf)

    @property
    def peak(self) -> int:
        """Most entries of a bounded layer at any moment; the mean over layers, rounded up, if they
        differ in size."""
        peaks = [layer.peak for layer in self.bounded]
        if len({layer.size for layer in self.bounded}) > 1:
            return -(-sum(peaks) // len(peaks))
        return max(peaks)

    @property
    def entry_bytes(self) -> int:
        if self.block is not None and len(self.bounded) == len(self.layers):
            return len(self.layers) * self.bounded[0].entry_bytes()  # all are alike
        return sum(layer.entry_bytes() for layer in self.layers)

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one token's keys and values in all layers of an ordinary cache."""
        if self.hidden is None:
            return 0
        return sum(layer.width for layer in self.layers) * self.hidden.element_size()
