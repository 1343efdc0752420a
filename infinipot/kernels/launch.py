"""Fused Triton kernels for CUDA devices. Each has a naive twin in plain torch, with which it is compared: `rope.rotate`, `novelty`."""

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
    """Whether a kernel takes this tensor."""
    return x.is_cuda and x.dtype in (torch.bfloat16, torch.float16) and available()


def _on(x: Tensor) -> AbstractContextManager[Any]:
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()  # off a GPU Triton's interpreter may run them


def rotate(x: Tensor, cos: Tensor, sin: Tensor, places: Tensor, style: str) -> Tensor:
    """`rope.rotate` in one pass. x [B, heads, N, D]; cos, sin [positions, d/2] float32; places [N] int64: row n rotates by cos[places[n]]."""
    batch, heads, rows, width = x.shape
    half = cos.shape[-1]
    x = x if x.stride(-1) == 1 else x.contiguous()
    out = torch.empty((batch, heads, rows, width), dtype=x.dtype, device=x.device)
    if width > 2 * half:
        out[..., 2 * half :] = x[..., 2 * half :]
    second, step = (1, 2) if style == "interleaved" else (half, 1)
    tile = 16 if rows > 1 else 1
    padded = 1 << (half - 1).bit_length()
    grid = ((rows + tile - 1) // tile, batch * heads)
    strides = (*x.stride()[:3], *out.stride()[:3])
    from infinipot.kernels import triton

    with _on(x):
        triton.rotate[grid](
            x, out, cos, sin, places, rows, heads, *strides, half, padded, tile, 0, second, step, -1.0 if style == "half_reversed" else 1.0
        )
    return out


def add_losses(logits: Tensor, targets: Tensor, start: int, total: Tensor, own: Tensor) -> None:
    """Add a block of columns to `total` [R] float32 (running log-sum-exp, begun at -inf) and `own` [R] float32 (each target's logit).

    logits: [R, columns], of the ids from `start` on. targets: ids [R] int64.
    """
    from infinipot.kernels import triton

    with _on(logits):
        triton.losses[(logits.shape[0],)](logits, targets, total, own, start, logits.shape[1], logits.stride(0), 4096)


def rms_norm(x: Tensor, weight: Tensor, eps: float, kind: int) -> Tensor:
    """`norms.rms_norm` in one pass: x [..., D] contiguous, weight [D]."""
    from infinipot.kernels import triton

    x = x.contiguous()
    out = torch.empty_like(x)
    width = x.shape[-1]
    with _on(x):
        triton.rms_norm[(x.numel() // width,)](
            x, weight, out, eps, width, kind, 1 << (width - 1).bit_length(), num_warps=4 if width < 2048 else 8
        )
    return out


PART = 128
"""Slots that one program of `attend` looks at, unless there are more than 64 such parts."""


def attends(query: Tensor, kv_heads: int) -> bool:
    """Whether `attend` takes these queries [B, H, 1, D]: a head dimension that is a power of two."""
    width = query.shape[-1]
    return fits(query) and 16 <= width <= 256 and width & (width - 1) == 0 and query.shape[1] % kv_heads == 0


def append(key: Tensor, rotated: Tensor, value: Tensor, places: Tensor, indices: Tensor, size: int) -> None:
    """Put an entry into each of several pots. key, rotated, value: [B, K, 1, D], raw, rotated, and value; indices: [B] where to.

    places: addresses [3, B] int64 of the pots' raw keys, rotated keys and values, each contiguous [1, K, size, D].
    """
    from infinipot.kernels import triton

    batch, heads, _, width = key.shape
    key, rotated, value = (x if x.stride(-1) == 1 else x.contiguous() for x in (key, rotated, value))
    strides = (stride for x in (key, rotated, value) for stride in x.stride()[:2])
    with _on(key):
        triton.append[(batch, heads)](key, rotated, value, places, indices, *strides, size, width, 1 << (width - 1).bit_length())


def attend(query: Tensor, places: Tensor, indices: Tensor, size: int, kv_heads: int, scaling: float) -> Tensor:
    """Attention of one new token a pot, in slot indices[b], over its entries up to there. query: rotated, [B, H, 1, D] -> [B, 1, H, D].

    places: as for `append`. The naive twin is `attention.attention` with the slots not taken masked.
    """
    from infinipot.kernels import triton

    batch, heads, _, width = query.shape
    query = query if query.stride(-1) == 1 else query.contiguous()
    group = heads // kv_heads
    tile = max(16, 1 << (group - 1).bit_length())
    share = max(PART, -(-size // 64 // 64) * 64)
    parts = -(-size // share)
    acc = torch.empty(batch * kv_heads * parts * tile, width, dtype=torch.float32, device=query.device)
    peak, total = torch.empty(2, acc.shape[0], dtype=torch.float32, device=query.device)
    out = torch.empty(batch, 1, heads, width, dtype=query.dtype, device=query.device)
    with _on(query):
        triton.attend_part[(batch, kv_heads, parts)](
            query, places, indices, acc, peak, total, *query.stride()[:2], scaling, size, share, group, tile, width, 64
        )
        triton.attend_join[(batch, heads)](acc, peak, total, out, parts, group, tile, width, 1 << (parts - 1).bit_length())
    return out
