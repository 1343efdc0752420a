"""Calls of the fused Triton kernels, for CUDA devices.

Every kernel has a reference in plain torch, and the tests compare the two: `cache.rope.rotate`,
`scoring.novelty.add_losses`, `model.fused_norms.rms_norm`.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Hashable, Sequence
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


def on(x: Tensor) -> AbstractContextManager[Any]:
    """The context in which kernels for x are launched."""
    if x.is_cuda:
        return torch.cuda.device(x.device)
    return nullcontext()  # on a CPU, Triton's interpreter runs the kernels


def dense_rows(x: Tensor) -> Tensor:
    """x, with the elements of the last dimension next to each other in memory."""
    if x.stride(-1) == 1:
        return x
    return x.contiguous()


def next_power_of_2(number: int) -> int:
    """The smallest power of two that is not below the number."""
    return 1 << (number - 1).bit_length()


STAGES = 3
"""Stages of a kernel's pipeline, if the kernel says nothing else."""
_FITTING: dict[Hashable, int] = {}
"""Stages that fit into a GPU's shared memory, where that are fewer."""


def run(
    kernel: Any, grid: tuple[int, ...], args: Sequence[Any], form: Hashable, **options: Any
) -> None:
    """Launch a kernel. If its pipeline is too long for the GPU's shared memory (RTX cards have less
    than half of an H200's), with fewer stages. Results do not depend on their number.

    form: what decides how much shared memory it needs, beside the GPU. options: `num_stages`,
    `num_warps`.
    """
    stages = options.pop("num_stages", STAGES)
    card = torch.cuda.current_device() if torch.cuda.is_available() else None
    key = (kernel, card, form)
    stages = _FITTING.get(key, stages)
    while True:
        try:
            kernel[grid](*args, num_stages=stages, **options)
            return
        except Exception as problem:
            if type(problem).__name__ != "OutOfResources" or stages == 1:
                raise
        stages -= 1
        _FITTING[key] = stages


def rotate(x: Tensor, cos: Tensor, sin: Tensor, places: Tensor, style: str) -> Tensor:
    """Rotary embedding in one pass, as `cache.rope.rotate`.

    x: [B, heads, N, D]. cos, sin: [positions, d/2] float32. places: [N] int64; row n uses
    cos[places[n]] and sin[places[n]].
    """
    from infinipot.kernels import triton

    batch, heads, rows, width = x.shape
    half = cos.shape[-1]
    x = dense_rows(x)
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
    layout = (half, next_power_of_2(half), tile, 0, second, step, sign)
    with on(x):
        triton.rotate[grid](x, out, cos, sin, places, rows, heads, *strides, *layout)
    return out


def add_losses(logits: Tensor, targets: Tensor, start: int, total: Tensor, own: Tensor) -> None:
    """Add a block of the vocabulary's columns to the running sums, in place.

    logits: [R, columns], for the token ids from `start` on. targets: token ids [R] int64. total:
    [R] float32, the running log-sum-exp; it starts at -inf. own: [R] float32, the target's logit.
    """
    from infinipot.kernels import triton

    with on(logits):
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
    with on(x):
        triton.rms_norm[(x.numel() // width,)](
            x, weight, out, eps, width, kind, next_power_of_2(width), num_warps=warps
        )
    return out
