"""Figures of means with their intervals, as PNG files for the screen and SVG files for print."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from infinipot.eval.charts import figure, save, spoken, wrapped


class Point(NamedTuple):
    """A mean with its interval, 0 .. 100. answers: how many stand behind it."""

    mean: float
    low: float
    high: float
    answers: int


def intervals(
    panels: Mapping[str, Mapping[str, Point]], ours: Sequence[str], title: str, path: Path
) -> list[Path]:
    """Panels side by side: methods down, the mean with its interval across. ours: methods with
    filled marks; others have hollow ones."""
    labels = list(dict.fromkeys(label for points in panels.values() for label in points))
    across = min(4, len(panels))
    down = math.ceil(len(panels) / across)
    drawing = figure(2.2 + 2.3 * across, 0.9 + down * (0.75 + 0.32 * len(labels)))
    axes = drawing.subplots(down, across, squeeze=False, sharey=True)
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for axis, (name, points) in zip(axes.flat, panels.items(), strict=False):
        for place, label in enumerate(labels):
            if label in points:
                interval(axis, place, points[label], label in ours)
        axis.set_yticks(range(len(labels)), [wrapped(spoken(label), 26) for label in labels])
        axis.set(xlim=(-3, 103), ylim=(len(labels) - 0.5, -0.5), title=wrapped(name, 26))
        axis.title.set_fontsize(10)
        axis.grid(axis="x", color="#dddddd", linewidth=0.7)
        axis.set_axisbelow(True)
        axis.tick_params(axis="y", length=0)
        axis.spines[["top", "right", "left"]].set_visible(False)
    drawing.suptitle(wrapped(title, 34 * across), fontsize=11)
    drawing.supxlabel("score and 95 % interval; filled: InfiniPot's own", fontsize=9)
    return save(drawing, path)


def interval(axis: Any, place: int, point: Point, filled: bool) -> None:
    """One method. Colours that differ in brightness, too (Okabe and Ito's)."""
    color = "#0072b2" if filled else "#c4661f"
    axis.plot((point.low, point.high), (place, place), color=color, linewidth=2)
    face = color if filled else "white"
    mark = "o" if filled else "s"
    axis.plot(point.mean, place, mark, color=color, markerfacecolor=face, markersize=6.5)
