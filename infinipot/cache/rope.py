"""CR-RoPE: positions that start again at 0 after every distillation (paper, section 3.5).

Keys are stored before rotary embedding. An entry's position is its *slot*: after a distillation the
survivors are at positions 0 .. |C|-1, wherever they were in the text. Every rotation starts from the
raw key, not from a rotated one, so that the error does not grow with the number of distillations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from infinipot.kernels import launch
from infinipot.kernels.pots import Rotary, packed

STYLES = ("half", "half_reversed", "interleaved")
FAR = 1 << 24
"""A position beyond all texts."""

Table = Callable[[Tensor], tuple[Tensor, Tensor]]
"""positions [N] -> (cos, sin), each [N, d/2] float32, the model's own scaling included."""


def rotate(x: Tensor, cos: Tensor, sin: Tensor, style: str) -> Tensor:
    """Rotary embedding in float32. x [..., N, D]; cos, sin [N, d/2] with d <= D (the rest passes
    through) -> x's shape and dtype."""
    d = 2 * cos.shape[-1]
    rotating = x[..., :d].float()
    out = torch.empty_like(rotating)
    a, b = _halves(rotating, style)
    to_a, to_b = _halves(out, style)
    sign = 1
    if style == "half_reversed":
        sign = -1
    torch.mul(a, cos, out=to_a).addcmul_(b, sin, value=-sign)
    torch.mul(b, cos, out=to_b).addcmul_(a, sin, value=sign)
    rotated = out.to(x.dtype)
    if d == x.shape[-1]:
        return rotated
    return torch.cat((rotated, x[..., d:]), dim=-1)


def _halves(x: Tensor, style: str) -> tuple[Tensor, Tensor]:
    """The first and the second element of each rotated pair, as views of x."""
    if style == "interleaved":
        return x[..., 0::2], x[..., 1::2]
    first, second = x.chunk(2, dim=-1)
    return first, second


class Tables(NamedTuple):
    """The tables on one device. places: 0 .. positions-1."""

    rotary: Rotary
    places: Tensor


@dataclass
class Rotation:
    """How a layer rotates queries and keys. Layers that rotate alike share one. There is one table
    per device, which only grows."""

    style: str
    table: Table
    tables: dict[torch.device, Tables] = field(default_factory=dict)
    longest: int = 0
    """The length for frequencies that depend on it, if no table is longer."""

    @cached_property
    def depends_on_length(self) -> bool:
        """Whether the frequencies depend on the longest position."""
        few = self.table(torch.arange(3))
        far = self.table(torch.tensor([0, 1, 2, FAR]))
        return not all(torch.equal(x, y[:3]) for x, y in zip(few, far, strict=True))

    def reserve(self, positions: int, device: torch.device) -> None:
        """Extend the table to positions 0 .. positions-1. Frequencies that depend on the length then
        use this length, or `longest`."""
        if device not in self.tables or len(self.tables[device].places) < positions:
            places = torch.arange(max(positions, 1), device=device)
            last = torch.tensor([max(self.longest, positions) - 1], device=device)
            angles = self.table(torch.cat((places, last)))
            cos, sin = (x[:-1].contiguous() for x in angles)
            self.tables[device] = Tables(Rotary(cos, sin, packed(cos, sin), self.style), places)

    def rotary(self, device: torch.device) -> Rotary:
        """The tables on a device as the kernels take them."""
        return self.tables[device].rotary

    def rotate(self, x: Tensor, start: int) -> Tensor:
        """Rotate x [B, heads, N, D] to positions start .. start+N-1 of the reserved range."""
        return self._rotate(x, slice(start, start + x.shape[-2]))

    def rotate_to(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotate x [B, heads, N, D] to positions [N] of the reserved range."""
        return self._rotate(x, positions)

    def rotate_beyond(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotate x [B, heads, N, D] to any positions [N], and extend the table if needed."""
        self.reserve(int(positions.max()) + 1, x.device)
        return self._rotate(x, positions)

    def rotate_untabled(self, x: Tensor, start: int) -> Tensor:
        """Like `rotate`, without a table: for the ablation with growing positions."""
        cos, sin = self.table(torch.arange(start, start + x.shape[-2], device=x.device))
        return rotate(x, cos, sin, self.style)

    def _rotate(self, x: Tensor, where: slice | Tensor) -> Tensor:
        (cos, sin, _, _), places = self.tables[x.device]
        if launch.fits(x):
            return launch.rotate(x, cos, sin, places[where], self.style)
        return rotate(x, cos[where], sin[where], self.style)


def copies(rotations: Sequence[Rotation | None], longest: int = 0) -> list[Rotation | None]:
    """New rotations with the same tables. Layers that share one share the new one. longest: as in
    `Rotation`."""
    own = {
        id(r): replace(r, tables=dict(r.tables), longest=longest)
        for r in rotations
        if r is not None
    }
    return [own.get(id(r)) for r in rotations]


def alike(some: Sequence[Rotation | None], others: Sequence[Rotation | None]) -> bool:
    """Whether layers with these rotations rotate equally, as far as both tables go."""
    for one, other in zip(some, others, strict=True):
        for device in one.tables if one else ():
            assert one is not None and other is not None
            cos, sin, *_ = one.rotary(device)
            its_cos, its_sin, *_ = other.rotary(device)
            count = min(len(cos), len(its_cos))
            if not torch.equal(cos[:count], its_cos[:count]):
                return False
            if not torch.equal(sin[:count], its_sin[:count]):
                return False
    return True
