"""How fast answers are made that stay in their pots, one alone and eight in one forward pass: with
novelty, and without.

    python benchmarks/answers_together.py [MODEL] [--dtype auto] [--tokens 16] [--rounds 3]

MODEL: `tiny` (random weights) or whatever `infinipot` takes. The server's step, without the server.
Medians, tokens/s of all answers together.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

from machine import keep
from server_process import TESTS

from infinipot import PotConfig, Session, load
from infinipot.model.runner import ModelRunner
from infinipot.server.step import step


def speed(runner: ModelRunner, tokenizer: object, count: int, novelty: float, tokens: int) -> float:
    sessions = [
        Session(runner, tokenizer, PotConfig(pot_size=512, novelty=novelty)) for _ in range(count)
    ]
    options = {
        "max_tokens": tokens,
        "pick": lambda logits: int(logits.argmax()),
        "keep": True,
        "stop_ids": set(),
    }
    generations = [session.generation("Tell me a story.", **options) for session in sessions]
    for generation in generations:
        generation.begin()
    started = time.perf_counter()
    for _ in range(tokens):
        step(generations)
    taken = time.perf_counter() - started
    for generation in generations:
        generation.end()
    return count * tokens / taken


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="tiny")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    sys.path.insert(0, str(TESTS))
    from live import tiny

    if args.model == "tiny":
        model, tokenizer = tiny()
    else:
        model, tokenizer = load(args.model, dtype=args.dtype)
    runner = ModelRunner(model)
    speed(runner, tokenizer, 2, 0.25, 4)  # warm up
    cases = [(count, novelty) for count in (1, 8) for novelty in (0.25, 0.0)]
    rounds = [
        {case: speed(runner, tokenizer, *case, args.tokens) for case in cases}
        for _ in range(args.rounds)
    ]
    tps = {
        f"{count}, novelty {novelty:g}": round(
            statistics.median(one[count, novelty] for one in rounds), 1
        )
        for count, novelty in cases
    }
    dtype = str(model.dtype).removeprefix("torch.")
    result = {"model": args.model, "dtype": dtype, "tokens": args.tokens, "tps": tps}
    keep("answers_together", result)


if __name__ == "__main__":
    main()
