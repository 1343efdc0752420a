"""Calls of the Triton kernels for weights in groups, for CUDA devices.

The twin in plain torch is `model.groups.unpacked` with `F.linear`; tests compare them.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from infinipot.kernels.launch import available, dense_rows, next_power_of_2, on, run

Part = tuple[Tensor, Tensor, Tensor | None]
"""Some rows of a weight, as `model.groups.GroupedWeight` holds them: numbers [N, G, 32] int8 or [N, G,
16] uint8, scale [N, G] float16, and the least values, or None for eight bits. All are contiguous."""

FEW = 32
"""Up to so many rows of x, `products` is faster than to unpack the weights for torch's own product: on an
H200 in half of the time for 8 rows, but half as fast again for 64
(`benchmarks/gpu_weight_kernels.py`)."""
ALONE = 2
"""Up to so many rows, `row_product` multiplies each by itself. The weights come from the GPU's cache
for all but the first."""
FLOAT32_ALONE = 16
"""The same in float32, for which there are no tensor cores; more rows take unpacked weights."""
ROW_PROGRAMS = 1056
"""Programs of `row_product` that keep a large GPU busy: eight for each of 132 multiprocessors."""
MOST_OUTPUTS = 8
"""Most outputs of a program of `row_product`. More do not fit into its registers."""
QUADS = 128
"""Units of 16 bytes of a weight's row that `row_product` reads at a time."""
ROW_WARPS = 4
PROGRAMS = 528
"""Programs of `tile_product` that keep a large GPU busy."""
OUTPUTS = 64
"""Outputs of a program of `tile_product`."""
GROUPS = 4
"""Groups of a weight's row that `tile_product` reads at a time, in four bits; in eight half of them."""
SHARES = 16
"""Most shares into which `tile_product` splits the groups of a row."""
TILE_WARPS = 4
UNPACKED = 128
"""Groups that a program of `unpack` writes."""
JOINED = 1024
"""Elements that a program of `join` adds."""
ONE = 0x3F800000
"""The bits of 1.0."""
ALIGNED = 16
"""Bytes to which `row_product` wants rows of x aligned."""


def supports(x: Tensor) -> bool:
    """Whether these kernels run for activations of this kind: on a GPU, and without a gradient."""
    floats = x.dtype in (torch.bfloat16, torch.float16, torch.float32)
    learns = x.requires_grad and torch.is_grad_enabled()
    return x.is_cuda and floats and not learns and available()


def few(x: Tensor) -> int:
    """The most rows of x for which `products` is meant."""
    if x.dtype == torch.float32:
        return FLOAT32_ALONE
    return FEW


def products(x: Tensor, part: Part, bias: Tensor | None = None) -> Tensor:
    """x [M, K] times the weights of N outputs, plus the bias [N] -> [M, N] of x's type.

    K is at most 32 G. Sums are float32. A row's result does not depend on the other rows, as long as
    their number stays on the same side of ALONE; on the two sides it differs by rounding: more
    rows take weights that are rounded to x's type.
    """
    x = dense_rows(x)
    outputs = part[1].shape[0]
    out = torch.empty(x.shape[0], outputs, dtype=x.dtype, device=x.device)
    if x.dtype == torch.float32 or x.shape[0] <= ALONE:
        _row_products(x, part, bias, out)
    else:
        _tile_products(x, part, bias, out)
    return out


def _row_products(x: Tensor, part: Part, bias: Tensor | None, out: Tensor) -> None:
    from infinipot.kernels import group_kernels

    numbers, scale, low = part
    outputs, groups = scale.shape
    tile = max(2, min(MOST_OUTPUTS, next_power_of_2(outputs // ROW_PROGRAMS)))
    words = numbers.view(torch.int32)
    x = whole_numbers(x, 32 * groups)
    quads = min(QUADS, next_power_of_2(words.shape[1] * words.shape[2] // 4))
    grid = (x.shape[0], -(-outputs // tile))
    with on(x):
        group_kernels.row_product[grid](
            *(x, words, scale, low, bias, out),
            *(outputs, groups),
            *(x.stride(0), out.stride(0), ONE),
            *(tile, quads),
            num_warps=ROW_WARPS,
        )


def whole_numbers(x: Tensor, width: int) -> Tensor:
    """The rows of x [M, K] as int64, with zeros up to `width`."""
    if x.shape[1] < width:
        x = F.pad(x, (0, width - x.shape[1]))
    # memory of torch begins where int64 may; a part of it may not
    if x.data_ptr() % ALIGNED or x.stride(0) * x.element_size() % ALIGNED:
        x = x.clone(memory_format=torch.contiguous_format)
    return x.view(torch.int64)


def _tile_products(x: Tensor, part: Part, bias: Tensor | None, out: Tensor) -> None:
    from infinipot.kernels import group_kernels

    numbers, scale, low = part
    rows, width = x.shape
    outputs, groups = scale.shape
    tiles = -(-outputs // OUTPUTS)
    block = GROUPS
    if low is None:
        block //= 2
    height = max(16, min(64, next_power_of_2(rows)))
    share, parts = shares(groups, block, tiles)
    target = out
    if parts > 1:
        target = torch.empty(parts, rows, outputs, dtype=torch.float32, device=x.device)
    own_bias = bias
    if parts > 1:
        own_bias = None
    with on(x):
        args = (
            *(x, numbers, scale, low, own_bias, target),
            *(rows, outputs, width, groups, share, x.stride(0)),
            *(OUTPUTS, height, block),
        )
        form = (x.dtype, low is None, height, block)
        grid = (tiles, parts, -(-rows // height))
        run(group_kernels.tile_product, grid, args, form, num_warps=TILE_WARPS)
        if parts > 1:
            programs = -(-out.numel() // JOINED)
            group_kernels.join[(programs,)](target, bias, out, outputs, out.numel(), parts, JOINED)


def shares(groups: int, block: int, tiles: int) -> tuple[int, int]:
    """Groups in a share, a multiple of `block`, and the number of shares. They do not depend on the
    number of rows."""
    steps = -(-groups // block)
    parts = max(1, min(SHARES, steps // 2, PROGRAMS // tiles))
    share = -(-steps // parts)
    return share * block, -(-steps // share)


def unpack(part: Part, out: Tensor) -> None:
    """Write the weights of N outputs into out [N, 32 G], contiguous, rounded to its type."""
    from infinipot.kernels import group_kernels

    numbers, scale, low = part
    count = scale.numel()
    with on(out):
        group_kernels.unpack[(-(-count // UNPACKED),)](numbers, scale, low, out, count, UNPACKED)
