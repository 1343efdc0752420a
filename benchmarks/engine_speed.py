"""How fast the engine reads and answers, without the server: texts of several lengths, and answers
alone and together, in one warm process. `infinipot bench` compares; this shows many batch sizes.

    python benchmarks/engine_speed.py [SHAPE] [--lengths 8192,32768] [--batches 1,8,64] [--shares]
                                      [--tensor-parallel N | --spread]
                                      [--weights int4] [--pot-dtype int8] [--memory 8GB]

SHAPE: a model with random weights, from `infinipot.bench.shapes.SHAPES`. Each length is read twice,
since the first reading makes the recordings; the peak is that of the second, on the first GPU. --shares: how much of the
kernels' time a distillation takes, on a GPU: scores, selection, compaction, and novelty. --weights: keeps them in groups. --pot-dtype: stores
entries in eight bits. --memory: as if the first GPU had no more; the peak of the whole program is what torch reserved, from making the model on.
What does not fit is null.
For an 8B model on a card of 8 GB: `engine_speed.py --weights int4 --memory 8GB --lengths 8192,32768,131072 --batches 1`; eight answers
fit with `--batches 8 --pot-size 1024`.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from machine import keep
from transformers import PreTrainedModel

from infinipot import PotConfig, Session
from infinipot.bench.shapes import SHAPES, shaped
from infinipot.cache.storage import QUANTISED
from infinipot.cli.plan import memory_bytes
from infinipot.engine.sampling import Sampler
from infinipot.machine import out_of_memory
from infinipot.model.runner import ModelRunner
from infinipot.parallel.followers import load_on_all_ranks
from infinipot.sampling import Sampling
from infinipot.server.step import step

CATALYST = 30
PROMPT = 5
WARM_STEPS = 5
T = TypeVar("T")


def clock(device: torch.device) -> float:
    """Seconds, after the device has done its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def made(args: argparse.Namespace, device: torch.device) -> PreTrainedModel:
    """A model with random weights: in this process, or over several."""
    shape = args.shape
    count = args.tensor_parallel
    if count == 1:
        return shaped(shape, device=device, spread=args.spread, weights=args.weights)
    maker = "infinipot.bench.shapes:shaped_shards"
    return load_on_all_ranks(maker, (shape, torch.bfloat16), count, device)


def limited(memory: str | None, device: torch.device) -> None:
    """Let this process take no more of the GPU's memory."""
    if memory is None:
        return
    size = memory_bytes(memory)
    if device.type == "cuda":
        whole = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(
            min(1.0, size / whole), torch.cuda.current_device()
        )


def or_none(work: Callable[[], T]) -> T | None:
    """The result, or None if the memory is short."""
    try:
        return work()
    except RuntimeError as problem:
        if not out_of_memory(problem):
            raise
        print(f"out of memory: {str(problem).splitlines()[0]}")
    return None


def reading(runner: ModelRunner, config: PotConfig, ids: list[int]) -> tuple[float, int]:
    """Tokens/s of one text in a new session, question known, and the peak of the GPU's memory in
    bytes (0 on a CPU)."""
    session = Session(runner, None, config)
    peak = 0
    if runner.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(runner.device)
    started = clock(runner.device)
    session.append(ids, question=ids[:CATALYST])
    seconds = clock(runner.device) - started
    if runner.device.type == "cuda":
        peak = torch.cuda.max_memory_allocated(runner.device)
    return len(ids) / seconds, peak


PARTS = {
    "scores": ("catalyst_part", "catalyst_join"),
    "selection": ("choose",),
    "compaction": ("compact",),
}
"""Names of the kernels of a distillation."""


