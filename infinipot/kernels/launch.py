"""Calls of the fused Triton kernels, for CUDA devices.

Every kernel has a reference in plain torch, and the tests compare the two: `cache.rope.rotate`,
`scoring.novelty.add_losses`, `model.fused_norms.rms_norm`, `model.attention.attention`.
"""

from __future__ import annotations

import functools
import importlib.util
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor


@functools.cache
def available() -> bool:
    return importlib.util.find_spec("triton") is not None


def fits(x: Tensor) -> bool:
    """Whether the kernels accept this tensor."""
    return x.is_cuda and x.dtype in (torch.bfloat16, torch.float16) and available()


def _on(x: Tensor) -> AbstractContextManager[Any]:
    if x.is_cuda:
        return torch.cuda.device(x.device)
    return nullcontext()  # on a CPU, Triton's interpreter runs the kernels


def _dense_rows(x: Tensor) -> Tensor:
    """x, with the elements of the last dimension next to each other in memory."""
    if x.stride(-1) == 1:
        return x
    return x.contiguous()


def _next_power_of_2(number: int) -> int:
    return 1 << (number - 1).bit_length()


def rotate(x: Tensor, cos: Tensor, sin: Tensor, places: Tensor, style: str) -> Tensor:
    """Rotary embedding in one pass, as `cache.rope.rotate`.

    x: [B, heads, N, D]. cos, sin: [positions, d/2] float32. places: [N] int64; row n uses
    cos[places[n]] and sin[places[n]].
    """
    from infinipot.kernels import triton

    batch, heads, rows, width = x.shape
    half = cos.shape[-1]
    x = _dense_rows(x)
    out = torch.empty((batch, heads, rows, width), dtype=x.dtype, device=x.device)
    if width > 2 * half:
        out[..., 2 * half :] = x[..., 2 * half :]
    second = half
    step = 1
    if style == "interleaved":
        second = 1
        step = 2
    if style == "half_reversed":
        sign = -1.0
    else:
        sign = 1.0
    if rows > 1:
        tile = 16
    else:
        tile = 1
    grid = (-(-rows // tile), batch * heads)
    strides = (*x.stride()[:3], *out.stride()[:3])
    layout = (half, _next_power_of_2(half), tile, 0, second, step, sign)
    with _on(x):
        triton.rotate[grid](x, out, cos, sin, places, rows, heads, *strides, *layout)
    return out


def add_losses(logits: Tensor, targets: Tensor, start: int, total: Tensor, own: Tensor) -> None:
    """Add a block of the vocabulary's columns to the running sums, in place.

    logits: [R, columns], for the token ids from `start` on. targets: token ids [R] int64. total:
    [R] float32, the running log-sum-exp; it starts at -inf. own: [R] float32, the target's logit.
    """
    from infinipot.kernels import triton

    with _on(logits):
        triton.losses[(logits.shape[0],)](
            logits, targets, total, own, start, logits.shape[1], logits.stride(0), 4096
        )


def rms_norm(x: Tensor, weight: Tensor, eps: float, kind: int) -> Tensor:
    """RMS norm in one pass, as `model.fused_norms.rms_norm`. x: [..., D]. weight: [D]."""
    from infinipot.kernels import triton

    x = x.contiguous()
    out = torch.empty_like(x)
    width = x.shape[-1]
    if width < 2048:
        warps = 4
    else:
        warps = 8
    with _on(x):
        triton.rms_norm[(x.numel() // width,)](
            x, weight, out, eps, width, kind, _next_power_of_2(width), num_warps=warps
        )
    return out


PART = 128
"""Slots per program of `attend`. Above 64 programs each takes more indices instead."""


def attends(query: Tensor, kv_heads: int) -> bool:
    """Whether `attend` accepts these queries [B, H, 1, D]; D must be a power of two."""
    width = query.shape[-1]
    return (
        fits(query)
        and 16 <= width <= 256
        and width & (width - 1) == 0
        and query.shape[1] % kv_heads == 0
    )


def append(
    key: Tensor, rotated: Tensor, value: Tensor, places: Tensor, indices: Tensor, size: int
) -> None:
    """Write one new entry into each of several pots.

    key, rotated, value: [B, K, 1, D]; the raw key, the rotated key and the value. places: [3, B]
    int64, the addresses of the pots' buffers for them; each buffer is contiguous [1, K, size, D].
    indices: [B], the slot to write in each pot.
    """
    from infinipot.kernels import triton

    batch, heads, _, width = key.shape
    entry = [_dense_rows(x) for x in (key, rotated, value)]
    strides = [stride for x in entry for stride in x.stride()[:2]]
    with _on(key):
        triton.append[(batch, heads)](
            *entry, places, indices, *strides, size, width, _next_power_of_2(width)
        )


def attend(
    query: Tensor, places: Tensor, indices: Tensor, size: int, kv_heads: int, scaling: float
) -> Tensor:
    """Attention of one new token per pot over the entries up to its slot, indices[b].

    query: rotated, [B, H, 1, D]; the result is [B, 1, H, D]. places: as for `append`. The reference
    is `model.attention.attention`, with the empty indices masked.
    """
    from infinipot.kernels import triton

    batch, heads, _, width = query.shape
    query = _dense_rows(query)
    group = heads // kv_heads
    tile = max(16, _next_power_of_2(group))
    share = max(PART, -(-size // 64 // 64) * 64)
    parts = -(-size // share)
    rows = batch * kv_heads * parts * tile
    acc = torch.empty(rows, width, dtype=torch.float32, device=query.device)
    peak, total = torch.empty(2, rows, dtype=torch.float32, device=query.device)
    out = torch.empty(batch, 1, heads, width, dtype=query.dtype, device=query.device)
    partial = (acc, peak, total)
    layout = (size, share, group, tile, width, 64)
    with _on(query):
        triton.attend_part[(batch, kv_heads, parts)](
            query, places, indices, *partial, *query.stride()[:2], scaling, *layout
        )
        triton.attend_join[(batch, heads)](
            *partial, out, parts, group, tile, width, _next_power_of_2(parts)
        )
    return out
