"""Figures, as PNG files for the screen and SVG files for print."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from infinipot.optional import EVAL, need

if TYPE_CHECKING:
    from typing_extensions import Unpack

Cells = Mapping[tuple[float, int], float | None]
"""(depth, length) -> share of right answers, 0 .. 1. None, or no cell, for no measurement."""
NOTHING = "#e4e4e4"
DARK = "#222222"
COLORS = ("#0072b2", "#d55e00", "#009e73", "#e69f00", "#a8578a", "#4d4d4d", "#56b4e9", "#7a4a1e")
"""Okabe and Ito's, or near them: told apart without red and green, too."""
MARKS = "osD^vP*X"


def figure(width: float, height: float) -> Any:
    """A new matplotlib figure, width and height in inches."""
    figures = need("matplotlib.figure", "a figure", EVAL)
    drawing = figures.Figure(figsize=(width, height), layout="constrained")
    need("matplotlib", "a figure", EVAL).rcParams.update(
        {"font.size": 10, "svg.fonttype": "none", "svg.hashsalt": "infinipot"}
    )
    return drawing


def save(drawing: Any, path: Path) -> list[Path]:
    """Write PATH.png and PATH.svg. The same figure always gives the same bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    files = [path.with_name(path.name + ending) for ending in (".png", ".svg")]
    drawing.savefig(files[0], dpi=160, facecolor="white")
    drawing.savefig(files[1], facecolor="white", metadata={"Date": None})
    return files


def heat_maps(panels: Mapping[str, Cells], title: str, label: Any, path: Path) -> list[Path]:
    """One panel per method: lengths across, depths down, colours from dark to light.

    label: a function that turns a length into the text below its column.
    """
    lengths = sorted({length for cells in panels.values() for _, length in cells})
    depths = sorted({depth for cells in panels.values() for depth, _ in cells})
    across = min(len(panels), max(1, 12 // max(3, len(lengths))))
    down = math.ceil(len(panels) / across)
    cell_width = max(0.62, 2.2 / len(lengths))
    cell_height = 0.46
    drawing = figure(
        across * (len(lengths) * cell_width + 0.35) + 1.5,
        down * (len(depths) * cell_height + 0.75) + 0.7,
    )
    axes = drawing.subplots(down, across, squeeze=False)
    image = None
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for number, (axis, (name, cells)) in enumerate(zip(axes.flat, panels.items(), strict=False)):
        image = heat_map(axis, cells, lengths, depths, label)
        axis.set_title(wrapped(name, max(14, int(len(lengths) * cell_width * 9.5))), fontsize=10)
        if number % across:
            axis.set_yticklabels([""] * len(depths))
    drawing.suptitle(title, fontsize=11)
    drawing.supxlabel("tokens", fontsize=10)
    drawing.supylabel("depth", fontsize=10)
    drawing.colorbar(
        image,
        ax=axes,
        shrink=0.9,
        pad=0.02,
        ticks=[0, 0.5, 1],
        format=lambda value, _: f"{100 * value:.0f} %",
    )
    return save(drawing, path)


def heat_map(
    axis: Any, cells: Cells, lengths: Sequence[int], depths: Sequence[float], label: Any
) -> Any:
    """One panel. Every cell has a number, so the panel is readable without colours.

    Returns the image, for a colour bar.
    """
    colors = need("matplotlib", "a figure", EVAL).colormaps["cividis"].with_extremes(bad=NOTHING)
    values = [[cells.get((depth, length)) for length in lengths] for depth in depths]
    grid = [[math.nan if value is None else value for value in row] for row in values]
    image = axis.imshow(grid, cmap=colors, vmin=0, vmax=1, aspect="auto")
    axis.set_xticks(range(len(lengths)), [label(length) for length in lengths])
    axis.set_yticks(range(len(depths)), [f"{100 * depth:g} %" for depth in depths])
    axis.set_xticks([n - 0.5 for n in range(1, len(lengths))], minor=True)
    axis.set_yticks([n - 0.5 for n in range(1, len(depths))], minor=True)
    axis.tick_params(which="both", length=0)
    axis.grid(which="minor", color="white", linewidth=2)
    axis.spines[:].set_visible(False)
    style = {"ha": "center", "va": "center", "fontsize": 10}
    for y, row in enumerate(values):
        for x, value in enumerate(row):
            if value is None:
                axis.text(x, y, "–", color=DARK, **style)
            else:
                color = DARK if value > 0.55 else "white"
                axis.text(x, y, f"{100 * value:.0f}", color=color, **style)
    return image


def spoken(label: str) -> str:
    """`infinipot:preset=facts` -> `infinipot, preset facts`."""
    return label.replace(":", ", ").replace("=", " ")


def wrapped(name: str, width: int) -> str:
    return "\n".join(textwrap.wrap(name, width))


Interval = tuple[float, float]
"""Its ends."""


class Axes(TypedDict, total=False):
    """log: x axis by doublings. ticks: place on the x axis -> label. floor: lowest y. whole: only
    whole numbers on the x axis. intervals: for each line and point, where its interval is known."""

    intervals: Mapping[str, Sequence[Interval | None]]
    whole: bool
    log: bool
    ticks: Mapping[float, str]
    floor: float


def curves(
    series: Mapping[str, Sequence[tuple[float, float]]],
    *,
    title: str,
    across: str,
    up: str,
    path: Path,
    **axes: Unpack[Axes],
) -> list[Path]:
    """One line per method. across, up: labels of the axes."""
    drawing = figure(7.2, 3.6 + 0.22 * math.ceil(len(series) / _columns(series)))
    axis = drawing.subplots()
    for number, (name, points) in enumerate(series.items()):
        style: dict[str, Any] = {"color": COLORS[number % len(COLORS)], "linestyle": "-"}
        if number >= len(COLORS):
            style["linestyle"] = "--"
        if len(points) <= 24:
            style["marker"] = MARKS[number % len(MARKS)]
        axis.plot(*zip(*points, strict=True), label=name, markersize=5, linewidth=1.8, **style)
        ends = axes.get("intervals", {}).get(name, ())
        for (place, _), some in zip(points, ends, strict=False):
            if some is not None:
                axis.vlines(place, *some, color=style["color"], linewidth=1, alpha=0.7)
    _scale(axis, axes)
    axis.set(xlabel=across, ylabel=up)
    axis.set_title(wrapped(title, 80), fontsize=11)
    axis.grid(color="#dddddd", linewidth=0.7)
    axis.spines[["top", "right"]].set_visible(False)
    drawing.legend(frameon=False, fontsize=9, loc="outside lower center", ncols=_columns(series))
    return save(drawing, path)


def _scale(axis: Any, axes: Axes) -> None:
    if axes.get("log"):
        axis.set_xscale("log", base=2)
    if ticks := axes.get("ticks"):
        axis.set_xticks(list(ticks), list(ticks.values()))
        axis.minorticks_off()
    if axes.get("whole"):
        axis.xaxis.get_major_locator().set_params(integer=True)
    if "floor" in axes:
        axis.set_ylim(bottom=axes["floor"])


def _columns(names: Mapping[str, Any]) -> int:
    """The number of columns of a legend below a figure."""
    return max(1, min(3, 100 // max(map(len, names))))


def bars(
    groups: Mapping[str, Mapping[str, float]],
    *,
    title: str,
    up: str,
    path: Path,
    intervals: Mapping[str, Mapping[str, Interval | None]] | None = None,
) -> list[Path]:
    """Bars in groups. groups: label of the group -> name of the bar -> height. intervals: the same
    with intervals, where they are known.

    With only one name there is no legend.
    """
    names = list(dict.fromkeys(name for group in groups.values() for name in group))
    drawing = figure(max(5.0, 1.2 + 0.34 * len(names) * len(groups) + 0.5 * len(groups)), 3.8)
    axis = drawing.subplots()
    width = 0.8 / len(names)
    for number, name in enumerate(names):
        places = [x + (number - (len(names) - 1) / 2) * width for x in range(len(groups))]
        heights = [group.get(name, math.nan) for group in groups.values()]
        color = COLORS[number % len(COLORS)]
        ends = [(intervals or {}).get(group, {}).get(name) for group in groups]
        errors = _errors(heights, ends)
        container = axis.bar(places, heights, width * 0.92, label=name, color=color, yerr=errors)
        axis.bar_label(container, fmt=_bar_number, fontsize=8, padding=1)
    axis.set_xticks(range(len(groups)), [wrapped(group, 14) for group in groups])
    axis.set_title(wrapped(title, 80), fontsize=11)
    axis.set_ylabel(up)
    axis.grid(axis="y", color="#dddddd", linewidth=0.7)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
    if len(names) > 1:
        axis.legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return save(drawing, path)


def _errors(heights: Sequence[float], ends: Sequence[Interval | None]) -> list[list[float]] | None:
    """What matplotlib calls errors: distances below and above. None if no interval is known."""
    if not any(ends):
        return None
    known = [some or (math.nan, math.nan) for some in ends]
    pairs = list(zip(heights, known, strict=True))
    return [
        [height - low for height, (low, _) in pairs],
        [high - height for height, (_, high) in pairs],
    ]


def _bar_number(value: float) -> str:
    if math.isnan(value):
        return ""
    return f"{value:.1f}"


def shades(
    rows: Mapping[str, Sequence[Sequence[float]]],
    *,
    title: str,
    across: str,
    up: str,
    legend: str,
    path: Path,
) -> list[Path]:
    """Matrices side by side, as shades from dark to light. One number in ten may be beyond the
    scale, so that the places that are always kept do not hide the others.

    Row 0 is at the top. The columns cover the text from 0 to 1.
    """
    wide = min(3, len(rows))
    down = math.ceil(len(rows) / wide)
    drawing = figure(1.4 + 2.6 * wide, 0.6 + 2.6 * down)
    axes = drawing.subplots(down, wide, squeeze=False, sharex=True, sharey=True)
    top, highest = _scale_of(rows)
    image = None
    for axis in list(axes.flat)[len(rows) :]:
        axis.set_visible(False)
    for axis, (name, matrix) in zip(axes.flat, rows.items(), strict=False):
        image = axis.imshow(
            matrix,
            cmap="viridis",
            aspect="auto",
            vmin=0,
            vmax=top,
            extent=(0, 1, len(matrix), 0),
            interpolation="nearest",
        )
        axis.set_title(wrapped(name, 30), fontsize=10)
    drawing.suptitle(title, fontsize=11)
    drawing.supxlabel(across, fontsize=10)
    drawing.supylabel(up, fontsize=10)
    axes.flat[0].yaxis.get_major_locator().set_params(integer=True)
    beyond = "max" if highest > top else "neither"
    drawing.colorbar(image, ax=axes, shrink=0.9, pad=0.02, label=legend, extend=beyond)
    return save(drawing, path)


def _scale_of(rows: Mapping[str, Sequence[Sequence[float]]]) -> tuple[float, float]:
    """The end of the scale, and the highest number."""
    values = sorted(value for matrix in rows.values() for row in matrix for value in row)
    return values[math.ceil(0.9 * len(values)) - 1] or values[-1] or 1.0, values[-1]
