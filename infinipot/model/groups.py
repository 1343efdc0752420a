"""Weights in groups of 32 whole numbers of eight or four bits: one scale each, in four bits also the
least value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from infinipot.kernels import groups as kernels
from infinipot.kernels import native
from infinipot.model.rounding import (
    BITS,
    BLOCK_GROUPS,
    GROUP,
    HEADER,
    Groups,
    by_rows,
    factors_of,
    quantise,
    scales_of,
    without_blocks,
)

KINDS = ("int8", "int4")
BLOCK = {"cpu": 1 << 19}
"""Weights that are unpacked at a time, by kind of device: on a CPU they stay in its cache."""
OTHER_BLOCK = 1 << 26
"""As many as the largest layer of an 8B model has: cuBLAS is slower with a part of its outputs."""
SUMMED = 1 << 20
"""Numbers that are looked at together for NaN and infinity."""
ALL = slice(None)
LEAST_ROWS = 256
"""Rows of a block at least: torch's product of fewer is slow."""


class GroupedWeight(nn.Module):
    """A weight [N, K] as numbers, scales and least values, in one of three forms:

    - int8: numbers [N, G, 32] int8, scale [N, G] float16.
    - int4: numbers [N, G, 16] uint8, with number i in the lower and number i + 16 in the upper bits of
      byte i; scale [N, G] and low, the least values, [N, G] float16.
    - q4_k, on a CPU: numbers as in int4; scale [N, G / 8, 16] uint8 has scales and least values of
      blocks of eight groups, as GGUF's Q4_K does. K is a multiple of 256.

    Else K may be less than 32 G. It is a module, so that an output layer and an embedding can share it.
    """

    numbers: Tensor
    scale: Tensor
    low: Tensor | None

    def __init__(self, tensors: Groups, width: int) -> None:
        super().__init__()
        for name, tensor in zip(("numbers", "scale", "low"), tensors, strict=True):
            self.register_buffer(name, tensor)
        self.width = width
        self.dtype = torch.float32
        """The type in which the layer computes, which `model.to` may change."""

    def compute_in(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    @classmethod
    def empty(cls, shape: tuple[int, int], form: str, device: torch.device) -> GroupedWeight:
        """Room for a weight of this shape [N, K]. On a GPU q4_k becomes int4."""
        outputs, width = shape
        groups = -(-width // GROUP)

        def room(*sizes: int, dtype: torch.dtype) -> Tensor:
            return torch.empty(outputs, *sizes, dtype=dtype, device=device)

        if form == "int8":
            numbers = room(groups, GROUP, dtype=torch.int8)
            return cls((numbers, room(groups, dtype=torch.float16), None), width)
        numbers = room(groups, GROUP // 2, dtype=torch.uint8)
        if form == "q4_k" and in_blocks_on(device):
            header = room(groups // BLOCK_GROUPS, HEADER, dtype=torch.uint8)
            return cls((numbers, header, None), width)
        scale = room(groups, dtype=torch.float16)
        return cls((numbers, scale, torch.empty_like(scale)), width)

    @classmethod
    def of(cls, weight: Tensor, form: str) -> GroupedWeight:
        """A weight [N, K] of floating-point numbers, rounded."""
        outputs, width = weight.shape
        return cls.by_rows(
            (outputs, width), form, weight.device, lambda rows: quantise(weight[rows], form)
        )

    @classmethod
    def by_rows(
        cls,
        shape: tuple[int, int],
        form: str,
        device: torch.device,
        groups: Callable[[slice], Groups],
    ) -> GroupedWeight:
        """A weight of this shape [N, K], whose rows `groups` gives, a few at a time."""
        made = cls.empty(shape, form, device)
        by_rows(shape, device, lambda rows: made.put(rows.start, groups(rows)))
        return made

    def put(self, start: int, tensors: Groups) -> None:
        """Write rows from `start` on."""
        if self.form == "int4":
            tensors = without_blocks(tensors)
        for own, part in zip((self.numbers, self.scale, self.low), tensors, strict=True):
            if own is not None and part is not None:
                own[start : start + part.shape[0]] = part

    @property
    def form(self) -> str:
        if self.scale.dtype == torch.uint8:
            return "q4_k"
        return "int8" if self.low is None else "int4"

    @property
    def bits(self) -> int:
        return BITS[self.form]

    @property
    def shape(self) -> torch.Size:
        return torch.Size((self.numbers.shape[0], self.width))

    @property
    def device(self) -> torch.device:
        return self.numbers.device

    @property
    def nbytes(self) -> int:
        return sum(buffer.nbytes for buffer in self.buffers())

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> GroupedWeight:
        """Follow the model to another device. A change of dtype leaves the scales as they are."""
        sample = fn(torch.empty(0, dtype=self.dtype, device=self.device))
        self.dtype = sample.dtype
        super()._apply(lambda x: x.to(sample.device), recurse)
        self.suit_device()
        return self

    def suit_device(self) -> None:
        """On a GPU, take the form that its kernels know."""
        if self.form == "q4_k" and not in_blocks_on(self.device):
            _, self.scale, self.low = without_blocks(self.part(ALL))

    def finite(self) -> bool:
        """Whether no scale and no least value is NaN or infinity."""
        return all(finite(x) for x in factors_of(self.part(ALL)))

    def into_memory(self) -> None:
        """Read what is still in a file (`in_file.WeightInFile`): nothing of this weight."""

    def part(self, rows: slice | Tensor) -> Groups:
        if rows is ALL:  # at every step
            return self.numbers, self.scale, self.low
        low = None
        if self.low is not None:
            low = self.low[rows]
        return self.numbers[rows], self.scale[rows], low

    def dequantize(self, rows: slice | Tensor = ALL) -> Tensor:
        """The weights of these rows, float32 [rows, K]."""
        return unpacked(*self.part(rows))[:, : self.width]

    def linear(self, x: Tensor, bias: Tensor | None = None, rows: slice = ALL) -> Tensor:
        """x [..., K] times these rows of the weight, plus the bias -> [..., rows]."""
        flat = x.reshape(-1, self.width)
        if kernels.supports(x) and len(flat) <= kernels.few(flat):
            y = kernels.products(flat, self.part(rows), bias)
            return y.view(*x.shape[:-1], y.shape[-1])
        if self.width % GROUP:
            flat = F.pad(flat, (0, GROUP - self.width % GROUP))
        on_cpu = x.device.type == "cpu"
        if on_cpu:
            flat = flat.float().contiguous()
        if native.fits(flat) and (flat.shape[0] <= native.FEW or native.takes_many()):
            y = native.products(flat, *self.part(rows))
        else:
            y = self._in_blocks(flat, rows)
        if bias is not None:
            y = y + bias
        return y.to(x.dtype).view(*x.shape[:-1], y.shape[-1])

    def _in_blocks(self, x: Tensor, rows: slice) -> Tensor:
        """x [M, 32 G] times the weights, unpacked block by block.

        All blocks go through the same memory. It is torch's: the next layer gets it again, in the
        order of the stream, and recordings have one that they share. A buffer of our own could be
        overwritten on another stream.
        """
        first, stop, _ = rows.indices(self.shape[0])
        count = block_rows(x.shape[1], x.device)
        unpack = unpacker(x)
        room = None
        if unpack is not None:
            room = x.new_empty(min(count, stop - first), x.shape[1])
        parts = []
        for start in range(first, stop, count):
            part = self.part(slice(start, min(start + count, stop)))
            if unpack is None or room is None:
                weights = unpacked(*part).to(x.dtype)
            else:
                weights = room[: part[0].shape[0]]
                unpack(part, weights)
            parts.append(F.linear(x, weights))
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def lookup(self, ids: Tensor) -> Tensor:
        """Rows of the weight, as an embedding gives them: [..., K]."""
        rows = self.dequantize(ids.reshape(-1)).to(self.dtype)
        return rows.view(*ids.shape, self.width)


def in_blocks_on(device: torch.device) -> bool:
    """Whether weights may have the form q4_k on this device."""
    return device.type in ("cpu", "meta")


def finite(x: Tensor) -> bool:
    """Whether no number is NaN or infinity. torch sums in float32 what it has copied to float32, so
    only a part at a time."""
    # a sum is finite only if all its terms are
    sums = [part.sum(dtype=torch.float32) for part in x.flatten().split(SUMMED)]
    return bool(torch.stack(sums).isfinite().all())


def unpacker(x: Tensor) -> Callable[[kernels.Part, Tensor], None] | None:
    """What writes unpacked weights for x into memory that is there; None: nothing for this device."""
    if kernels.supports(x):
        return kernels.unpack
    if native.fits(x):
        return native.unpack
    return None


def block_rows(width: int, device: torch.device) -> int:
    """Rows of `width` weights that are unpacked at a time."""
    return max(LEAST_ROWS, BLOCK.get(device.type, OTHER_BLOCK) // width)


def unpacked(numbers: Tensor, scale: Tensor, low: Tensor | None) -> Tensor:
    """The weights [N, 32 G] float32."""
    factor, least = scales_of((numbers, scale, low))
    if least is None:
        return (numbers.float() * factor[..., None]).flatten(1)
    numbers = torch.cat((numbers & 15, numbers >> 4), dim=-1)
    return (numbers.float() * factor[..., None]).add_(least[..., None]).flatten(1)


class GroupedLinear(nn.Linear):
    """A linear layer whose weight is a GroupedWeight."""

    weight: Any

    def forward(self, x: Tensor) -> Tensor:
        return self.weight.linear(x, self.bias)


class GroupedEmbedding(nn.Embedding):
    """An embedding whose weight is a GroupedWeight. Classes that scale what it returns stay in front
    of it."""

    weight: Any

    def forward(self, ids: Tensor) -> Tensor:
        return self.weight.lookup(ids)


def can_hold(module: nn.Module) -> bool:
    """Whether the module's weight may be a GroupedWeight."""
    if isinstance(module, nn.Linear):
        return type(module).forward is nn.Linear.forward
    return isinstance(module, nn.Embedding)


def attach(module: nn.Module, weight: GroupedWeight) -> None:
    """Give a linear layer or an embedding its weight in groups."""
    if not isinstance(module.weight, GroupedWeight):
        own = type(module)
        base = GroupedLinear if isinstance(module, nn.Linear) else GroupedEmbedding
        plain = own in (nn.Linear, nn.Embedding)
        module.__class__ = base if plain else type(own.__name__, (own, base), {})
        if module.weight is not None:
            weight.compute_in(module.weight.dtype)  # type: ignore[arg-type]
        module._parameters.pop("weight", None)
    module.weight = weight
    # transformers gives the weight no random numbers, but computes buffers that no file holds
    weight._is_hf_initialized = True  # type: ignore[assignment]
    module._is_hf_initialized = not module._non_persistent_buffers_set  # type: ignore[assignment]


def weights_in_groups(model: nn.Module) -> dict[str, GroupedWeight]:
    """The model's weights in groups, by name; a shared one once."""
    return {
        name: module for name, module in model.named_modules() if isinstance(module, GroupedWeight)
    }
