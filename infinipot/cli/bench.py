"""infinipot bench: measure, print the table, keep the result."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infinipot.cli.app import app
from infinipot.cli.command_options import CommandOptions, takes
from infinipot.cli.console import BadUse, doing, put, say
from infinipot.cli.options import COMMON, POT
from infinipot.cli.parsers import number, size_from

if TYPE_CHECKING:
    import torch

    from infinipot.bench.comparison import Task

RESULTS = Path("benchmarks/results")
COLUMNS = {
    "prefill tok/s": ("prefill_tps", 1.0, 0),
    "first token s": ("first_token_s", 1.0, 2),
    "decode tok/s": ("decode_tps", 1.0, 1),
    "batch tok/s": ("batch_tps", 1.0, 1),
    "peak MB": ("peak_bytes", 1e6, 0),
    "grew MB": ("grew_bytes", 1e6, 0),
    "batch peak MB": ("batch_peak_bytes", 1e6, 0),
    "KV MB": ("kv_bytes", 1e6, 0),
}
"""Heading: number in a row, divisor, decimals."""


@app.command("bench")
@takes(POT, COMMON)
def bench(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="As for generate, or a shape with random weights: llama-8b-shape.",
            show_default=False,
        ),
    ],
    options: CommandOptions,
    lengths: Annotated[
        str,
        typer.Option("--lengths", metavar="N,N", help="Tokens to read; 8k is 8,192, 1m 1,048,576."),
    ] = "8k,32k",
    compare: Annotated[
        str | None,
        typer.Option("--compare", metavar="stock", help="Also measure stock transformers."),
    ] = None,
    batch: Annotated[
        int,
        typer.Option(
            "--batch",
            metavar="N",
            parser=size_from(1),
            help="Answers decoded together, besides one alone.",
        ),
    ] = 8,
    decode_tokens: Annotated[
        int,
        typer.Option(
            "--decode-tokens", metavar="N", parser=size_from(8), help="Tokens of each answer."
        ),
    ] = 64,
    rounds: Annotated[
        int,
        typer.Option(
            "--rounds",
            metavar="N",
            parser=size_from(1),
            help="Times each row is measured; its medians count.",
        ),
    ] = 3,
    patience: Annotated[
        float,
        typer.Option(
            "--patience",
            metavar="S",
            parser=number,
            help="A row that took longer than this is not repeated.",
        ),
    ] = 60,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE",
            help="Add the result to this file. "
            "[default: benchmarks/results/bench.jsonl, if the folder exists]",
        ),
    ] = None,
) -> int:
    """Measure speed and memory of reading and answering in a pot."""
    if compare not in (None, "stock"):
        raise BadUse(
            f"--compare {compare} is not known: stock is; kvpress, which needs another "
            "transformers, has benchmarks/kvpress_beside.py"
        )
    tokens = tokens_of(lengths)
    from infinipot.bench.comparison import Task

    task = Task(
        lengths=tokens,
        stock=compare == "stock",
        batch=batch,
        tokens=decode_tokens,
        rounds=rounds,
        patience_s=patience,
    )
    measure(options, model, task, result_file(out))
    return 0


def tokens_of(text: str) -> tuple[int, ...]:
    """`8k,32k,1m` -> tokens; k is 1,024, m is 1,048,576."""
    try:
        return tuple(sorted({size_from(1)(part) for part in text.split(",")}))
    except typer.BadParameter:
        raise BadUse(
            f"--lengths {text!r} is not allowed: give numbers of tokens, "
            "separated by commas, such as 8192 or 8k,32k,1m"
        ) from None


def result_file(out: Path | None) -> Path | None:
    """Where the result is kept; None: nowhere."""
    if out is None and RESULTS.is_dir():
        return RESULTS / "bench.jsonl"
    if out is not None and out.is_dir():
        raise BadUse(f"cannot keep the result in {out}: it is a folder, give a file")
    if out is not None and not out.absolute().parent.is_dir():
        raise BadUse(f"cannot keep the result in {out}: there is no folder {out.absolute().parent}")
    return out


def measure(options: CommandOptions, model: str, task: Task, out: Path | None) -> None:
    """Measure. The table goes to stderr, the document, one line of JSON, to stdout and to the end
    of the file `out`."""
    from infinipot.cli.console import silence

    config = options.config()
    with doing(f"loading {model}", options.quiet):
        silence(options.quiet)
        loaded = load(options, model)
    from infinipot.bench.comparison import compare

    def show(line: str) -> None:
        if not options.quiet:
            say(line)

    document = compare(Path(model).name, loaded, config, task, show)
    for line in table(document):
        say(line)
    text = json.dumps(rounded(document))
    if out is not None:
        with out.open("a") as file:
            file.write(text + "\n")
    put(text + "\n")


def load(options: CommandOptions, model: str) -> Any:
    """A model by name, or a shape with random weights."""
    from infinipot.bench.shapes import SHAPES, shaped
    from infinipot.model import load

    if model in SHAPES:
        device = load.best_device(options["device"] or "auto")
        dtype = load.best_dtype(options["dtype"] or "bfloat16", device)
        count = options["tensor_parallel"]
        several = "tensor-parallel" if count is not None else "spread"
        if options["weights"] and (count is not None or options["spread"]):
            raise BadUse(
                f"--weights {options['weights']} is for a model on one device: leave it out, or "
                f"--{several}"
            )
        if count is not None:
            return shaped_out(model, dtype, count, device)
        return shaped(
            model,
            device=device,
            dtype=dtype,
            spread=bool(options["spread"]),
            weights=options["weights"],
        )
    names = ", ".join(SHAPES)
    near = difflib.get_close_matches(model, SHAPES, n=1, cutoff=0.8)
    if near and not Path(model).exists():
        raise BadUse(f"there is no shape {model!r}: did you mean {near[0]!r}? (known: {names})")
    try:
        return load.load(model, **options.loading)[0]
    except OSError as problem:
        raise BadUse(f"{problem}; shapes with random weights: {names}") from problem


def shaped_out(name: str, dtype: torch.dtype, count: int, device: torch.device) -> Any:
    """A model of a shape over `count` processes, of which this one has the first part."""
    from infinipot.bench.shapes import shape_config
    from infinipot.checks import whole_number
    from infinipot.model.several import check_shareable
    from infinipot.parallel.followers import load_on_all_ranks

    whole_number("tensor_parallel", count, 1, unit="")
    check_shareable(name, shape_config(name), count, device)
    maker = "infinipot.bench.shapes:shaped_shards"
    return load_on_all_ranks(maker, (name, dtype), count, device)


def rounded(value: Any) -> Any:
    """The document with five significant digits, more than these numbers have."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {name: rounded(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(item) for item in value]
    return value


