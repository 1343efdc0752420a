"""What `bench` and `plot` do beside measuring and drawing: read their options, load the model,
print the table, keep the result."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infinipot.cli.console import BadUse, doing, put, say
from infinipot.cli.options import Given

if TYPE_CHECKING:
    from infinipot.bench.comparison import Task

RESULTS = Path("benchmarks/results")
UNITS = {"k": 1 << 10, "m": 1 << 20}
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
"""Heading: number in a row, what it is divided by, decimals."""


def lengths(text: str) -> tuple[int, ...]:
    """`8k,32k,1m` -> tokens; k is 1,024, m is 1,048,576."""
    found = []
    for part in text.lower().split(","):
        if part[-1:] in UNITS:
            digits = part[:-1]
            unit = UNITS[part[-1]]
        else:
            digits = part
            unit = 1
        if not digits.strip().isdigit() or not int(digits):
            raise BadUse(
                f"--lengths {text!r} is not allowed: give numbers of tokens with commas between, such as 8192 or 8k,32k,1m"
            )
        found.append(int(digits) * unit)
    return tuple(sorted(set(found)))


def run(given: Given, model: str, task: Task, out: Path | None, spread: bool) -> None:
    """Measure, print the table to stderr and the document, one line of JSON, to stdout, and add it
    to a file of such lines."""
    from infinipot.cli.session import silence

    if out is None and RESULTS.is_dir():
        out = RESULTS / "bench.jsonl"
    if out is not None and not out.absolute().parent.is_dir():
        raise BadUse(f"cannot keep the result in {out}: there is no folder {out.absolute().parent}")
    config = given.config()
    quiet = bool(given["quiet"])
    with doing(f"loading {model}", quiet):
        silence(quiet)
        loaded = load(given, model, spread)
    from infinipot.bench.comparison import compare

    document = compare(
        Path(model).name, loaded, config, task, (lambda line: None) if quiet else say
    )
    for line in table(document):
        say(line)
    text = json.dumps(rounded(document))
    if out is not None:
        with out.open("a") as file:
            file.write(text + "\n")
    put(text + "\n")


def load(given: Given, model: str, spread: bool) -> Any:
    """A model by name, or a shape with random weights."""
    from infinipot.bench.shapes import SHAPES, shaped
    from infinipot.model import load

    if model in SHAPES:
        device = load.best_device(given["device"] or "auto")
        return shaped(
            model,
            device=device,
            dtype=load.best_dtype(given["dtype"] or "bfloat16", device),
            spread=spread,
        )
    if spread:
        raise BadUse(f"--spread is for shapes ({', '.join(SHAPES)}), not for {model}")
    wanted = {name: given[name] for name in ("device", "dtype") if given[name]}
    try:
        return load.load(model, **wanted)[0]
    except OSError as problem:
        raise BadUse(f"{problem}; shapes with random weights: {', '.join(SHAPES)}") from problem


def rounded(value: Any) -> Any:
    """The document with five significant digits, which is more than these numbers have."""
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
        f"{model['name']}, {model['parameters'] / 1e6:,.0f}M parameters, {model['dtype']}, {machine['gpu'] or machine['cpu']}, torch "
        f"{machine['torch']}, transformers {machine['transformers']}, stock attention {model['attention']}"
    )
    yield f"pot {document['pot_size']:,}, distil to {document['distill_to']:,}; batch {task['batch']}; medians of up to {task['rounds']} rounds"
    yield f"{'tokens':>10} {'':6}" + "".join(f"{heading:>15}" for heading in COLUMNS)
    for row in document["rows"]:
        cells = "".join(
            f"{cell(row.get(name), unit, digits):>15}" for name, unit, digits in COLUMNS.values()
        )
        yield f"{row['length']:>10,} {row['what']:6}{cells}" + (
            f"  {row['died']}" if row.get("died") else ""
        )
    for ratio in document["ratios"]:
        cells = "".join(
            f"{f'{ratio[name]:.2f} x' if name in ratio else '':>15}"
            for name, _, _ in COLUMNS.values()
        )
        yield f"{ratio['length']:>10,} {'ratio':6}{cells}"
    speeds = {
        row["what"]: row["prefill_tps"]
        for row in document["rows"]
        if row["length"] == whole_loop(document)
    }
    if speeds:
        novelty, all_of_it = (1 - speeds["pot"] / speeds[other] for other in ("no nuc", "loop"))
        yield f"of the time to read, novelty takes {100 * novelty:.1f} %, it and the catalyst together {100 * all_of_it:.1f} %"
    if parts := document["parts"]:
        shares = ", ".join(
            f"{name.replace('_', ' ')} {100 * share:.1f} %"
            for name, share in parts["shares"].items()
        )
        yield f"part by part: {shares}; together {100 * parts['overhead']:.1f} %"


def whole_loop(document: dict[str, Any]) -> int | None:
    """The length at which the loop alone was measured."""
    return next((row["length"] for row in document["rows"] if row["what"] == "loop"), None)


def cell(value: float | None, unit: float, digits: int) -> str:
    if value is None:
        return "-"
    return f"{value / unit:,.{digits}f}"


def plot(results: Path, model: str | None, stem: Path | None) -> None:
    try:
        from infinipot.bench import figure
    except ModuleNotFoundError as problem:
        raise BadUse(f"plotting needs {problem.name}: pip install 'infinipot[plot]'") from problem
    if not results.is_file():
        raise BadUse(
            f"there is no file {results}: `infinipot bench MODEL --out {results}` makes one"
        )
    document = figure.latest(results, model)
    stem = stem or results.with_name(f"{results.stem}-{document['model']['name']}")
    if not stem.absolute().parent.is_dir():
        raise BadUse(f"cannot write {stem}: there is no folder {stem.absolute().parent}")
    for path in figure.draw(document, stem):
        put(f"{path}\n")
