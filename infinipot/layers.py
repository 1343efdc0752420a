"""One layer's entries: in slots allocated once, or in the sliding window that the layer has by itself.

Keys are kept raw, with a rotated copy beside them that attention reads; the copy is made anew from the raw keys after every distillation,
so nothing drifts.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from infinipot.compat import CacheLayerMixin
from infinipot.positions import Rotation

GROWTH = 1024
"""Slots by which a layer without a bound grows at least."""


class PotOverflow(AssertionError):
    """A layer was asked to hold more than its size: a fault of this library, never of its user."""


class PotLayer(CacheLayerMixin):
    """Entries of one layer in `size` slots, [B, K, size, D]; slots 0 .. length-1 are taken, in text order.

    size None: no bound. reset False: an entry keeps the position at which it was read (the paper's ablation of CR-RoPE).
    `index` [B, K, S] int64 and `novelty` [B, K, S] float32 tell the survivors' place in the text and their NuC.
    """

    is_sliding = False
    is_compileable = False
    is_croppable = False
    window: int | None = None
    keys: Tensor
    values: Tensor
    rotated: Tensor
    index: Tensor
    novelty: Tensor

    def __init__(self, size: int | None, rotation: Rotation | None, reset: bool = True) -> None:
        super().__init__()
        self.size, self.rotation, self.reset = size, rotation, reset
        self.length = self.peak = self.position = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.device, self.dtype = key_states.device, key_states.dtype
        self._allocate(self.size or GROWTH, key_states, value_states)
        batch, heads = key_states.shape[:2]
        self.index = torch.zeros(batch, heads, 0, dtype=torch.int64, device=self.device)
        self.novelty = torch.zeros(batch, heads, 0, dtype=torch.float32, device=self.device)
        self.is_initialized = True

    def _allocate(self, slots: int, key: Tensor, value: Tensor) -> None:
        if self.rotation is not None:
            self.rotation.reserve(slots, key.device)
        with torch.inference_mode(False):  # a pot begun in inference mode may go on outside
            self.keys = torch.zeros(*key.shape[:2], slots, key.shape[-1], dtype=key.dtype, device=key.device)
            self.values = torch.zeros(*value.shape[:2], slots, value.shape[-1], dtype=value.dtype, device=value.device)
            self.rotated = torch.zeros_like(self.keys) if self.rotation is not None else self.keys

    def _turn(self, x: Tensor, start: int) -> Tensor:
        if self.rotation is None:
            return x
        return self.rotation.slots(x, start) if self.reset else self.rotation.anywhere(x, start)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Take new entries [B, K, T, D], keys raw. Returns what attention reads: rotated keys and values of all entries."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start, stop = self.length, self.length + key_states.shape[-2]
        if self.size is not None and stop > self.size:
            raise PotOverflow(f"{stop} entries in a pot of {self.size}")
        if stop > self.keys.shape[2]:
            self._grow(max(stop, 2 * self.keys.shape[2]))
        self.keys[:, :, start:stop] = key_states
        self.values[:, :, start:stop] = value_states
        if self.rotation is not None:
            self.rotated[:, :, start:stop] = self._turn(key_states, self.position)
        self.length, self.position = stop, self.position + stop - start
        self.peak = max(self.peak, stop)
        return self.rotated[:, :, :stop], self.values[:, :, :stop]

    def _grow(self, slots: int) -> None:
        keys, values = self.keys[:, :, : self.length], self.values[:, :, : self.length]
        self._allocate(slots, keys, values)
        self.keys[:, :, : self.length], self.values[:, :, : self.length] = keys, values
        if self.rotation is not None:  # anew: some frequencies depend on the length
            self.rotated[:, :, : self.length] = self._turn(keys, 0)

    def rotate_queries(self, query: Tensor) -> Tensor:
        """Turn the queries [B, H, T, D] of the T newest entries."""
        return self._turn(query, self.position - query.shape[-2])

    def keep(self, indices: Tensor, index: Tensor, novelty: Tensor, pinned: int) -> None:
        """Distil in place: of the slots from `pinned` on, keep those at `indices` [B, K, C] (ascending, counted from `pinned`).

        index, novelty [B, K, P] describe all entries before the distillation.
        """
        length = pinned + indices.shape[-1]
        moved = indices + pinned
        for buffer in {id(b): b for b in (self.keys, self.values, self.rotated)}.values():
            rows = moved[..., None].expand(*moved.shape, buffer.shape[-1])
            buffer[:, :, pinned:length] = buffer.gather(2, rows)
        self.index = torch.cat((index[..., :pinned], index.gather(2, moved)), dim=-1)
        self.novelty = torch.cat((novelty[..., :pinned], novelty.gather(2, moved)), dim=-1)
        self.length = length
        if self.reset:
            self.position = length
            if self.rotation is not None:
                self.rotated[:, :, pinned:length] = self._turn(self.keys[:, :, pinned:length], pinned)

    def mark(self) -> Any:
        return self.length, self.position

    def rollback(self, mark: Any) -> None:
        self.length, self.position = mark

    def copy(self) -> PotLayer:
        twin = copy.copy(self)
        if self.is_initialized:
            for name in ("keys", "values", "index", "novelty"):
                setattr(twin, name, getattr(self, name).clone())
            twin.rotated = self.rotated.clone() if self.rotation is not None else twin.keys
        return twin

    def state(self) -> dict[str, Tensor]:
        """Everything that cannot be computed again, without the empty slots."""
        taken = {"keys": self.keys[:, :, : self.length], "values": self.values[:, :, : self.length]}
        if not self.reset and self.rotation is not None:
            taken["rotated"] = self.rotated[:, :, : self.length]
        return {**taken, "index": self.index, "novelty": self.novelty}

    def restore(self, state: dict[str, Tensor], position: int, peak: int) -> None:
        self.lazy_initialization(state["keys"][:, :, :0], state["values"][:, :, :0])
        length = state["keys"].shape[2]
        if length > self.keys.shape[2]:
            self._allocate(length, state["keys"], state["values"])
        self.keys[:, :, :length], self.values[:, :, :length] = state["keys"], state["values"]
        self.index, self.novelty = state["index"], state["novelty"]
        if self.rotation is not None:
            self.rotated[:, :, :length] = self._turn(state["keys"], 0) if self.reset else state["rotated"]
        self.length, self.position, self.peak = length, position, peak

    def entry_bytes(self) -> int:
        """Bytes of all slots allocated: raw keys, the rotated copy, values, and what is known about survivors."""
        if not self.is_initialized:
            return 0
        buffers = {id(b): b for b in (self.keys, self.values, self.rotated, self.index, self.novelty)}
        return sum(buffer.nbytes for buffer in buffers.values())

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return -1 if self.size is None else self.size


class WindowLayer(CacheLayerMixin):
    """A sliding-window layer keeps its own window, exactly as without a pot: the last window-1 entries and the chunk being read.

    Only distances count inside a window, so positions go on until the table ends and then start again, all keys turned anew.
    """

    is_sliding = True
    is_compileable = False
    is_croppable = False
    keys: Tensor
    values: Tensor
    rotated: Tensor

    def __init__(self, window: int, rotation: Rotation | None) -> None:
        super().__init__()
        self.window, self.rotation = window, rotation
        self.peak = self.position = 0

    @property
    def length(self) -> int:
        return self.keys.shape[2] if self.is_initialized else 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.device, self.dtype = key_states.device, key_states.dtype
        self.keys = self.rotated = key_states[:, :, :0]
        self.values = value_states[:, :, :0]
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        fresh, held = key_states.shape[2], self.keys.shape[2]
        if self.rotation is not None:
            span = max(4 * self.window, self.window + fresh)
            self.rotation.reserve(span, key_states.device)
            if self.position + fresh > span:
                self.rotated, self.position = self.rotation.slots(self.keys, 0), held
            turned = self.rotation.slots(key_states, self.position)
        else:
            turned = key_states
        self.position += fresh
        keys = torch.cat((self.keys, key_states), dim=2)
        values = torch.cat((self.values, value_states), dim=2)
        rotated = torch.cat((self.rotated, turned), dim=2)
        self.peak = max(self.peak, keys.shape[2])
        kept = slice(max(0, keys.shape[2] - self.window + 1), None)
        self.keys, self.values, self.rotated = (x[:, :, kept].clone() for x in (keys, values, rotated))
        return rotated, values

    def rotate_queries(self, query: Tensor) -> Tensor:
        return query if self.rotation is None else self.rotation.slots(query, self.position - query.shape[-2])

    def mark(self) -> Any:
        held = (self.keys, self.values, self.rotated) if self.is_initialized else None
        return held, self.position  # update makes new tensors, so these stay as they are

    def rollback(self, mark: Any) -> None:
        held, self.position = mark
        self.is_initialized = held is not None
        if held is not None:
            self.keys, self.values, self.rotated = held

    def copy(self) -> WindowLayer:
        return copy.copy(self)  # tensors are never written to: update makes new ones

    def state(self) -> dict[str, Tensor]:
        return {"keys": self.keys, "values": self.values, "rotated": self.rotated}

    def restore(self, state: dict[str, Tensor], position: int, peak: int) -> None:
        self.lazy_initialization(state["keys"][:, :, :0], state["values"][:, :, :0])
        self.keys, self.values, self.rotated = state["keys"], state["values"], state["rotated"]
        self.position, self.peak = position, peak

    def entry_bytes(self) -> int:
        return sum(x.nbytes for x in (self.keys, self.values, self.rotated)) if self.is_initialized else 0

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return self.window
