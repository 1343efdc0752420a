"""Time and memory against length, a fixed pot against the full cache (the paper's Figure 7 and
Tables 5 and 6)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")  # no window

from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

PANELS = (
    ("first_token_s", 1.0, "time to first token (s)"),
    ("peak_bytes", 1e9, "peak memory (GB)"),
    ("decode_tps", 1.0, "decoding (tokens/s)"),
)
"""Number in a row, what it is divided by, title."""
COLOURS = {"pot": "#0072b2", "stock": "#d55e00"}  # told apart by most colour-blind people
MARKERS = {"pot": "o", "stock": "s"}


def latest(results: Path, model: str | None = None) -> dict[str, Any]:
    """The newest result in a file of JSON lines, of this model if one is named. Raises ValueError
    if there is none."""
    lines = [json.loads(line) for line in results.read_text("utf-8").splitlines() if line.strip()]
    found = [
        line
        for line in lines
        if line.get("benchmark") == "bench" and model in (None, line["model"]["name"])
    ]
    if not found:
        names = (
            ", ".join(
                sorted(
                    {line["model"]["name"] for line in lines if line.get("benchmark") == "bench"}
                )
            )
            or "no result at all"
        )
        raise ValueError(
            f"{results} has no result"
            + (f" of {model}; it has {names}" if model else " of `infinipot bench`")
        )
    return found[-1]


def draw(document: dict[str, Any], stem: Path) -> list[Path]:
    """Write STEM.png and STEM.svg; returns their paths."""
    figure, axes = pyplot.subplots(
        1, len(PANELS), figsize=(4.2 * len(PANELS), 3.9), layout="constrained"
    )
    for place, (name, unit, title) in zip(axes, PANELS, strict=True):
        panel(place, document, name, unit, title)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(handles), frameon=False)
    model = document["model"]
    machine = document["machine"]
    where = machine["gpu"] or f"{machine['cpu']}, {machine['threads']} threads"
    made = f"torch {machine['torch']}, transformers {machine['transformers']}, {machine['date']}"
    figure.suptitle(f"{model['name']}, {model['dtype']}, {where}; {made}", fontsize=10)
    paths = [stem.with_name(f"{stem.name}.{kind}") for kind in ("png", "svg")]
    for path in paths:
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)
    return paths


def panel(axes: Axes, document: dict[str, Any], name: str, unit: float, title: str) -> None:
    """One number against length: the pot, stock beside it, and where stock ran out of memory."""
    names = {"pot": f"pot of {document['pot_size']:,}", "stock": "full cache, stock transformers"}
    every: list[int] = []
    for kind, label in names.items():
        rows = [row for row in document["rows"] if row["what"] == kind]
        points = [
            (row["length"], row[name] / unit)
            for row in rows
            if row.get(name) and (kind == "pot" or row.get("first_token_s"))
        ]
        every += [row["length"] for row in rows]
        if points:
            axes.plot(
                *zip(*points, strict=True),
                color=COLOURS[kind],
                marker=MARKERS[kind],
                markersize=5,
                label=label,
            )
        dead = next(
            (row["length"] for row in rows if row.get("died") and not row.get("first_token_s")),
            None,
        )
        if dead is not None:
            axes.axvline(
                dead, color=COLOURS[kind], linestyle=":", label="stock runs out of memory here"
            )
    lengths = sorted(set(every))
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(lengths))
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


def short(tokens: int) -> str:
    for unit, size in (("M", 1 << 20), ("K", 1 << 10)):
        if tokens >= size and tokens % size == 0:
            return f"{tokens // size}{unit}"
    return f"{tokens:,}"
