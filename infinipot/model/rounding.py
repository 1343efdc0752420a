"""Weights rounded to groups of whole numbers of eight or four bits, a few rows at a time."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

CPU = torch.device("cpu")
GROUP = 32
"""Numbers of a row that share a scale."""
BITS = {"int8": 8, "int4": 4, "q4_k": 4}
"""Bits of a number, by the form of a weight (`groups.GroupedWeight`)."""
BLOCK_GROUPS = 8
"""Groups of a block of the form q4_k."""
HEADER = 16
"""Bytes of a block's scales and least values: two float16 numbers, by which eight scales and eight
least values of six bits each are multiplied."""
SIX_BITS = 63
Groups = tuple[Tensor, Tensor, Tensor | None]
"""Rows of a weight: numbers, scales and least values, as `groups.GroupedWeight` holds them."""
SHRUNK = (1.0, 0.9)
"""Parts of a group's range that are tried for four bits; the least error wins."""
LEAST_SCALE = 2.0**-24
"""The smallest float16 above 0."""
AT_ONCE = {"cpu": 1 << 18}
"""Weights that are rounded at a time, by kind of device."""
OTHER_AT_ONCE = 1 << 23
MOST_THREADS = 8
"""More of them wait for Python's lock."""


def by_rows(shape: tuple[int, int], device: torch.device, work: Callable[[slice], None]) -> None:
    """Call `work` for all rows of a weight [N, K], a few at a time.

    On a CPU each core has rows of its own. torch's threads would share every operation, and wait
    for each other after each: on a busy machine that takes twenty times as long and more.
    """
    parts = slices(*shape, device)
    if device.type != "cpu":
        for rows in parts:
            work(rows)
        return
    threads = torch.get_num_threads()
    with ThreadPoolExecutor(
        min(threads, MOST_THREADS), initializer=torch.set_num_threads, initargs=(1,)
    ) as pool:
        for done in [pool.submit(work, rows) for rows in parts]:
            done.result()
    torch.set_num_threads(threads)  # what threads that begin later take over


