"""How fast the engine reads and answers, without the server: texts of several lengths, and answers
alone and together, in one warm process. `infinipot bench` compares; this shows many batch sizes.

    python benchmarks/engine_speed.py [SHAPE] [--lengths 8192,32768] [--batches 1,8,64]

SHAPE: a model with random weights, from `infinipot.bench.shapes.SHAPES`. Each length is read twice,
since the first reading makes the recordings.
"""

from __future__ import annotations

import argparse
import random
import time
from typing import Any

import torch
from machine import keep

from infinipot import PotConfig, Session
from infinipot.bench.shapes import SHAPES, shaped
from infinipot.engine.sampling import Sampler
from infinipot.model.runner import ModelRunner
from infinipot.sampling import Sampling
from infinipot.server.step import step

CATALYST = 30
PROMPT = 5
WARM_STEPS = 5


def clock(device: torch.device) -> float:
    """Seconds, after the device has done its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def reading(runner: ModelRunner, config: PotConfig, ids: list[int]) -> float:
    """Tokens/s of one text in a new session, question known."""
    session = Session(runner, None, config)
    started = clock(runner.device)
    session.append(ids, question=ids[:CATALYST])
    return len(ids) / (clock(runner.device) - started)


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
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    runner = ModelRunner(shaped(args.shape, device=device))
    config = PotConfig(pot_size=args.pot_size)
    chance = random.Random(0)
    read: dict[str, list[float]] = {}
    for length in map(int, args.lengths.split(",")):
        ids = chance.choices(range(runner.vocabulary), k=length)
        read[str(length)] = [round(reading(runner, config, ids)) for _ in range(2)]
    session = Session(runner, None, config)
    ids = chance.choices(range(runner.vocabulary), k=2 * args.pot_size)
    session.append(ids, question=ids[:CATALYST])
    answered = {
        count: round(answering(session, int(count), args.steps))
        for count in args.batches.split(",")
    }
    keep(
        "engine_speed",
        {
            "arguments": vars(args),
            "reading_tps": read,
            "answering_tps": answered,
            "pot_bytes": session.stats.pot_bytes,
        },
    )


if __name__ == "__main__":
    main()
