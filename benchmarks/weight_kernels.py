"""Products of a CPU with quantised weights: torch's kernels beside ours, for shapes of small models.

    python benchmarks/weight_kernels.py [--threads 1] [--rows 1,4,256]

Milliseconds of the processor, the best of a few, and the largest error relative to the same product in
float32 with the weights before they were rounded. fbgemm and onednn round the activations of all rows
together to seven or eight bits, so a row's result depends on its neighbours; ours round groups of 32 to
16 bits, if the processor has AVX2, and the others round none.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from machine import keep
from torch import Tensor

from infinipot.model.groups import GroupedWeight
from infinipot.model.rounding import GROUP, form_for

SHAPES = {
    "SmolLM2-135M, up": (1536, 576),
    "Qwen2.5-0.5B, up": (4864, 896),
    "Qwen2.5-1.5B, up": (8960, 1536),
}
ATEN: Any = torch.ops.aten


def best_ms(work: Callable[[], Any]) -> float:
    work()
    times = []
    end = time.process_time() + 0.3
    while len(times) < 3 or (time.process_time() < end and len(times) < 30):
        started = time.process_time()
        work()
        times.append(time.process_time() - started)
    return 1e3 * min(times)


def dynamic(weight: Tensor, engine: str) -> Callable[[Tensor], Tensor]:
    """torch's linear layer with rounded activations."""
    torch.backends.quantized.engine = engine
    layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    layer.weight.data.copy_(weight)
    made = torch.ao.quantization.quantize_dynamic(
        torch.nn.Sequential(layer), {torch.nn.Linear}, dtype=torch.qint8
    )

    def product(x: Tensor) -> Tensor:
        torch.backends.quantized.engine = engine
        return made(x)

    return product


def int4pack(weight: Tensor) -> Callable[[Tensor], Tensor]:
    """torch's product of bfloat16 with groups of four bits."""
    made = GroupedWeight.of(weight, "int4")
    assert made.low is not None
    numbers = torch.cat((made.numbers & 15, made.numbers >> 4), dim=-1).flatten(1).int()
    packed = ATEN._convert_weight_to_int4pack_for_cpu(numbers, 1)
    scale = made.scale.float()
    # the kernel computes (number - 8) * scale + zero
    pairs = torch.stack((scale, made.low.float() + 8 * scale), dim=-1)
    pairs = pairs.transpose(0, 1).contiguous().bfloat16()
    return lambda x: ATEN._weight_int4pack_mm_for_cpu(x.bfloat16(), packed, GROUP, pairs)


def int8pack(weight: Tensor) -> Callable[[Tensor], Tensor]:
    """torch's product of bfloat16 with eight bits and one scale for each output."""
    scale = weight.abs().amax(dim=1) / 127
    numbers = (weight / scale[:, None]).round().to(torch.int8)
    return lambda x: ATEN._weight_int8pack_mm(x.bfloat16(), numbers, scale.bfloat16())


def candidates(weight: Tensor) -> dict[str, Callable[[Tensor], Tensor]]:
    half = weight.bfloat16()
    eight = GroupedWeight.of(weight, "int8")
    four = GroupedWeight.of(weight, form_for("int4", weight.shape[1]))
    return {
        "float32": lambda x: F.linear(x, weight),
        "bfloat16": lambda x: F.linear(x.bfloat16(), half),
        "int8, ours": eight.linear,
        "int4, ours": four.linear,
        "_weight_int8pack_mm": int8pack(weight),
        "_weight_int4pack_mm_for_cpu": int4pack(weight),
        "fbgemm, dynamic": dynamic(weight, "fbgemm"),
        "onednn, dynamic": dynamic(weight, "onednn"),
    }


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rows", default="1,4,256")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    rows = []
    for shape, (outputs, width) in SHAPES.items():
        weight = torch.randn(outputs, width) / width**0.5
        products = candidates(weight)
        for count in map(int, args.rows.split(",")):
            x = torch.randn(count, width)
            x[:, 7] *= 30  # activations of language models have columns like this
            expected = F.linear(x, weight)
            for name, product in products.items():
                error = (product(x).float() - expected).abs().max() / expected.abs().max()
                row = {"shape": shape, "rows": count, "kernel": name, "error": float(error)}
                rows.append({**row, "ms": best_ms(lambda: product(x))})  # noqa: B023
                print(rows[-1], file=sys.stderr)
    keep("weight_kernels", {"benchmark": "weight_kernels", "rows": rows})


if __name__ == "__main__":
    main()