def table(document: dict[str, Any]) -> Iterator[str]:
    """The document for people, line by line."""
    model = document["model"]
    machine = document["machine"]
    task = document["task"]
    yield (
        f"{model['name']}, {model['parameters'] / 1e6:,.0f}M parameters, {model['dtype']}, "
        f"{machine['gpu'] or machine['cpu']}, torch {machine['torch']}, "
        f"transformers {machine['transformers']}, stock attention {model['attention']}"
    )
    yield (
        f"pot {document['pot_size']:,}, distil to {document['distill_to']:,}; "
        f"batch {task['batch']}; medians of up to {task['rounds']} rounds"
    )
    yield f"{'tokens':>10} {'':6}" + "".join(f"{heading:>15}" for heading in COLUMNS)
    for row in document["rows"]:
        yield row_text(row)
    for ratio in document["ratios"]:
        yield ratio_text(ratio)
    yield from overhead(document)


def row_text(row: dict[str, Any]) -> str:
    text = f"{row['length']:>10,} {row['what']:6}"
    for name, unit, digits in COLUMNS.values():
        value = row.get(name)
        cell = "-"
        if value is not None:
            cell = f"{value / unit:,.{digits}f}"
        text += f"{cell:>15}"
    if row.get("died"):
        text += f"  {row['died']}"
    return text


def ratio_text(ratio: dict[str, Any]) -> str:
    text = f"{ratio['length']:>10,} {'ratio':6}"
    for name, _, _ in COLUMNS.values():
        cell = ""
        if name in ratio:
            cell = f"{ratio[name]:.2f} x"
        text += f"{cell:>15}"
    return text


def overhead(document: dict[str, Any]) -> Iterator[str]:
    """What distillation costs: at the length at which the loop alone was measured, and by part."""
    rows = document["rows"]
    length = next((row["length"] for row in rows if row["what"] == "loop"), None)
    speeds = {row["what"]: row["prefill_tps"] for row in rows if row["length"] == length}
    if "no nuc" in speeds:
        novelty = 1 - speeds["pot"] / speeds["no nuc"]
        distillation = 1 - speeds["pot"] / speeds["loop"]
        yield (
            f"of the time to read, novelty takes {100 * novelty:.1f} %, "
            f"novelty and catalyst together {100 * distillation:.1f} %"
        )
    elif speeds:
        yield f"of the time to read, choosing takes {100 * (1 - speeds['pot'] / speeds['loop']):.1f} %"
    parts = document["parts"]
    if parts:
        shares = ", ".join(
            f"{name.replace('_', ' ')} {100 * share:.1f} %"
            for name, share in parts["shares"].items()
        )
        yield f"part by part: {shares}; together {100 * parts['overhead']:.1f} %"
