"""README's opening figure from results: memory against tokens read, in a pot and by stock
transformers; and how many needles a pot and other methods found.

    python benchmarks/readme_figure.py [--results benchmarks/results] [--out docs/figure] [--bench
    MODEL] [--needle TEXT]

Left: the newest document of bench.jsonl that has stock beside it (`infinipot bench MODEL --compare
stock`). Right: the map with most cells among the records of policy infinipot in needle*.jsonl
(`infinipot needle MODEL --out FOLDER`), and beside it the other policies, as they are without
options, on the same model and kind of text. Writes OUT.png and OUT.svg, made to be seen 900 pixels
wide. README's own: `--bench smollm2 --needle "distill_to=3072:recent=256', 'known'"`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from infinipot.bench import figure
from infinipot.eval import charts, results
from infinipot.eval.results import Record
from infinipot.eval.stats import share_interval
from infinipot.eval.tables import name_key, tokens
from infinipot.eval.tasks import needle

ROOT = Path(__file__).parents[1]
SIZE = (9.6, 3.9)
FEWER = "infinipot, fewer survivors"
OTHERS = {
    FEWER: "#56b4e9",
    "keydiff": "#e69f00",
    "h2o": "#009e73",
    "snapkv": "#d55e00",
    "tova": "#a8578a",
    "streaming": "#6b6b6b",
}
"""Policies beside ours, with colours that are told apart without red and green, too."""
MARKS = dict(zip(OTHERS, "osD^vP", strict=True))


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


def beside(folder: Path, ours: Record) -> dict[str, list[Record]]:
    """The records of other policies without options, on the same model and kind of text; and those
    of ours that keeps as few entries as they do, if it differs in nothing else."""
    same = ("model", "kind", "haystack", "system")
    found: dict[str, list[Record]] = {}
    for path in sorted(folder.glob(f"{needle.NAME}*.jsonl")):
        for record in results.lines(path):
            if "method" in record and all(record[key] == ours[key] for key in same):
                name = record["method"]
                if name.split(":")[0] == "infinipot" and fewer(record, ours):
                    name = FEWER
                found.setdefault(name, []).append(record)
    return {name: found[name] for name in OTHERS if name in found}


def fewer(record: Record, ours: Record) -> bool:
    """Whether it keeps fewer entries, and differs in nothing else."""
    options = {**record["options"], "distill_to": ours["options"].get("distill_to")}
    same = options == ours["options"] and record["question"] == ours["question"]
    return same and record["options"]["distill_to"] < options["distill_to"]


def line(axis: Any, some: list[Record], shift: float, **style: Any) -> None:
    """Right answers by length over all depths, with Wilson's intervals."""
    points = []
    for length in sorted({record["length"] for record in some}):
        right = [record["right"] for record in some if record["length"] == length]
        low, high = share_interval(sum(right), len(right))
        points.append((length * shift, sum(right) / len(right), low, high))
    places = [place for place, *_ in points]
    shares, lows, highs = ([100 * x for x in row] for row in [*zip(*points, strict=True)][1:])
    errors = [
        [max(0.0, share - low) for share, low in zip(shares, lows, strict=True)],
        [max(0.0, high - share) for share, high in zip(shares, highs, strict=True)],
    ]
    axis.errorbar(places, shares, yerr=errors, elinewidth=1, capsize=0, **style)


def draw(
    document: dict[str, Any],
    records: list[Record],
    others: dict[str, list[Record]],
    path: Path,
) -> list[Path]:
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

    line(right, records, 1.0, label="infinipot", color="#0072b2", marker="o", linewidth=2.4)
    for number, (name, some) in enumerate(others.items(), 1):
        style = {"color": OTHERS[name], "marker": MARKS[name], "markerfacecolor": "white"}
        line(right, some, 1.05**number, label=name, linewidth=1.3, markersize=5, **style)
    lengths = sorted({r["length"] for some in (records, *others.values()) for r in some})
    right.set_xscale("log", base=2)
    right.set_xticks(lengths, [tokens(length) for length in lengths])
    right.minorticks_off()
    right.set(xlabel="tokens read", ylim=(-4, 104))
    right.grid(color="#dddddd", linewidth=0.7)
    right.spines[["top", "right"]].set_visible(False)
    right.legend(fontsize=9, loc="center right", framealpha=1, edgecolor="white")
    titled(
        right,
        f"Needles found in {Path(records[0]['haystack']).stem} (%), 95 % intervals",
        *facts(records, others),
    )
    return charts.save(made, path)


def facts(records: list[Record], others: dict[str, list[Record]]) -> tuple[str, str]:
    """What the right panel's title says of the methods."""
    first = records[0]
    kept = f"{first['options']['distill_to']:,} survivors"
    sizes = {record["options"]["distill_to"] for some in others.values() for record in some}
    for size in sorted(sizes - {first["options"]["distill_to"]}):
        kept += f" (others {size:,})"
    known = {"known": "known to infinipot", "unknown": "not known"}[first["question"]]
    return (
        f"{first['model'].removesuffix('.gguf')}, pots of {first['options']['pot_size']:,}, {kept}",
        f"the question is {known} while reading",
    )


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
    document = compared(given.results, given.bench)
    records = mapped(given.results, given.needle)
    for path in draw(document, records, beside(given.results, records[0]), given.out):
        print(path)


if __name__ == "__main__":
    main()
