"""The slots of a layer's keys and values together."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from infinipot.cache.storage import Block, Slots


class SlotPair:
    """slots: of the raw keys and of the values. size, kind: as in `PotLayer`."""

    slots: tuple[Slots, Slots]
    size: int | None
    kind: str | None
    dtype: torch.dtype
    device: torch.device
    block: Block | None = None
    """Memory that the layer shares with others; None: its own."""
    number = 0
    """The layer's number in the block."""
    in_block = False
    """Whether the slots are part of the block. A restored pot has fewer slots at first."""

    def share(self, block: Block | None, number: int) -> None:
        """Use a part of this memory for the slots."""
        self.block = block
        self.number = number

    def new_slots(self, size: int, key: Tensor, value: Tensor) -> tuple[Slots, Slots]:
        """Empty slots for entries like key and value [B, K, T, D]."""
        self.in_block = self.block is not None and size == self.size
        if self.block is not None and self.in_block:
            return self.block.slots(self.number, (key, value), size)
        return Slots(key, size, self.kind), Slots(value, size, self.kind)

    def copy_slots(self, block: Block | None) -> tuple[Slots, Slots]:
        """A copy of the slots. block: a copy of the layer's block, which has it already."""
        keys, values = self.slots
        if block is None or not self.in_block:
            return keys.copy(), values.copy()
        key_data, value_data = block.tensors
        return keys.copy(key_data[self.number]), values.copy(value_data[self.number])

    @property
    def keys(self) -> Tensor:
        """Raw keys of all slots, [B, K, size, D]."""
        return self.slots[0].read(0, self.slots[0].size)

    @property
    def values(self) -> Tensor:
        return self.slots[1].read(0, self.slots[1].size)

    @property
    def capacity(self) -> int:
        """Number of allocated slots."""
        return self.slots[0].size

    @property
    def width(self) -> int:
        """Number of elements of one token's keys and values, in all heads."""
        return sum(slots.data.shape[1] * slots.data.shape[3] for slots in self.slots)

    def read_values(self, start: int, stop: int) -> Tensor:
        return self.slots[1].read(start, stop)

    @property
    def shape(self) -> tuple[Any, ...]:
        """What layers must share to be in one `Block`."""
        shapes = [(*slots.data.shape[:2], slots.data.shape[3]) for slots in self.slots]
        return (*shapes, self.dtype, self.device)

    @property
    def place(self) -> tuple[int, ...]:
        """Address of the raw keys, of the values, the capacity, and for eight-bit kinds the addresses of
        both scales."""
        pairs = zip(*(slots.tensors for slots in self.slots), strict=True)
        keys, values, *scales = [x.data_ptr() for pair in pairs for x in pair]
        return keys, values, self.capacity, *scales
