"""Calls of the Triton kernels that read a chunk into one pot, by address.

places: of one row, as in `kernels.pots`. span: on the device, int64, at least the slot where the
chunk begins and its number of tokens. Rows behind these tokens are padding: they are not stored, and
what is returned for them means nothing. The twin in plain torch is `Chunk.attend_plainly`; tests
compare them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from infinipot.kernels.launch import dense_rows, next_power_of_2, on, run
from infinipot.kernels.pots import (
    LEAST_DOT,
    Places,
    Rotary,
    Softmax,
    pairs_of,
    style_of,
    tables_of,
)

COPIED = 16
"""Entries that a program of `store` and of `fetch` copies."""
PROGRAMS = 264
"""Programs of `attend` that keep a large GPU busy."""
LEAST_SHARE = 256
"""Fewest entries of a share in `attend`."""


def store(key: Tensor, value: Tensor, places: Places, span: Tensor) -> None:
    """Write new entries into one pot. key: [1, K, T, D], raw. value: [1, K, T, V]."""
    from infinipot.kernels import chunk_kernels

    _, heads, rows, width = key.shape
    key = dense_rows(key)
    value = dense_rows(value)
    strides = (*key.stride()[1:3], *value.stride()[1:3])
    wide = next_power_of_2(max(width, value.shape[-1]))
    with on(key):
        chunk_kernels.store[(-(-rows // COPIED), heads)](
            *(key, value, places.addresses, span),
            *strides,
            *(width, value.shape[-1], wide, places.kind, COPIED),
        )


def fetch(
    key: Tensor, value: Tensor, places: Places, span: Tensor, rotary: Rotary | None, size: int
) -> tuple[Tensor, Tensor]:
    """Copy the entries of one pot up to the chunk's end: keys [1, K, size, D], rotated by slot, and
    values [1, K, size, V]. What lies behind them is not initialised.

    key, value: new entries, for shapes and types. size: at least the entries.
    """
    from infinipot.kernels import chunk_kernels

    _, heads, _, width = key.shape
    value_width = value.shape[-1]
    keys = key.new_empty(1, heads, size, width)
    values = value.new_empty(1, heads, size, value_width)
    pairs = pairs_of(rotary, width)
    with on(key):
        chunk_kernels.fetch[(-(-size // COPIED), heads)](
            places.addresses,
            span,
            *tables_of(rotary, span)[:2],
            keys,
            values,
            size,
            width,
            value_width,
            *pairs,
            next_power_of_2(value_width),
            *style_of(rotary, pairs[0]),
            places.kind,
            COPIED,
        )
    return keys, values


class Layout(NamedTuple):
    """What the compiler of `attend` must know: rows of a tile, entries of a block, elements of a key
    and of a value, each also padded, and the softcap, 0 for none."""

    tile: int
    block: int
    width: int
    wide: int
    value_width: int
    wide_value: int
    softcap: float


def _layout(query: Tensor, value: Tensor, softcap: float | None) -> Layout:
    rows, width = query.shape[2:]
    value_width = value.shape[-1]
    wide = max(LEAST_DOT, next_power_of_2(width))
    wide_value = max(LEAST_DOT, next_power_of_2(value_width))
    tile = 128
    block = 64
    if query.dtype == torch.float32 or max(wide, wide_value) > 128:
        tile = 64
        block = 32
    return Layout(
        tile=min(tile, max(LEAST_DOT, next_power_of_2(rows))),
        block=block,
        width=width,
        wide=wide,
        value_width=value_width,
        wide_value=wide_value,
        softcap=float(softcap or 0),
    )


def attend(query: Tensor, keys: Tensor, values: Tensor, span: Tensor, softmax: Softmax) -> Tensor:
    """Causal attention of the chunk's rows over the entries up to their own.

    query: [1, H, T, D], rotated. keys, values: from `fetch`. Returns [1, T, H, V].
    """
    from infinipot.kernels import chunk_kernels

    query = dense_rows(query)
    heads, rows = query.shape[1:3]
    layout = _layout(query, values, softmax.softcap)
    share, parts = _shares(query, keys, layout)
    out = query.new_empty(1, rows, heads, layout.value_width)
    partial = _sums(query, parts, layout)
    with on(query):
        args = (
            *(query, keys, values, span, softmax.sinks, out),
            *partial,
            *query.stride()[1:3],
            *(keys.shape[2], rows, share, heads // keys.shape[1]),
            float(softmax.scaling),
            tuple(layout),
        )
        grid = (-(-rows // layout.tile), heads, parts)
        run(chunk_kernels.attend_part, grid, args, (query.dtype, layout), num_stages=2)
        if parts > 1:
            chunk_kernels.attend_join[(rows, heads)](
                *(span, softmax.sinks, out),
                *partial,
                *(rows, parts),
                tuple(layout),
                next_power_of_2(parts),
            )
    return out


def _shares(query: Tensor, keys: Tensor, layout: Layout) -> tuple[int, int]:
    """Entries of a share, and the number of shares."""
    heads, rows = query.shape[1:3]
    size = keys.shape[2]
    programs = -(-rows // layout.tile) * heads
    parts = min(max(1, PROGRAMS // programs), max(1, size // LEAST_SHARE))
    share = -(-size // parts // layout.block) * layout.block
    return share, -(-size // share)


def _sums(query: Tensor, parts: int, layout: Layout) -> tuple[Tensor | None, ...]:
    """Memory for the sums of several shares; None three times for one share."""
    if parts == 1:
        return None, None, None
    shape = (query.shape[1], parts, query.shape[2])
    acc = torch.empty(*shape, layout.value_width, dtype=torch.float32, device=query.device)
    return acc, *torch.empty(2, *shape, dtype=torch.float32, device=query.device)
