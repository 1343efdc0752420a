"""Calls of the Triton kernels that read one token into each of several pots, by address.

The twin in plain torch is `Step.attend_plainly`; tests compare them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from infinipot.kernels.launch import available, dense_rows, next_power_of_2, on, run

SHARES = 32
"""Most shares into which `attend` splits the slots of a pot."""
PROGRAMS = 1056
"""Programs of `attend` that keep a large GPU busy."""
BLOCK = 64
"""Slots that a program of `attend` reads at a time."""
LEAST_DOT = 16
"""Smallest side of a matrix product on a GPU's tensor cores."""


class Rotary(NamedTuple):
    """How a layer rotates. cos, sin: [positions, d/2] float32. packed: both in 16 bits each, [positions,
    d/2] int32. style: of `cache.rope.STYLES`."""

    cos: Tensor
    sin: Tensor
    packed: Tensor
    style: str


def packed(cos: Tensor, sin: Tensor) -> Tensor:
    """cos and sin as float16, in the low and the high bits of an int32."""
    low, high = (x.half().view(torch.int16).int() for x in (cos, sin))
    return (low & 0xFFFF) | (high << 16)


class Places(NamedTuple):
    """Where the slots of each row's pot are.

    addresses: [3, rows] int64: of the raw keys [1, K, size, D] and of the values [1, K, size, V], both
    contiguous, then the size. kind: their eight-bit type, with two more addresses [5, rows] of the
    scales [1, K, size, 1] of keys and values; None: the model's own.
    """

    addresses: Tensor
    kind: str | None = None


class Entries(NamedTuple):
    """kv_heads: K. width: V, of a value. size: slots of the largest pot."""

    kv_heads: int
    width: int
    size: int


class Softmax(NamedTuple):
    """As `scoring.representativeness.Scoring`."""

    scaling: float
    softcap: float | None = None
    sinks: Tensor | None = None


def supports(x: Tensor) -> bool:
    """Whether these kernels run for a model with this device and dtype."""
    return x.is_cuda and x.dtype in (torch.bfloat16, torch.float16, torch.float32) and available()


def pairs_of(rotary: Rotary | None, width: int) -> tuple[int, int, int, int]:
    """half, wide_half, rest and wide_rest of a vector of `width` elements."""
    half = 0
    if rotary is not None:
        half = rotary.cos.shape[-1]
    rest = width - 2 * half
    padded = [max(LEAST_DOT, next_power_of_2(count)) for count in (half, rest)]
    return half, padded[0], rest, padded[1]


def style_of(rotary: Rotary | None, half: int) -> tuple[int, int, int, float]:
    """first, second, step and sign."""
    if rotary is not None and rotary.style == "interleaved":
        return 0, 1, 2, 1.0
    if rotary is not None and rotary.style == "half_reversed":
        return 0, half, 1, -1.0
    return 0, half, 1, 1.0


def tables_of(rotary: Rotary | None, unread: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The tables; without rotation something that is never read."""
    if rotary is None:
        return unread, unread, unread
    return rotary[:3]


def append(key: Tensor, value: Tensor, places: Places, slots: Tensor) -> None:
    """Write one new entry for each row into its pot.

    key: [B, K, 1, D], raw. value: [B, K, 1, V]. places: of B rows. slots: [B] int64; -1: skip the row.
    """
    from infinipot.kernels import pot_kernels

    batch, heads, _, width = key.shape
    key = dense_rows(key)
    value = dense_rows(value)
    wide = next_power_of_2(max(width, value.shape[-1]))
    strides = (*key.stride()[:2], *value.stride()[:2])
    with on(key):
        pot_kernels.append[(batch, heads)](
            *(key, value, places.addresses, slots),
            *strides,
            *(width, value.shape[-1], wide, places.kind),
        )


def attend(
    query: Tensor,
    places: Places,
    slots: Tensor,
    rotary: Rotary | None,
    entries: Entries,
    softmax: Softmax,
) -> Tensor:
    """Attention of one token per row over its pot's entries up to its own slot, slots[b].

    query: raw, [B, H, 1, D]; it is rotated to its slot. places: of B rows. slots: [B] int64; a
    row with -1 gets zeros. Returns [B, 1, H, V].
    """
    query = dense_rows(query)
    grid = _grid(query, entries)
    partial = _attend_part(query, (places, slots), rotary, softmax, grid)
    return _attend_join(query, partial, softmax.sinks, grid)


class Grid(NamedTuple):
    """How `attend` splits its work. kv_heads: K. group: H/K. tile: rows of a program, group padded.
    width: V. wide: V padded. parts: shares of the slots. share: slots in one."""

    kv_heads: int
    group: int
    tile: int
    width: int
    wide: int
    parts: int
    share: int


def _grid(query: Tensor, entries: Entries) -> Grid:
    batch, heads = query.shape[:2]
    kv_heads, width, size = entries
    group = heads // kv_heads
    parts = min(SHARES, max(1, PROGRAMS // (batch * kv_heads)), -(-size // BLOCK))
    return Grid(
        kv_heads=kv_heads,
        group=group,
        tile=max(LEAST_DOT, next_power_of_2(group)),
        width=width,
        wide=max(LEAST_DOT, next_power_of_2(width)),
        parts=parts,
        share=-(-size // parts // BLOCK) * BLOCK,
    )


def _attend_part(
    query: Tensor,
    where: tuple[Places, Tensor],
    rotary: Rotary | None,
    softmax: Softmax,
    grid: Grid,
) -> tuple[Tensor, Tensor, Tensor]:
    """Of each row, KV head, share and query head: the weighted values, the largest score, and the
    sum of exp above it. where: places and slots."""
    from infinipot.kernels import pot_kernels

    places, slots = where
    batch = len(query)
    width = query.shape[-1]
    rows = batch * grid.kv_heads * grid.parts * grid.tile
    acc = torch.empty(rows, grid.wide, dtype=torch.float32, device=query.device)
    peak, total = torch.empty(2, rows, dtype=torch.float32, device=query.device)
    pairs = pairs_of(rotary, width)
    exact = query.dtype == torch.float32
    kinds = (softmax.softcap is not None, exact, places.kind)
    numbers = (*query.stride()[:2], softmax.scaling, softmax.softcap or 1.0, grid.share)
    with on(query):
        args = (
            *(query, places.addresses, slots),
            *tables_of(rotary, slots),
            *(acc, peak, total),
            *numbers,
            *(grid.group, grid.tile, width, grid.width),
            *(*pairs, grid.wide, *style_of(rotary, pairs[0]), *kinds, BLOCK),
        )
        form = (query.dtype, places.kind, pairs, grid.tile, grid.wide)
        run(pot_kernels.attend_part, (batch, grid.kv_heads, grid.parts), args, form)
    return acc, peak, total


def _attend_join(
    query: Tensor, partial: tuple[Tensor, Tensor, Tensor], sinks: Tensor | None, grid: Grid
) -> Tensor:
    """The shares of each query head combined, [B, 1, H, V]. partial: as from `_attend_part`."""
    from infinipot.kernels import pot_kernels

    batch, heads = query.shape[:2]
    out = query.new_empty(batch, 1, heads, grid.width)
    with on(query):
        pot_kernels.attend_join[(batch, heads)](
            *partial,
            out if sinks is None else sinks,
            out,
            grid.parts,
            grid.group,
            grid.tile,
            grid.width,
            grid.wide,
            next_power_of_2(grid.parts),
            sinks is not None,
        )
    return out
