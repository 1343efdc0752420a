"""LongBench results as a table, as differences between methods, and as prediction files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from infinipot.eval.results import Record, write_whole
from infinipot.eval.stats import mean, paired_difference, task_means
from infinipot.eval.tables import markdown, name_key, names, number
from infinipot.eval.tasks.longbench import Row, tasks
from infinipot.text.json_text import json_text

Scores = dict[str, dict[str, dict[str, float]]]
"""Method -> task -> row -> score, 0 .. 100."""


def by_method(records: Sequence[Record]) -> Scores:
    """Scores by name of the method, as `shared_rows`."""
    name_of = names(records)
    return shared_rows([(name_of[name_key(record)], record) for record in records])


def by_label(records: Sequence[Record]) -> Scores:
    """Scores by label of the method, as on the command line, as `shared_rows`."""
    return shared_rows([(record["method"], record) for record in records])


def shared_rows(records: Sequence[tuple[str, Record]]) -> Scores:
    """Scores of the rows that every method has answered, so that means are comparable."""
    scores: Scores = {name: {} for name, _ in records}
    for name, record in records:
        scores[name].setdefault(record["task"], {})[record["id"]] = record["score"]
    answered = [
        {(task, row) for task, rows in some.items() for row in rows} for some in scores.values()
    ]
    shared = set.intersection(*answered)
    return {name: _only(some, shared) for name, some in scores.items()}


def _only(
    scores: dict[str, dict[str, float]], rows: set[tuple[str, str]]
) -> dict[str, dict[str, float]]:
    """The scores of these (task, row), tasks in the order of the paper's table."""
    kept = {
        task: {row: score for row, score in scores.get(task, {}).items() if (task, row) in rows}
        for task in tasks()
    }
    return {task: some for task, some in kept.items() if some}


def table(scores: Scores) -> str:
    """Tasks down, methods across. Each group of tasks ends with its mean; the last line is the mean
    of all task means."""
    means = {name: task_means(some) for name, some in scores.items()}
    first = next(iter(scores.values()))
    lines: list[list[str]] = []
    for group in dict.fromkeys(task.group for task in tasks().values()):
        inside = [name for name, task in tasks().items() if task.group == group and name in first]
        for name in inside:
            lines.append([name, str(len(first[name])), *[number(m[name]) for m in means.values()]])
        if inside:
            cells = [_bold_mean([m[name] for name in inside]) for m in means.values()]
            lines.append([f"**{group}**", "", *cells])
    cells = [_bold_mean(list(m.values())) for m in means.values()]
    lines.append(["**mean of tasks**", str(sum(map(len, first.values()))), *cells])
    return markdown(["task", "rows", *means], lines)


def _bold_mean(values: Sequence[float]) -> str:
    return f"**{number(mean(values))}**"


def differences(scores: Scores, against: str) -> str:
    """For every other method: its mean of task means less that of `against`, with an interval."""
    lines = []
    for name, some in scores.items():
        if name == against:
            continue
        gap, interval = paired_difference(scores[against], some)
        cells = ["– (a task has one row)", "–"]
        if interval:
            low, high = interval
            cells = [f"{low:+.1f} to {high:+.1f}", "yes" if low > 0 or high < 0 else "no"]
        lines.append([name, f"{gap:+.1f}", *cells])
    return markdown([f"against {against}", "difference", "95 % interval", "beyond chance"], lines)


def write(
    records: Sequence[Record], folder: Path, against: str | None = None
) -> tuple[str, list[Path]]:
    """Write the table and the differences. Genuine rows and other rows are in separate tables.

    against: label of a method; None for the first one.
    """
    texts = []
    for kind in dict.fromkeys(record["rows"] for record in records):
        some = [record for record in records if record["rows"] == kind]
        scores = by_method(some)
        if not any(scores.values()):
            texts.append(f"{kind}: no row has been answered by every method yet")
            continue
        rows = {(record["task"], record["id"]) for record in some}
        left = len(rows) - sum(map(len, next(iter(scores.values())).values()))
        title = f"{kind} rows · {', '.join(sorted({record['model'] for record in some}))}"
        if left:
            title += f" · {left} rows that not every method has answered are left out"
        text = f"{title}\n\n{table(scores)}"
        if len(scores) > 1:
            text += f"\n{differences(scores, reference(some, against))}"
        texts.append(text)
    whole = "\n\n".join(texts)
    (folder / "longbench.md").write_text(whole, "utf-8")
    return whole, [folder / "longbench.md"]


def reference(records: Sequence[Record], against: str | None) -> str:
    """The name of the method to compare with."""
    name_of = names(records)
    matches = [
        name_of[name_key(record)] for record in records if against in (None, record["method"])
    ]
    if not matches:
        labels = ", ".join(dict.fromkeys(record["method"] for record in records))
        raise ValueError(f"against={against!r} is not among the methods: {labels}")
    return matches[0]


def predictions(records: Sequence[Record], data: Mapping[str, Sequence[Row]], folder: Path) -> Path:
    """Write pred/KIND/METHOD/TASK.jsonl, the input of LongBench's own eval.py.

    The files contain LongBench's right answers, so they must not be published.
    """
    rows = {(kind, row.task, row.id): row for kind, some in data.items() for row in some}
    name_of = names(records)
    files: dict[Path, list[str]] = {}
    order = {key: place for place, key in enumerate(rows)}
    for record in sorted(records, key=lambda r: order[(r["rows"], r["task"], r["id"])]):
        row = rows[(record["rows"], record["task"], record["id"])]
        line = {
            "pred": record["pred"],
            "answers": row.answers,
            "all_classes": row.classes,
            "length": row.length,
        }
        kind = _file_name(record["rows"])
        method = _file_name(name_of[name_key(record)])
        place = folder / "pred" / kind / method / f"{row.task}.jsonl"
        files.setdefault(place, []).append(json_text(line) + "\n")
    for place, lines in files.items():
        place.parent.mkdir(parents=True, exist_ok=True)
        write_whole(place, "".join(lines))
    return folder / "pred"


def _file_name(text: str) -> str:
    return re.sub(r"[^\w.-]+", "-", text).strip("-")
