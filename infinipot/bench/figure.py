"""A figure of time and memory over length: a fixed pot and the full cache (the paper's Figure 7 and
Tables 5 and 6)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")  # draw without a window

from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

PANELS = (
    ("first_token_s", 1.0, "time to first token (s)"),
    ("peak_bytes", 1e9, "peak memory (GB)"),
    ("decode_tps", 1.0, "decoding (tokens/s)"),
)
"""Name of the number in a row, its unit, title of the panel."""
COLOURS = {"pot": "#0072b2", "stock": "#d55e00"}  # safe for most colour-blind readers
MARKERS = {"pot": "o", "stock": "s"}


def latest(results: Path, model: str | None = None) -> dict[str, Any]:
    """The newest result in a file of JSON lines, for one model if it is named.

    Raises ValueError if there is none.
    """
    lines = [json.loads(line) for line in results.read_text("utf-8").split("\n") if line.strip()]
    documents = [line for line in lines if line.get("benchmark") == "bench"]
    matches = [line for line in documents if model in (None, line["model"]["name"])]
    if matches:
        return matches[-1]
    if not model:
        raise ValueError(f"{results} has no result of `infinipot bench`")
    names = sorted({line["model"]["name"] for line in documents})
    raise ValueError(
        f"{results} has no result of {model}; it has {', '.join(names) or 'no result at all'}"
    )


def draw(document: dict[str, Any], stem: Path) -> list[Path]:
    """Write STEM.png and STEM.svg. Returns their paths."""
    figure, axes = pyplot.subplots(
        1, len(PANELS), figsize=(4.2 * len(PANELS), 3.9), layout="constrained"
    )
    for axis, (name, unit, title) in zip(axes, PANELS, strict=True):
        panel(axis, document, name, unit, title)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(handles), frameon=False)
    model = document["model"]
    machine = document["machine"]
    where = machine["gpu"] or f"{machine['cpu']}, {machine['threads']} threads"
    versions = (
        f"torch {machine['torch']}, transformers {machine['transformers']}, {machine['date']}"
    )
    figure.suptitle(f"{model['name']}, {model['dtype']}, {where}; {versions}", fontsize=10)
    paths = [stem.with_name(f"{stem.name}.{kind}") for kind in ("png", "svg")]
    for path in paths:
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)
    return paths


def panel(axes: Axes, document: dict[str, Any], name: str, unit: float, title: str) -> None:
    """One number over length: the pot, stock transformers, and where stock ran out of memory."""
    names = {"pot": f"pot of {document['pot_size']:,}", "stock": "full cache, stock transformers"}
    lengths: set[int] = set()
    for kind, label in names.items():
        rows = [row for row in document["rows"] if row["what"] == kind]
        lengths |= {row["length"] for row in rows}
        curve(
            axes,
            rows,
            name,
            unit,
            {"label": label, "marker": MARKERS[kind], "color": COLOURS[kind]},
        )
        died = [row for row in rows if row.get("died") and not row.get("first_token_s")]
        if died:
            label = "stock runs out of memory here"
            axes.axvline(died[0]["length"], color=COLOURS[kind], linestyle=":", label=label)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(sorted(lengths)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short(int(value))))
    if name == "first_token_s":
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    else:
        axes.set_ylim(bottom=0)
    axes.set_title(title, fontsize=10)
    axes.set_xlabel("tokens read")
    axes.grid(alpha=0.25)


def curve(
    axes: Axes, rows: list[dict[str, Any]], name: str, unit: float, style: dict[str, Any]
) -> None:
    """The line of one kind. Rows of stock transformers count only if it read the whole text."""
    points = [
        (row["length"], row[name] / unit)
        for row in rows
        if row.get(name) and (row["what"] == "pot" or row.get("first_token_s"))
    ]
    if points:
        axes.plot(*zip(*points, strict=True), markersize=5, **style)


def short(tokens: int) -> str:
    """4096 -> 4K, 1048576 -> 1M, 5000 -> 5,000."""
    for unit, size in (("M", 1 << 20), ("K", 1 << 10)):
        if tokens >= size and tokens % size == 0:
            return f"{tokens // size}{unit}"
    return f"{tokens:,}"
