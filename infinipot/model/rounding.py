"""Weights rounded to groups of whole numbers of eight or four bits, a few rows at a time."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

CPU = torch.device("cpu")
GROUP = 32
"""Numbers of a row that share a scale."""
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


def quantise(weight: Tensor, bits: int) -> Groups:
    """Rows [N, K] of floating-point numbers as `GroupedWeight` holds them."""
    weight = weight.float()
    if weight.shape[1] % GROUP:
        # repeated, the last number does not widen the range of its group
        extra = GROUP - weight.shape[1] % GROUP
        weight = torch.cat((weight, weight[:, -1:].expand(-1, extra)), dim=1)
    groups = weight.unflatten(1, (-1, GROUP))
    if bits == 8:
        scale = (groups.abs().amax(dim=-1) / 127).clamp(min=LEAST_SCALE).half()
        numbers = (groups / scale.float()[..., None]).round().clamp(-127, 127)
        return numbers.nan_to_num().to(torch.int8), scale, None
    return _quantise4(groups)


def _quantise4(groups: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Groups [N, G, 32] in four bits: for each the range with the least square error."""
    least = groups.amin(dim=-1)
    most = groups.amax(dim=-1)
    best = torch.full_like(least, torch.inf)
    # what is not finite stays as it is, for `check_numbers`
    scale = ((most - least) / 15).clamp(min=LEAST_SCALE)
    low = least.clone()
    for part in SHRUNK:
        cut = (1 - part) / 2 * (most - least)
        tried = fitted(groups, ((most - least) * part / 15).clamp(min=LEAST_SCALE), least + cut)
        error = (restored(groups, *tried) - groups).square().sum(dim=-1)
        better = error < best
        best = torch.where(better, error, best)
        scale = torch.where(better, tried[0], scale)
        low = torch.where(better, tried[1], low)
    numbers = levels(groups, scale, low).nan_to_num().to(torch.uint8)
    packed = numbers[..., : GROUP // 2] | numbers[..., GROUP // 2 :] << 4
    return packed, scale.half(), low.half()


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
