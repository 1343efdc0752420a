"""Storage of vectors in fixed slots, in the model's type or in eight bits."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from infinipot.kernels import distill
from infinipot.machine import on_device

QUANTISED = {"int8": (torch.int8, 127.0), "fp8": (torch.float8_e4m3fn, 448.0)}
"""Eight-bit types by name, each with its largest number in use."""


class Slots:
    """Vectors [B, K, size, D].

    Eight-bit kinds scale each vector by its largest element (one float32 a vector). Reading them
    returns new tensors. Moving an entry moves its bits, so that distillations add no error.
    """

    def __init__(
        self, like: Tensor, size: int, kind: str | None = None, data: Tensor | None = None
    ) -> None:
        """data: memory for the vectors, if it is there already; only without `kind`."""
        self.dtype = like.dtype
        self.largest = 0.0
        stored = like.dtype
        if kind is not None:
            stored, self.largest = QUANTISED[kind]
        shape = (*like.shape[:2], size)
        self.scale: Tensor | None = None
        if data is not None:
            self.data = data
            return
        with torch.inference_mode(False):  # the pot may be used outside inference mode later
            self.data = torch.zeros(*shape, like.shape[-1], dtype=stored, device=like.device)
            if self.largest:
                self.scale = torch.ones(*shape, 1, dtype=torch.float32, device=like.device)

    @property
    def size(self) -> int:
        return self.data.shape[2]

    @property
    def tensors(self) -> list[Tensor]:
        if self.scale is None:
            return [self.data]
        return [self.data, self.scale]

    def write(self, start: int, x: Tensor) -> None:
        """Write x [B, K, T, D] to the slots from `start` on."""
        place = slice(start, start + x.shape[2])
        if self.scale is None:
            self.data[:, :, place] = x
            return
        # a GPU divides by a number in this way: bits are equal on all devices
        scale = x.float().abs().amax(dim=-1, keepdim=True).clamp_min(1e-12) * (1 / self.largest)
        scaled = x.float() / scale
        if self.data.dtype is torch.int8:
            scaled = scaled.round()
        self.data[:, :, place] = scaled.to(self.data.dtype)
        self.scale[:, :, place] = scale

    def read(self, start: int, stop: int) -> Tensor:
        """The vectors in slots start .. stop-1, [B, K, stop-start, D]. A view, except for eight-bit
        kinds."""
        return self.numbers(*(x[:, :, start:stop] for x in self.tensors))

    def numbers(self, data: Tensor, scale: Tensor | None = None) -> Tensor:
        """Vectors from what is stored of them."""
        if scale is None:
            return data
        return (data.float() * scale).to(self.dtype)

    def move(self, start: int, sources: Tensor) -> None:
        """Copy the slots at `sources` [B, K, C] to the slots from `start` on."""
        *heads, size = self.data.shape[:3]
        first = torch.arange(0, math.prod(heads) * size, size, device=sources.device)
        rows = (sources + first.view(*heads, 1)).flatten()
        for buffer in self.tensors:
            bits = buffer
            if buffer.dtype is torch.float8_e4m3fn:  # some devices cannot index eight-bit floats
                bits = buffer.view(torch.int8)
            # whole vectors: `gather` would copy number by number
            kept = bits.flatten(0, 2).index_select(0, rows)
            bits[:, :, start : start + sources.shape[-1]] = kept.view(*sources.shape, -1)

    def copy(self, data: Tensor | None = None) -> Slots:
        """data: a copy of the vectors, if it is there already."""
        twin = object.__new__(Slots)
        twin.dtype = self.dtype
        twin.largest = self.largest
        twin.data = self.data.clone() if data is None else data
        twin.scale = self.scale
        if self.scale is not None:
            twin.scale = self.scale.clone()
        return twin

    def state(self, length: int) -> dict[str, Tensor]:
        """The first `length` slots, as stored."""
        return {
            name: x[:, :, :length] for name, x in zip(("", "_scale"), self.tensors, strict=False)
        }

    def restore(self, state: dict[str, Tensor]) -> None:
        for buffer, x in zip(self.tensors, state.values(), strict=True):
            buffer[:, :, : x.shape[2]] = x


class Block:
    """The keys and values of L layers of one shape, [L, B, K, size, D] each, in two allocations.

    One allocation a layer would leave gaps in a GPU's memory, and would be slow to copy.
    """

    def __init__(self, layers: int) -> None:
        self.layers = layers
        self.tensors: list[Tensor] = []

    def slots(self, number: int, like: Sequence[Tensor], size: int) -> tuple[Slots, Slots]:
        """The slots of a layer. like: new keys and values [B, K, T, D]."""
        if not self.tensors:
            with torch.inference_mode(False):  # the pot may be used outside inference mode later
                self.tensors = [
                    x.new_zeros(self.layers, *x.shape[:2], size, x.shape[3]) for x in like
                ]
        keys, values = (
            Slots(x, size, data=block[number]) for x, block in zip(like, self.tensors, strict=True)
        )
        return keys, values

    def copy(self) -> Block:
        twin = Block(self.layers)
        with torch.inference_mode(False):
            twin.tensors = [x.clone() for x in self.tensors]
        return twin


def read_slots(stored: Sequence[Slots], start: int, stop: int) -> Tensor:
    """`Slots.read` for the slots of L layers of one shape and type, [L, K, stop-start, D]."""
    buffers = zip(*(slots.tensors for slots in stored), strict=True)
    return stored[0].numbers(*(torch.cat([x[:, :, start:stop] for x in own]) for own in buffers))


def compact_slots(stored: Sequence[Slots], indices: Tensor, pinned: int) -> None:
    """`Slots.move(pinned, indices[l, :, pinned:])` for the slots of L layers, in one operation on a
    GPU, for eight-bit kinds in two. indices: [L, K, C] int64, ascending. Slots are of one shape and
    type."""
    for buffers in zip(*(slots.tensors for slots in stored), strict=True):
        first = buffers[0]
        addresses = on_device([x.data_ptr() for x in buffers], first.device)
        distill.compact(
            addresses, indices, pinned, first.shape[2], first.shape[3] * first.element_size()
        )
