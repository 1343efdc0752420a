"""A page that compares methods: a figure with intervals, a table, and the tables of each task.

Everything is computed from the results of the tasks; nothing is measured here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from infinipot.eval import charts, interval_charts, scores
from infinipot.eval.grouped import Table
from infinipot.eval.results import Record, lines, write_whole
from infinipot.eval.stats import Grouped, each_alone, grouped_mean, share_interval
from infinipot.eval.tables import markdown, tokens

PAGE = "compare.md"
FIGURE = "compare"
OURS = ("infinipot", "outliers")
"""Policies of this package. The figure draws them apart from other methods."""
Point = interval_charts.Point
Points = dict[str, Point]
"""By the label of the method."""
KINDS = {
    "needle": "A pass key in a long text, and a question about it. Right answers, with Wilson's interval.",
    "documents": "Documents with many questions. The mean of task means; the bootstrap draws documents.",
    "ruler": "Eleven tasks of RULER, with texts made here and without the answer's first words: not "
    "RULER's published scores. The mean of task means; the bootstrap draws texts.",
    "longbench": "LongBench with its own prompts and metrics. The mean of task means; the bootstrap draws "
    "rows.",
}


@dataclass(frozen=True)
class Part:
    """One task of a comparison. panels: title -> points. text: its own tables."""

    name: str
    panels: dict[str, Points]
    text: str


def by_method(records: Sequence[Record]) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(record["method"], []).append(record)
    return found


def needle_panels(records: Sequence[Record]) -> dict[str, Points]:
    """A panel for each length. Only texts that every method has read count."""
    panels: dict[str, Points] = {}
    for length in sorted({record["length"] for record in records}):
        some = by_method([record for record in records if record["length"] == length])
        texts = [{(r["depth"], r["trial"]) for r in own} for own in some.values()]
        shared = set.intersection(*texts)
        points: Points = {}
        for label, own in some.items():
            right = [r["right"] for r in own if (r["depth"], r["trial"]) in shared]
            if right:
                low, high = share_interval(sum(right), len(right))
                share = 100 * sum(right) / len(right)
                points[label] = Point(share, 100 * low, 100 * high, len(right))
        panels[f"needle, {tokens(length)}"] = points
    return panels


def document_panels(records: Sequence[Record]) -> dict[str, Points]:
    """One panel over the questions that every method has answered."""
    return {"documents": points_of(records)}


def ruler_panels(records: Sequence[Record]) -> dict[str, Points]:
    """A panel for each length, which is the last word of a task's name."""
    lengths = dict.fromkeys(record["task"].split()[-1] for record in records)
    return {
        f"RULER, {length}": points_of([r for r in records if r["task"].split()[-1] == length])
        for length in lengths
    }


def points_of(records: Sequence[Record]) -> Points:
    """The mean of task means over the questions that every method has answered."""
    table = Table.of(records, "task")
    labels = list(by_method(records))
    if not table.rows:
        return {}
    return {label: point(some) for label, some in zip(labels, table.scores.values(), strict=True)}


def longbench_panels(records: Sequence[Record]) -> dict[str, Points]:
    """A panel for each kind of rows: LongBench's own, and others in its style."""
    panels = {}
    for kind in dict.fromkeys(record["rows"] for record in records):
        some = scores.by_label([record for record in records if record["rows"] == kind])
        panels[kind] = {label: point(each_alone(own)) for label, own in some.items() if own}
    return panels


def point(some: Grouped) -> Point:
    """The mean of task means. Without an interval where a task has one document."""
    mean, interval = grouped_mean(some)
    low, high = interval or (mean, mean)
    count = sum(len(questions) for documents in some.values() for questions in documents.values())
    return Point(mean, low, high, count)


def panels_of(parts: Sequence[Part]) -> dict[str, Points]:
    return {title: points for part in parts for title, points in part.panels.items() if points}


def table(parts: Sequence[Part]) -> str:
    """Methods down, panels across: the mean and its interval, 0 to 100."""
    panels = panels_of(parts)
    labels = list(dict.fromkeys(label for points in panels.values() for label in points))
    rows = [
        [charts.spoken(label), *[cell(points.get(label)) for points in panels.values()]]
        for label in labels
    ]
    return markdown(["method", *panels], rows)


def cell(point: Point | None) -> str:
    if point is None:
        return "–"
    if point.low == point.high:
        return f"{point.mean:.1f}"
    return f"{point.mean:.1f} ({point.low:.1f} to {point.high:.1f})"


def counts(panels: Mapping[str, Points]) -> str:
    """How many answers stand behind a point."""
    said = []
    for title, points in panels.items():
        numbers = {point.answers for point in points.values()}
        said.append(f"{title}: {max(numbers):,}")
    return "; ".join(said)


def write(parts: Sequence[Part], records: Sequence[Record], out: Path) -> tuple[str, list[Path]]:
    """Write the page and its figure. Returns the table, and the paths of the files."""
    panels = panels_of(parts)
    title = f"{' and '.join(sorted({r['model'] for r in records}))} · {sizes(records)}"
    ours = [label for label in by_method(records) if label.split(":")[0] in OURS]
    files = interval_charts.intervals(panels, ours, title, out / FIGURE)
    whole = [
        f"# Comparison: {title}",
        f"![The score of each method in each task, with 95 % intervals]({FIGURE}.svg)",
        table(parts).rstrip("\n"),
        "Scores from 0 to 100, with 95 % intervals. Every method reads the same texts, and only what "
        f"every method has answered counts. Answers of each method: {counts(panels)}. "
        "A score without an interval has a task with a single text. "
        f"Filled marks are methods of InfiniPot.",
        f"## Methods\n\n{methods_table(records)}".rstrip("\n"),
    ]
    whole += [f"## {part.name}\n\n{KINDS[part.name]}\n\n{part.text.rstrip()}" for part in parts]
    whole.append(f"## How it was measured\n\n{runs(out, parts)}")
    write_whole(out / PAGE, "\n\n".join(whole) + "\n")
    return table(parts), [*files, out / PAGE]


def sizes(records: Sequence[Record]) -> str:
    """The sizes of the pots, as the results name them."""
    found = sorted({r["options"]["pot_size"] for r in records if r["options"].get("pot_size")})
    if not found:
        return "no pot"
    return f"pot of {' and '.join(f'{size:,}' for size in found)}"


def methods_table(records: Sequence[Record]) -> str:
    rows = []
    for label, own in by_method(records).items():
        options = own[0]["options"]
        known = own[0]["question"] or "not used"
        size = options.get("pot_size", "no bound")
        kept = options.get("distill_to", "–")
        rows.append([f"`{label}`", str(size), str(kept), known])
    return markdown(["method", "pot", "survivors", "question while reading"], rows)


def runs(out: Path, parts: Sequence[Part]) -> str:
    """Machine, versions and command of the newest run of each task."""
    said = []
    for part in parts:
        run = lines(out / part.name / "runs.jsonl")[-1]
        place = run["gpu"] or f"{run['cpu']}, {run['threads']} threads"
        said.append(
            f"- {part.name}: {run['date']}, {place}, {run['dtype']}, torch {run['torch']}, transformers "
            f"{run['transformers']}, infinipot {run['infinipot']}: `{' '.join(run['command'])}`"
        )
    return "\n".join(said)
