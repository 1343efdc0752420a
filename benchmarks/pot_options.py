"""What the options that policies share buy: the same text read with each, in one run.

    python benchmarks/pot_options.py [MODEL] [--tokens 12000] [--pot-size 1024] [--file TEXT]

Per option: the mean loss per token of the text, given what the pot held at that moment (nats; its
exponential is the streaming perplexity), the distillations it took, how full the survivors leave
the pot on average over layers, the pot's bytes and the time, relative to the default.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from machine import keep

VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "distil to 3/8": {"distill_to": 3 / 8},
    "distil to 1/4": {"distill_to": 1 / 4},
    "int8": {"pot_dtype": "int8"},
    "fp8": {"pot_dtype": "fp8"},
    "shared heads": {"shared_heads": True},
    "largest score ever": {"score_memory": 1.0},
    "pool 13": {"pool": 13},
    "outliers": {"policy": "outliers"},
    "streaming": {"policy": "streaming"},
    "h2o": {"policy": "h2o"},
    "full": {"policy": "full"},
}


def read(runner: Any, ids: list[int], size: int, options: dict[str, Any]) -> dict[str, float]:
    from infinipot import PotConfig, Session

    options = {"pot_size": size, **options}
    if isinstance(options.get("distill_to"), float):
        options["distill_to"] = int(options["distill_to"] * size)
    session = Session(runner, None, PotConfig(**options))
    session.score_all()  # every policy's losses, whether it goes by them or not
    losses: list[float] = []

    def note() -> None:
        fresh = session.stats.tokens_read - len(losses)
        losses.extend(session.pot.novelty[0, -fresh:].tolist())

    started = time.perf_counter()
    session.append(ids, question=ids[:24], progress=note)
    seconds = time.perf_counter() - started
    layers = session.pot.bounded
    return {
        "loss": sum(losses[1:]) / len(losses[1:]),
        "distillations": session.stats.distillations,
        "survivors": sum(layer.index.shape[-1] / (layer.size or len(ids)) for layer in layers)
        / len(layers),
        "pot_bytes": session.stats.pot_bytes,
        "seconds": round(seconds, 2),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--tokens", type=int, default=12_000)
    parser.add_argument("--pot-size", type=int, default=1024)
    parser.add_argument(
        "--file", type=Path, help="UTF-8 text; without it Python's own language reference"
    )
    args = parser.parse_args()

    import pydoc_data.topics

    from infinipot import load
    from infinipot.model.runner import ModelRunner

    model, tokenizer = load(args.model)
    if args.file:
        text = args.file.read_text("utf-8")
    else:
        text = "\n".join(pydoc_data.topics.topics.values())
    ids = tokenizer.encode(text[: 8 * args.tokens], add_special_tokens=False)[: args.tokens]
    runner = ModelRunner(model)
    rows = {}
    read(runner, ids[:1500], args.pot_size, {})  # warm up
    for name, options in VARIANTS.items():
        rows[name] = row = read(runner, ids, args.pot_size, options)
        first = rows["default"]
        row |= {
            "relative_time": round(row["seconds"] / first["seconds"], 3),
            "relative_bytes": round(row["pot_bytes"] / first["pot_bytes"], 3),
        }
        print(
            f"{name:20} loss {row['loss']:.3f}  {row['distillations']:4} distillations  survivors fill {row['survivors']:5.1%}  "
            f"bytes x{row['relative_bytes']:.2f}  time x{row['relative_time']:.2f}",
            file=sys.stderr,
        )
    keep(
        "pot_options",
        {
            "model": Path(args.model).name,
            "tokens": len(ids),
            "pot_size": args.pot_size,
            "rows": rows,
        },
    )