def shares(session: Session, ids: list[int]) -> dict[str, float]:
    """The share of each part of distillations in the kernels' time, while ids are read. Novelty has no
    kernels of its own: it is measured apart, for as many tokens."""
    runner = session.runner
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        session.append(ids, question=ids[:CATALYST])
        clock(runner.device)
    taken = {event.key: event.self_device_time_total for event in profile.key_averages()}
    total = sum(taken.values())
    found = {
        part: sum(taken.get(name, 0) for name in names) / total for part, names in PARTS.items()
    }
    hidden = torch.randn(
        1, len(ids), runner.model.config.hidden_size, dtype=runner.model.dtype, device=runner.device
    )
    rows = torch.tensor([ids], device=runner.device)
    with torch.profiler.profile(activities=activities) as profile:
        for states, part in zip(hidden.split(1024, dim=1), rows.split(1024, dim=1), strict=True):
            runner.novelty(states, part)
        clock(runner.device)
    found["novelty"] = sum(x.self_device_time_total for x in profile.key_averages()) / total
    return {part: round(share, 4) for part, share in found.items()}


def answering(session: Session, count: int, steps: int) -> float:
    """Tokens/s of `count` greedy answers together, each in a copy of the session's pot."""
    pick = Sampler(Sampling(temperature=0))
    options: dict[str, Any] = {"pick": pick, "keep": True, "stop_ids": set()}
    generations = [
        session.fork().generation([1] * PROMPT, max_tokens=2 * steps + WARM_STEPS, **options)
        for _ in range(count)
    ]
    for generation in generations:
        generation.begin()
    for _ in range(WARM_STEPS):
        step(generations)
    started = clock(session.runner.device)
    for _ in range(steps):
        step(generations)
    taken = clock(session.runner.device) - started
    for generation in generations:
        generation.end()
    return count * steps / taken


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shape", nargs="?", default="llama-8b-shape", choices=SHAPES)
    parser.add_argument("--lengths", default="8192,32768")
    parser.add_argument("--batches", default="1,8,64")
    parser.add_argument("--pot-size", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--shares", action="store_true")
    parser.add_argument("--tensor-parallel", type=int, default=1)
    parser.add_argument("--spread", action="store_true", help="share layers out over all GPUs")
    parser.add_argument("--weights", choices=("int8", "int4"))
    parser.add_argument("--pot-dtype", choices=tuple(QUANTISED))
    parser.add_argument("--memory", help="of the first GPU, such as 8GB")
    args = parser.parse_args()
    if args.weights and (args.tensor_parallel > 1 or args.spread):
        parser.error("--weights is for one GPU")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    limited(args.memory, device)
    runner = ModelRunner(made(args, device))
    config = PotConfig(pot_size=args.pot_size, pot_dtype=args.pot_dtype)
    chance = random.Random(0)
    read: dict[str, list[float]] = {}
    peaks: dict[str, int] = {}
    for length in map(int, args.lengths.split(",")):
        ids = chance.choices(range(runner.vocabulary), k=length)
        both = [reading(runner, config, ids) for _ in range(2)]
        read[str(length)] = [round(speed) for speed, _ in both]
        peaks[str(length)] = both[-1][1]
    session = Session(runner, None, config)
    ids = chance.choices(range(runner.vocabulary), k=2 * args.pot_size)
    session.append(ids, question=ids[:CATALYST])
    answered: dict[str, int | None] = {}
    for count in args.batches.split(","):
        speed = or_none(lambda count=count: answering(session, int(count), args.steps))
        answered[count] = speed and round(speed)
    record = {
        "arguments": vars(args),
        "reading_tps": read,
        "peak_bytes": peaks,
        "answering_tps": answered,
        "pot_bytes": session.stats.pot_bytes,
        "weight_bytes": sum(
            one.nbytes for one in (*runner.model.parameters(), *runner.model.buffers())
        ),
    }
    if device.type == "cuda":
        record["reserved_peak_bytes"] = torch.cuda.max_memory_reserved(device)
    if args.shares:
        record["shares"] = shares(session, ids)
    keep("engine_speed", record)


if __name__ == "__main__":
    main()
