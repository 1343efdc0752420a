"""Products of a GPU with quantised weights, for the shapes of an 8B Llama: ours beside bfloat16.

    python benchmarks/gpu_weight_kernels.py [--bits 4] [--shapes 4096x4096,128256x4096] [--rows 1,8,64,256]
                                            [--set PROGRAMS=264,528,1056] [--set QUADS=64,128]

Microseconds of a product in a CUDA graph of products with many equal weights, more than the GPU's cache
holds; GB/s of what a product reads of the weights. `kernel` is `kernels.groups.products`, `unpacked`
unpacks the weights for torch's product, `bfloat16` is torch's product with weights of this type. --set:
constants of `infinipot.kernels.groups`, each combination of their values in turn. For one row:
--rows 1 --set MOST_OUTPUTS=2,4,8 --set ROW_PROGRAMS=264,1056,4224 --set QUADS=64,128 --set ROW_WARPS=4,8
For more: --rows 2,8,16,64,128 --set FEW=128 --set ALONE=0,8 --set GROUPS=4,8 --set PROGRAMS=264,528,1056
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from machine import keep
from torch import Tensor

from infinipot.kernels import groups as kernels
from infinipot.model.groups import GroupedWeight

SHAPES = "4096x4096,1024x4096,14336x4096,4096x14336"
CACHE_BYTES = 256 << 20
"""More than the caches of GPUs hold."""
REPLAYS = 5
LEAST_UNPACKED = 8
"""Rows from which unpacked weights are measured."""


def random_weight(outputs: int, width: int, bits: int) -> GroupedWeight:
    weight = GroupedWeight.empty((outputs, width), f"int{bits}", torch.device("cuda"))
    weight.numbers.random_(-128 if bits == 8 else 0, 128 if bits == 8 else 256)
    weight.scale.fill_(1e-3)
    if weight.low is not None:
        weight.low.fill_(-8e-3)
    return weight


def microseconds(work: Callable[[Any], Any], weights: Sequence[Any]) -> float:
    """Of one product: the best of a few replays of all of them."""
    work(weights[0])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for weight in weights:
            work(weight)
    times = []
    for _ in range(REPLAYS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(1e3 * start.elapsed_time(end) / len(weights))
    return min(times)


def many(make: Callable[[], Any], size: int) -> list[Any]:
    return [make() for _ in range(max(2, -(-CACHE_BYTES // size)))]


def unpacked_product(x: Tensor, weight: GroupedWeight) -> Tensor:
    """All outputs in blocks, as `GroupedWeight.linear` for many rows."""
    return weight._in_blocks(x, slice(None))


def measured(
    shape: tuple[int, int], rows: int, bits: int, weights: list[GroupedWeight]
) -> dict[str, float]:
    x = torch.randn(rows, shape[1], device="cuda", dtype=torch.bfloat16)
    part = weights[0].part(slice(None))
    error = 0.0
    for way in (lambda: kernels.products(x, part), lambda: unpacked_product(x, weights[0])):
        expected = x.float() @ weights[0].dequantize().T
        difference = (way().float() - expected).abs().max() / expected.abs().max()
        error = max(error, float(difference))
    found = {"error": round(error, 5)}
    if rows <= kernels.FEW:
        taken = microseconds(lambda one: kernels.products(x, one.part(slice(None))), weights)
        found["kernel"] = round(taken, 2)
        found["kernel_gb_s"] = round(weights[0].nbytes / taken / 1e3)
    if rows >= LEAST_UNPACKED:
        taken = microseconds(lambda one: unpacked_product(x, one), weights)
        found["unpacked"] = round(taken, 2)
    return found


def plain(shape: tuple[int, int], all_rows: list[int]) -> dict[int, float]:
    """torch's product with bfloat16 weights."""
    outputs, width = shape
    weights = many(
        lambda: torch.randn(shape, device="cuda", dtype=torch.bfloat16), 2 * outputs * width
    )
    taken = {}
    for rows in all_rows:
        x = torch.randn(rows, width, device="cuda", dtype=torch.bfloat16)
        taken[rows] = round(microseconds(partial(F.linear, x), weights), 2)
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bits", type=int, default=4, choices=(4, 8))
    parser.add_argument("--shapes", default=SHAPES)
    parser.add_argument("--rows", default="1,2,4,8,16,32,64,128,256,1024")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=V,V", dest="changes")
    args = parser.parse_args()
    all_rows = [int(rows) for rows in args.rows.split(",")]
    names = [change.split("=")[0] for change in args.changes]
    values = [map(int, change.split("=")[1].split(",")) for change in args.changes]
    settings = [dict(zip(names, chosen, strict=True)) for chosen in itertools.product(*values)]
    record: dict[str, Any] = {"arguments": vars(args), "products": []}
    for text in args.shapes.split(","):
        outputs, width = map(int, text.split("x"))
        beside = plain((outputs, width), all_rows)
        weight = random_weight(outputs, width, args.bits)
        weights = many(lambda: random_weight(outputs, width, args.bits), weight.nbytes)  # noqa: B023
        for setting in settings:
            for name, value in setting.items():
                if not hasattr(kernels, name):
                    parser.error(f"--set {name}: infinipot.kernels.groups has no such constant")
                setattr(kernels, name, value)
            for rows in all_rows:
                found = measured((outputs, width), rows, args.bits, weights)
                row = {"shape": text, "rows": rows, **setting, **found, "bfloat16": beside[rows]}
                print(row, flush=True)
                record["products"].append(row)
        del weights, weight
        torch.cuda.empty_cache()
    keep("gpu_weight_kernels", record)


if __name__ == "__main__":
    main()
