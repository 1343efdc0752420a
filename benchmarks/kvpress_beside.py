"""kvpress beside the pot: the same model, the same text, the same budget of entries; time and
memory.

    python -m venv .venv-kvpress && .venv-kvpress/bin/pip install kvpress      # it wants an older transformers than infinipot
    PYTHONPATH=. .venv-kvpress/bin/python benchmarks/kvpress_beside.py MODEL --python .venv/bin/python [--lengths 8192 32768]

Run by the Python that has kvpress, it has the one named with --python, which has infinipot, measure
the pot first (`infinipot bench`). MODEL is a folder, or a shape with random weights. A press
compresses the cache after one forward pass over the whole text, to as many entries as the pot has;
then an answer is decoded.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

from machine import keep

COLUMNS = {
    "prefill_tps": 1.0,
    "first_token_s": 1.0,
    "decode_tps": 1.0,
    "peak_bytes": 1e6,
    "grew_bytes": 1e6,
    "kv_bytes": 1e6,
}
HEADINGS = ("prefill tok/s", "first token s", "decode tok/s", "peak MB", "grew MB", "KV MB")
STARTS = 4
"""Tokens of an answer that come before the pace is taken, as in `infinipot bench`."""


def pot_rows(args: argparse.Namespace, out: Path) -> list[dict[str, Any]]:
    """What `infinipot bench` says of the pot and of stock, with the other interpreter."""
    command = [
        args.python,
        "-m",
        "infinipot.cli",
        "bench",
        args.model,
        "--lengths",
        ",".join(map(str, args.lengths)),
        "--compare",
        "stock",
    ]
    for name in (
        "pot_size",
        "distill_to",
        "chunk_tokens",
        "rounds",
        "decode_tokens",
        "device",
        "dtype",
    ):
        command += [f"--{name.replace('_', '-')}", str(getattr(args, name))]
    subprocess.run(
        [*command, "--batch", "1", "--out", str(out)], check=True, stdout=subprocess.DEVNULL
    )
    rows: list[dict[str, Any]] = json.loads(out.read_text())["rows"]
    return [row for row in rows if row["what"] in ("pot", "stock")]


def load(args: argparse.Namespace) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    from infinipot.bench.shapes import SHAPES, shaped

    dtype = getattr(torch, args.dtype)
    if args.model in SHAPES:
        return shaped(args.model, device=torch.device(args.device), dtype=dtype)
    return (
        AutoModelForCausalLM.from_pretrained(args.model, dtype=dtype, trust_remote_code=False)
        .to(args.device)
        .eval()
    )


def press_row(model: Any, name: str, ids: Any, budget: int, tokens: int) -> dict[str, Any]:
    """One reading and one answer with a press. budget: entries it leaves."""
    import kvpress
    import torch
    from transformers import DynamicCache

    from infinipot.bench.measure import clock, peak
    from infinipot.machine import out_of_memory

    press = getattr(kvpress, name)(compression_ratio=max(0.0, 1 - budget / ids.shape[1]))
    row: dict[str, Any] = {}
    with peak(ids.device) as most, torch.no_grad():
        try:
            cache = DynamicCache()
            started = clock()
            with press(model):
                said = (
                    model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
                    .logits[:, -1:]
                    .argmax(dim=-1)
                )
            read_s = clock() - started
            said.tolist()
            row |= {"prefill_tps": ids.shape[1] / read_s, "first_token_s": clock() - started}
            row["kv_bytes"] = sum(
                x.nbytes for layer in cache.layers for x in (layer.keys, layer.values)
            )
            times = []
            for place in range(ids.shape[1], ids.shape[1] + tokens):
                position = torch.tensor([[place]], device=ids.device)
                said = (
                    model(
                        input_ids=said, past_key_values=cache, position_ids=position, use_cache=True
                    )
                    .logits[:, -1:]
                    .argmax(dim=-1)
                )
                said.tolist()
                times.append(clock())
            row["decode_tps"] = (len(times) - 1 - STARTS) / (times[-1] - times[STARTS])
        except (RuntimeError, MemoryError) as problem:
            if not out_of_memory(problem):
                raise
            row["died"] = "out of memory"
    return {**row, "peak_bytes": most.bytes, "grew_bytes": most.grew}


def press_rows(args: argparse.Namespace) -> list[dict[str, Any]]:
    import torch

    model = load(args)
    vocabulary = model.config.vocab_size
    ids = torch.randint(
        vocabulary, (1, max(args.lengths)), generator=torch.Generator().manual_seed(0)
    ).to(args.device)  # as `infinipot bench`
    rows = []
    for name in args.press:
        press_row(model, name, ids[:, :1024], args.pot_size, 8)  # warm up
        for length in args.lengths:
            runs = []
            for _ in range(args.rounds):
                print(f"{length:,} tokens, {name}", file=sys.stderr)
                runs.append(
                    press_row(model, name, ids[:, :length], args.pot_size, args.decode_tokens)
                )
                if "died" in runs[-1]:
                    break
            whole = [run for run in runs if "died" not in run]
            if whole:
                middle = {key: statistics.median(run[key] for run in whole) for key in COLUMNS}
            else:
                middle = runs[-1]
            rows.append({"length": length, "what": name, **middle})
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    """The table, to stderr."""
    print(
        f"{'tokens':>10} {'':24}" + "".join(f"{heading:>15}" for heading in HEADINGS),
        file=sys.stderr,
    )
    for row in rows:
        cells = "".join(
            f"{row[name] / unit:>15,.2f}" if row.get(name) else f"{'-':>15}"
            for name, unit in COLUMNS.items()
        )
        print(
            f"{row['length']:>10,} {row['what']:24}{cells}  {row.get('died') or ''}",
            file=sys.stderr,
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--python", required=True, help="an interpreter that has infinipot")
    parser.add_argument("--lengths", type=int, nargs="+", default=[8192, 32_768])
    parser.add_argument("--press", nargs="+", default=["SnapKVPress", "ExpectedAttentionPress"])
    parser.add_argument("--pot-size", type=int, default=2048)
    parser.add_argument("--distill-to", type=int, default=1024)
    parser.add_argument("--chunk-tokens", type=int, default=512)
    parser.add_argument("--decode-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="bfloat16")
    args = parser.parse_args()
    args.lengths.sort()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TQDM_DISABLE"] = "1"
        rows = pot_rows(args, Path(folder) / "bench.jsonl")
    rows += press_rows(args)
    rows.sort(key=lambda row: row["length"])
    show(rows)
    sizes = {
        name: getattr(args, name)
        for name in ("pot_size", "distill_to", "chunk_tokens", "dtype", "device")
    }
    about = {"kvpress": metadata.version("kvpress"), "model": Path(args.model).name}
    keep("kvpress_beside", {**about, **sizes, "rows": rows})
