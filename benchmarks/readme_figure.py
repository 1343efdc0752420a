"""README's opening figure from results: memory against tokens read, in a pot and by stock
transformers; and which needles were found.

    python benchmarks/readme_figure.py [--results benchmarks/results] [--out docs/figure] [--bench
    MODEL] [--needle TEXT]

Left: the newest document of bench.jsonl that has stock beside it (`infinipot bench MODEL --compare
stock`). Right: the map with most cells among the records of policy infinipot in needle*.jsonl
(`infinipot needle MODEL --out FOLDER`). Writes OUT.png and OUT.svg, made to be seen 900 pixels
wide.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from infinipot.bench import figure
from infinipot.eval import charts, report, results
from infinipot.eval.results import Record
from infinipot.eval.tables import name_key, tokens
from infinipot.eval.tasks import needle

ROOT = Path(__file__).parents[1]
SIZE = (9.6, 3.9)


def compared(folder: Path, model: str | None) -> dict[str, Any]:
    """The newest result of `infinipot bench` in which both a pot's and stock's memory were
    measured, of this model if one is named."""
    path = folder / "bench.jsonl"
    if path.exists():
        lines = results.lines(path)
    else:
        lines = []
    documents = [line for line in lines if line.get("benchmark") == "bench"]
    whole = [
        document
        for document in documents
        if {"pot", "stock"} <= {row["what"] for row in document["rows"] if row.get("peak_bytes")}
    ]
    chosen = [document for document in whole if model in (None, document["model"]["name"])]
    if not chosen:
        there = (
            ", ".join(sorted({document["model"]["name"] for document in whole})) or "of no model"
        )
        raise SystemExit(
            f"{path} has no result{f' of {model}' if model else ''} with the memory of stock transformers beside a pot's (it has such results "
            f"{there}): `infinipot bench {model or 'MODEL'} --compare stock --out {path}` makes one"
        )
    return chosen[-1]


def mapped(folder: Path, text: str) -> list[Record]:
    """The records of the needle map with most cells, the first of several; text: only maps in whose
    name it stands."""
    maps: dict[str, list[Record]] = {}
    for path in sorted(folder.glob(f"{needle.NAME}*.jsonl")):
        for record in results.lines(path):
            if (
                record.get("method", "").split(":")[0] == "infinipot"
            ):  # needle_scores.jsonl, of another benchmark, has none
                test = f"{record['kind']} in {record['haystack']}"
                maps.setdefault(f"{record['model']}, {test}, {name_key(record)}", []).append(record)
    chosen = {name: records for name, records in maps.items() if text in name}
    if not chosen:
        there = "\n  ".join(maps) or "none"
        raise SystemExit(
            f"{folder}/{needle.NAME}*.jsonl have no needle map of policy infinipot{f' with {text!r} in its name' if text else ''}: `infinipot "
            f"needle MODEL --policy infinipot --out {folder}` makes one. There are:\n  {there}"
        )
    return max(
        chosen.values(),
        key=lambda records: len(
            {results.identity(record, ("depth", "length")) for record in records}
        ),
    )


def draw(document: dict[str, Any], records: list[Record], path: Path) -> list[Path]:
    made = charts.figure(*SIZE)
    left, right = made.subplots(1, 2, width_ratios=(1, 1.05))
    model = document["model"]
    machine = document["machine"]
    figure.panel(left, document, "peak_bytes", 1e9, "")
    where = f"{model['name']}, {model['dtype']}, {machine['gpu'] or machine['cpu']}"
    made_with = (
        f"torch {machine['torch']}, transformers {machine['transformers']}, {machine['date']}"
    )
    titled(left, "Peak memory, weights included (GB)", where, made_with)
    left.spines[["top", "right"]].set_visible(False)
    left.set_ylim(0, 1.4 * left.get_ylim()[1])  # room for the legend above the curves
    left.legend(fontsize=9, loc="upper left", framealpha=1, edgecolor="white")

    first = records[0]
    cells = next(iter(report.shares(records).values()))
    lengths, depths = (sorted({record[name] for record in records}) for name in ("length", "depth"))
    image = charts.heat_map(right, cells, lengths, depths, tokens)
    facts = [
        f"pot of {first['options']['pot_size']:,}",
        f"question {first['question']}",
        report.trials(records),
    ]
    options = first["method"].replace("=", " ").split(":")[1:]
    who = ", ".join([first["model"].removesuffix(".gguf"), *(options or ["defaults"])])
    titled(right, f"Needles found in {Path(first['haystack']).stem} (%)", who, ", ".join(facts))
    right.set(xlabel="tokens read", ylabel="needle's depth")
    made.colorbar(
        image,
        ax=right,
        shrink=0.9,
        pad=0.02,
        ticks=[0, 0.5, 1],
        format=lambda value, _: f"{100 * value:.0f}",
    )
    return charts.save(made, path)


def titled(axis: Any, title: str, *facts: str) -> None:
    axis.set_title("\n".join((title, *facts)), fontsize=9.5)


def main(args: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--results",
        type=Path,
        default=ROOT / "benchmarks" / "results",
        help="folder of bench.jsonl and needle*.jsonl",
    )
    parser.add_argument(
        "--out", type=Path, default=ROOT / "docs" / "figure", help="path without ending"
    )
    parser.add_argument("--bench", metavar="MODEL", help="the model on the left")
    parser.add_argument(
        "--needle",
        metavar="TEXT",
        default="",
        help="part of the name of the map on the right: model, kind, haystack, options",
    )
    given = parser.parse_args(args)
    for path in draw(
        compared(given.results, given.bench), mapped(given.results, given.needle), given.out
    ):
        print(path)


if __name__ == "__main__":
    main()
