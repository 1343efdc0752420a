"""Weights as they are beside weights in int8 and int4: memory, speed, and how well the model predicts.

    python benchmarks/quantised_weights.py MODEL [--tokens 3000] [--rounds 5] [--threads 1] [--text FILE]

All compute in float32. Memory is that of a process of its own for each kind, above what it takes before
it loads. Speed is compared in one process, in turns, as medians of the processor's time: 512 tokens in
a chunk, and steps of one token, each with the output layer for one token. The text is a part of
Python's own documentation, or of a FILE (also .gz), read in chunks of 512 tokens without a pot's bound.
It is read a second time with products in float32, to see what the rounding of activations changes.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import pydoc_data.topics
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from machine import keep

import infinipot
from infinipot.kernels import native
from infinipot.model.groups import weights_in_groups

KINDS = (None, "int8", "int4")
CHUNK = 512
STEPS = 8


def status(field: str) -> int:
    """Bytes in a field of /proc/self/status."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return 1024 * int(line.split()[1])
    raise SystemExit("memory is measured on Linux only")


def measure_memory(model: str, weights: str | None) -> dict[str, Any]:
    """Called in a process of its own: what loading takes at most, and what stays."""
    import transformers.models.auto.modeling_auto
    import transformers.models.qwen2.modeling_qwen2  # noqa: F401

    import infinipot.model.load

    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts here
    started = time.perf_counter()
    network, _ = infinipot.load(model, device="cpu", dtype="float32", weights=weights)
    took = time.perf_counter() - started
    groups = sum(one.nbytes for one in weights_in_groups(network).values())
    plain = sum(one.nbytes for one in network.parameters())
    return {
        "load_s": took,
        "weights_bytes": groups + plain,
        "stays_bytes": status("VmRSS") - before,
        "peak_bytes": status("VmHWM") - before,
    }


def losses(network: Any, ids: list[int]) -> float:
    """Mean loss in nats, over all but the first token."""
    session = infinipot.Session(
        network, None, infinipot.PotConfig(pot_size=len(ids), chunk_tokens=CHUNK, novelty=1.0)
    )
    total = 0.0
    hidden = []
    for start in range(0, len(ids), CHUNK):
        part = torch.tensor([ids[start : start + CHUNK]])
        hidden.append(session.runner.read(part, [session.pot]))
    states = torch.cat(hidden, dim=1)[:, :-1]
    total = float(session.runner.novelty(states, torch.tensor([ids[1:]])).sum())
    return total / (len(ids) - 1)


def losses_in_float32(network: Any, ids: list[int]) -> float:
    """The same with activations as they are: torch's own operations."""
    compiled = native.fits
    native.fits = lambda x: False
    try:
        return losses(network, ids)
    finally:
        native.fits = compiled


def text_of(path: Path | None) -> str:
    if path is None:
        return "\n".join(pydoc_data.topics.topics.values())
    content = path.read_bytes()
    if path.suffix == ".gz":
        content = gzip.decompress(content)
    return content.decode()


def speeds(networks: dict[str, Any], ids: list[int], rounds: int) -> dict[str, dict[str, float]]:
    """Medians of seconds for a chunk and for a step, in turns."""
    times: dict[str, dict[str, list[float]]] = {
        name: {"chunk_s": [], "step_s": []} for name in networks
    }
    for _ in range(rounds):
        for name, network in networks.items():
            session = infinipot.Session(network, None, infinipot.PotConfig(pot_size=2 * CHUNK))
            for what, counts in (("chunk_s", [CHUNK]), ("step_s", [1] * STEPS)):
                started = time.process_time()
                for count in counts:
                    session.runner.read(torch.tensor([ids[:count]]), [session.pot])
                    session.runner.head(torch.zeros(1, 1, network.config.hidden_size))
                times[name][what].append((time.process_time() - started) / len(counts))
    return {
        name: {what: statistics.median(values) for what, values in one.items()}
        for name, one in times.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--text", type=Path)
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.memory_of:
        kind = None if args.memory_of == "plain" else args.memory_of
        print(json.dumps(measure_memory(args.model, kind)))
        return
    rows = {}
    networks = {}
    text = text_of(args.text)
    for kind in KINDS:
        name = kind or "plain"
        command = [sys.executable, __file__, args.model, "--memory-of", name]
        said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        rows[name] = json.loads(said)
        networks[name], tokenizer = infinipot.load(
            args.model, device="cpu", dtype="float32", weights=kind
        )
        ids = tokenizer(text[: 10 * args.tokens]).input_ids[: args.tokens]
        rows[name]["nats"] = losses(networks[name], ids)
        rows[name]["float32_nats"] = losses_in_float32(networks[name], ids)
        rows[name]["perplexity_ratio"] = math.exp(rows[name]["nats"] - rows["plain"]["nats"])
        print(name, rows[name], file=sys.stderr)
    for name, one in speeds(networks, ids, args.rounds).items():
        rows[name] |= one
    for name, row in rows.items():
        row["reading_ratio"] = rows["plain"]["chunk_s"] / row["chunk_s"]
        row["answering_ratio"] = rows["plain"]["step_s"] / row["step_s"]
        row["peak_ratio"] = row["peak_bytes"] / row["stays_bytes"]
        print(name, row, file=sys.stderr)
    keep(
        "quantised_weights",
        {
            "benchmark": "quantised_weights",
            "model": Path(args.model).name,
            "dtype": "float32",
            "text": args.text.name if args.text else "pydoc_data.topics",
            "tokens": args.tokens,
            "rounds": args.rounds,
            "rows": rows,
        },
    )


if __name__ == "__main__":
    main()
