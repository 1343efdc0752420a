"""What a form costs: seconds of a step of answering with a grammar, beside the same step without.

    python benchmarks/structured_speed.py [MODEL] [--rows 1,4] [--steps 60] [--rounds 5]

All rows of a batch write JSON by a schema that never ends, or none does; the two take turns, step by
step, on copies of one pot, so that whatever else the machine does meets both. One row among free
ones is measured, too: what the others pay for it. On a CPU one core works, and its time counts.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch
from machine import keep

from infinipot import PotConfig, Sampling, Session, load
from infinipot.engine.generation import Generation
from infinipot.engine.sampling import Sampler, end_tokens
from infinipot.engine.structured import Form, TokenRules
from infinipot.server.step import step

SCHEMA = {
    "type": "object",
    "properties": {
        "people": {
            "type": "array",
            "minItems": 10_000,
            "items": {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "maxLength": 20},
                    "age": {"type": "integer", "minimum": 0, "maximum": 120},
                    "kind": {"enum": ["keeper", "sailor", "visitor"]},
                },
                "required": ["name", "age", "kind"],
                "additionalProperties": False,
            },
        }
    },
    "required": ["people"],
    "additionalProperties": False,
}
QUESTION = "Write a list of people as JSON."
WARM_STEPS = 5


def clock(device: torch.device) -> float:
    """Seconds, after the device has done its work; of this process's own work on a CPU, which others
    may use, too."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return time.perf_counter()
    return time.process_time()


def begun(session: Session, grammars: list[Any], most: int) -> list[Generation]:
    """One answer for each constraint, or for None."""
    runs = []
    for number, constraint in enumerate(grammars):
        sampling = Sampling(max_tokens=most, temperature=1.0, seed=number, ignore_eos=True)
        pick = Sampler(sampling, constraint)
        runs.append(session.fork().generation(QUESTION, max_tokens=most, pick=pick, keep=True))
        runs[-1].begin()
    for _ in range(WARM_STEPS):
        step(runs)
    return runs


def measured(session: Session, batches: dict[str, list[Any]], args: Any) -> dict[str, float]:
    """Median seconds of a step of each batch; the batches take turns."""
    most = WARM_STEPS + args.steps * args.rounds + 1
    live = {name: begun(session, grammars, most) for name, grammars in batches.items()}
    taken: dict[str, list[float]] = {name: [] for name in batches}
    device = session.runner.device
    for number in range(args.steps * args.rounds):
        names = list(live)
        for name in names if number % 2 else reversed(names):
            started = clock(device)
            step(live[name])
            taken[name].append(clock(device) - started)
    for runs in live.values():
        for run in runs:
            run.end()
    return {name: statistics.median(times) for name, times in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--rows", default="1,4")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)  # time on several cores would add up
    model, tokenizer = load(args.model)
    session = Session(model, tokenizer, PotConfig(pot_size=2048))
    session.append("The keeper of the lighthouse wrote down every ship that passed. " * 40)
    ends = end_tokens(model, tokenizer)
    started = time.perf_counter()
    rules = TokenRules(tokenizer, session.runner.vocabulary, ends)
    tokenizer_s = time.perf_counter() - started
    grammar = rules.grammar(Form("json", SCHEMA))
    for rows in map(int, args.rows.split(",")):
        free = [None] * rows
        bound = [rules.constraint(grammar) for _ in range(rows)]
        mixed = [rules.constraint(grammar), *free[1:]]
        batches = {"free": free, "bound": bound, "mixed": mixed}
        if rows == 1:
            del batches["mixed"]
        seconds = measured(session, batches, args)
        more = {name: round(100 * (one / seconds["free"] - 1), 2) for name, one in seconds.items()}
        keep(
            "structured_speed",
            {
                "arguments": vars(args),
                "rows": rows,
                "vocabulary": session.runner.vocabulary,
                "tokenizer_s": round(tokenizer_s, 2),
                "step_ms": {name: round(1000 * one, 3) for name, one in seconds.items()},
                "more_percent": more,
            },
        )


if __name__ == "__main__":
    main()
