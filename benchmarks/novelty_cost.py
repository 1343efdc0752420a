"""What novelty (NuC) costs: the time to read a text with it, relative to the time without, in one
run.

    python benchmarks/novelty_cost.py [MODEL] [--tokens 6000] [--rounds 5]

Both readings distil at the same places with the same catalyst; they take turns, and the result is
the median of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from machine import keep


def seconds(runner: object, ids: list[int], novelty: float) -> float:
    from infinipot import PotConfig, Session

    session = Session(runner, None, PotConfig(pot_size=1024, distill_to=512, novelty=novelty))  # type: ignore[arg-type]
    started = time.perf_counter()
    session.append(ids, question=ids[:24])
    return time.perf_counter() - started


def rounds(runner: object, ids: list[int], count: int) -> Iterator[tuple[float, float]]:
    for number in range(count):
        without = seconds(runner, ids, 0.0)
        with_novelty = seconds(runner, ids, 0.5)
        print(
            f"round {number + 1}: {without:.2f} s without, {with_novelty:.2f} s with",
            file=sys.stderr,
        )
        yield without, with_novelty


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--tokens", type=int, default=6000)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()

    import pydoc_data.topics

    from infinipot import load
    from infinipot.model.runner import ModelRunner

    model, tokenizer = load(args.model)
    text = "\n".join(pydoc_data.topics.topics.values())[: 8 * args.tokens]
    ids = tokenizer.encode(text, add_special_tokens=False)[: args.tokens]
    runner = ModelRunner(model)
    seconds(runner, ids[:1500], 0.5)  # warm up
    times = list(rounds(runner, ids, args.rounds))
    ratio = statistics.median(with_novelty / without for without, with_novelty in times)
    print(f"reading with novelty takes {ratio:.2f} times as long as without", file=sys.stderr)
    keep(
        "novelty_cost",
        {
            "model": Path(args.model).name,
            "tokens": len(ids),
            "ratio": round(ratio, 3),
            "rounds_s": times,
        },
    )
