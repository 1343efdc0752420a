"""Layers with a sliding window of their own."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from infinipot.cache.rope import Rotation
from infinipot.compat import CacheLayerMixin


class WindowLayer(CacheLayerMixin):
    """Keeps its window as without a pot: the last window-1 entries and the current chunk.

    Only distances matter inside a window. Positions grow to the end of the table, then restart at 0,
    and all keys are rotated anew.
    """

    is_sliding = True
    is_compileable = is_croppable = False
    keys: Tensor
    values: Tensor
    rotated: Tensor

    def __init__(self, window: int, rotation: Rotation | None) -> None:
        super().__init__()
        self.window = window
        self.rotation = rotation
        self.peak = self.position = 0

    @property
    def length(self) -> int:
        if self.is_initialized:
            return self.keys.shape[2]
        return 0

    @property
    def width(self) -> int:
        return sum(x.shape[1] * x.shape[3] for x in (self.keys, self.values))

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.device = key_states.device
        self.dtype = key_states.dtype
        self.keys = self.rotated = key_states[:, :, :0]
        self.values = value_states[:, :, :0]
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        fresh = key_states.shape[2]
        length = self.length
        if self.rotation is not None:
            span = max(4 * self.window, self.window + fresh)
            self.rotation.reserve(span, key_states.device)
            if self.position + fresh > span:
                self.rotated = self.rotation.rotate(self.keys, 0)
                self.position = length
            rotated = self.rotation.rotate(key_states, self.position)
        else:
            rotated = key_states
        self.position += fresh
        keys = torch.cat((self.keys, key_states), dim=2)
        values = torch.cat((self.values, value_states), dim=2)
        rotated = torch.cat((self.rotated, rotated), dim=2)
        self.note_peak(keys.shape[2])
        newest = slice(max(0, keys.shape[2] - self.window + 1), None)
        self.keys = keys[:, :, newest].clone()
        self.values = values[:, :, newest].clone()
        self.rotated = rotated[:, :, newest].clone()
        return rotated, values

    def note_peak(self, peak: int) -> None:
        """Note a number of entries at one moment."""
        self.peak = max(self.peak, peak)

    def rotate_queries(self, query: Tensor) -> Tensor:
        if self.rotation is None:
            return query
        return self.rotation.rotate(query, self.position - query.shape[-2])

    def mark(self) -> Any:
        entries = None
        if self.is_initialized:
            entries = (self.keys, self.values, self.rotated)
        return entries, self.position  # update makes new tensors, so these stay as they are

    def rollback(self, mark: Any) -> None:
        entries, self.position = mark
        self.is_initialized = entries is not None
        if entries is not None:
            self.keys, self.values, self.rotated = entries

    def copy(self) -> WindowLayer:
        return copy.copy(self)  # tensors are never written to: update makes new ones

    def state(self) -> dict[str, Tensor]:
        return {"keys": self.keys, "values": self.values, "rotated": self.rotated}

    def restore(
        self, state: dict[str, Tensor], position: int, peak: int, dtype: torch.dtype
    ) -> None:
        self.lazy_initialization(state["keys"][:, :, :0], state["values"][:, :, :0])
        self.keys = state["keys"]
        self.values = state["values"]
        self.rotated = state["rotated"]
        self.position = position
        self.peak = peak

    def entry_bytes(self) -> int:
        if self.is_initialized:
            return sum(x.nbytes for x in (self.keys, self.values, self.rotated))
        return 0

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return self.window