def slices(outputs: int, width: int, device: torch.device) -> list[slice]:
    """Rows of a weight [N, K] that are rounded at a time."""
    rows = max(1, AT_ONCE.get(device.type, OTHER_AT_ONCE) // width)
    return [slice(start, min(start + rows, outputs)) for start in range(0, outputs, rows)]


def form_for(kind: str, width: int) -> str:
    """The form in which a weight [N, width] is rounded. kind: int8 or int4."""
    if kind == "int4" and width % (BLOCK_GROUPS * GROUP) == 0:
        return "q4_k"
    return kind


def quantise(weight: Tensor, form: str) -> Groups:
    """Rows [N, K] of floating-point numbers as `GroupedWeight` holds them."""
    weight = weight.float()
    if weight.shape[1] % GROUP:
        # repeated, the last number does not widen the range of its group
        extra = GROUP - weight.shape[1] % GROUP
        weight = torch.cat((weight, weight[:, -1:].expand(-1, extra)), dim=1)
    groups = weight.unflatten(1, (-1, GROUP))
    if form == "int8":
        scale = (groups.abs().amax(dim=-1) / 127).clamp(min=LEAST_SCALE).half()
        numbers = (groups / scale.float()[..., None]).round().clamp(-127, 127)
        return numbers.nan_to_num().to(torch.int8), scale, None
    if form == "int4":
        scale, low = ranges(groups, groups.amin(dim=-1), torch.inf)
        return packed(groups, scale, low), scale.half(), low.half()
    # a block has no least values above 0
    header = in_blocks(*ranges(groups, groups.amin(dim=-1).clamp(max=0), 0.0))
    return packed(groups, *scales_of_blocks(header)), header, None


def packed(groups: Tensor, scale: Tensor, low: Tensor) -> Tensor:
    """The numbers of groups [N, G, 32], two in a byte: [N, G, 16] uint8."""
    numbers = levels(groups, scale, low).nan_to_num().to(torch.uint8)
    return numbers[..., : GROUP // 2] | numbers[..., GROUP // 2 :] << 4


def ranges(groups: Tensor, least: Tensor, highest: float) -> tuple[Tensor, Tensor]:
    """Scale and least value of groups [N, G, 32] in four bits: those with the least square error.

    least [N, G]: where a group's range begins. highest: what no least value exceeds.
    """
    most = torch.maximum(groups.amax(dim=-1), least)
    best = torch.full_like(least, torch.inf)
    # what is not finite stays as it is, for `check_numbers`
    scale = ((most - least) / 15).clamp(min=LEAST_SCALE)
    low = least.clone()
    for part in SHRUNK:
        cut = (1 - part) / 2 * (most - least)
        begin = (least + cut).clamp(max=highest)
        tried = fitted(groups, ((most - least) * part / 15).clamp(min=LEAST_SCALE), begin)
        tried = (tried[0], tried[1].clamp(max=highest))
        error = (restored(groups, *tried) - groups).square().sum(dim=-1)
        better = error < best
        best = torch.where(better, error, best)
        scale = torch.where(better, tried[0], scale)
        low = torch.where(better, tried[1], low)
    return scale, low


def in_blocks(scale: Tensor, low: Tensor) -> Tensor:
    """Scales and least values [N, G], rounded to six bits -> the headers of blocks, uint8 [N, G / 8, 16],
    as GGUF's Q4_K has them."""
    parts = []
    numbers = []
    for values in (scale, -low):
        blocks = values.unflatten(1, (-1, BLOCK_GROUPS))
        factor = (blocks.amax(dim=-1) / SIX_BITS).clamp(min=LEAST_SCALE).half()
        ratios = blocks / factor.float()[..., None]
        numbers.append(ratios.round().nan_to_num().clamp(0, SIX_BITS).to(torch.uint8))
        parts.append(factor[..., None].view(torch.uint8))
    own, least = numbers
    half = BLOCK_GROUPS // 2
    parts += [
        own[..., :half] | own[..., half:] >> 4 << 6,
        least[..., :half] | least[..., half:] >> 4 << 6,
        own[..., half:] & 15 | least[..., half:] << 4,
    ]
    return torch.cat(parts, dim=-1)


def factors_of_blocks(header: Tensor) -> Tensor:
    """Headers of blocks, uint8 [N, B, 16] -> what their scales and their least values are multiplied by:
    float16 [N, B, 2]."""
    return header[..., :4].contiguous().view(torch.float16)


def scales_of_blocks(header: Tensor) -> tuple[Tensor, Tensor]:
    """Headers of blocks, uint8 [N, B, 16] -> scales and least values, float32 [N, 8 B]."""
    factors = factors_of_blocks(header).float()
    first, second, third = header[..., 4:].split(BLOCK_GROUPS // 2, dim=-1)
    own = torch.cat((first & 63, third & 15 | first >> 6 << 4), dim=-1)
    least = torch.cat((second & 63, third >> 4 | second >> 6 << 4), dim=-1)
    scale = own.float() * factors[..., :1]
    return scale.flatten(1), (least.float() * -factors[..., 1:]).flatten(1)


def scales_of(groups: Groups) -> tuple[Tensor, Tensor | None]:
    """Scales and least values of rows, float32 [N, G]."""
    _, scale, low = groups
    if scale.dtype == torch.uint8:
        return scales_of_blocks(scale)
    return scale.float(), None if low is None else low.float()


def factors_of(groups: Groups) -> list[Tensor]:
    """The float16 numbers of rows: scales and least values, or the factors of blocks."""
    _, scale, low = groups
    if scale.dtype == torch.uint8:
        return [factors_of_blocks(scale)]
    return [scale] if low is None else [scale, low]


def without_blocks(groups: Groups) -> Groups:
    """Rows in the form q4_k in the form int4: the scales are rounded to float16."""
    numbers, scale, low = groups
    if scale.dtype != torch.uint8:
        return groups
    scale, low = scales_of_blocks(scale)
    return numbers, scale.half(), low.half()


def levels(groups: Tensor, scale: Tensor, low: Tensor) -> Tensor:
    return ((groups - low[..., None]) / scale[..., None]).round().clamp(0, 15)


def restored(groups: Tensor, scale: Tensor, low: Tensor) -> Tensor:
    return levels(groups, scale, low) * scale[..., None] + low[..., None]


def fitted(groups: Tensor, scale: Tensor, low: Tensor) -> tuple[Tensor, Tensor]:
    """Scale and least value, moved to the least squares for the numbers that they give, as float16
    holds them."""
    numbers = levels(groups, scale, low)
    mean = numbers.mean(dim=-1)
    spread = (numbers - mean[..., None]).square().sum(dim=-1)
    center = groups.mean(dim=-1)
    together = ((numbers - mean[..., None]) * (groups - center[..., None])).sum(dim=-1)
    better = torch.where(spread > 0, together / spread, scale).clamp(min=LEAST_SCALE)
    return better.half().float(), (center - better * mean).half().float()
