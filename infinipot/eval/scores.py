"""From LongBench results to its table, the differences between methods, and its own prediction
files."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from infinipot.eval.results import Record, write_whole
from infinipot.eval.stats import mean, paired_difference, task_means
from infinipot.eval.tables import markdown, name_key, names, number
from infinipot.eval.tasks.longbench import Row, tasks

Scores = dict[str, dict[str, dict[str, float]]]
"""method -> task -> row -> score, 0 .. 100"""


def by_method(records: Sequence[Record]) -> Scores:
    """Scores by the methods' names, of the rows that every method has answered; others would make
    means of different things."""
    named = names(records)
    return shared_rows([(named[name_key(record)], record) for record in records])


def by_label(records: Sequence[Record]) -> Scores:
    """The same by the methods' labels, as they were given."""
    return shared_rows([(record["method"], record) for record in records])


def shared_rows(records: Sequence[tuple[str, Record]]) -> Scores:
    found: Scores = {name: {} for name, _ in records}
    for name, record in records:
        found[name].setdefault(record["task"], {})[record["id"]] = record["score"]
    shared = set.intersection(
        *(
            {(task, row) for task, rows in scores.items() for row in rows}
            for scores in found.values()
        )
    )
    return {
        name: {
            task: kept
            for task in tasks()
            if task in scores
            if (kept := {row: s for row, s in scores[task].items() if (task, row) in shared})
        }
        for name, scores in found.items()
    }


def table(scores: Scores) -> str:
    """Tasks down, methods across, the mean of each group below its tasks, the mean of all task
    means last."""
    means = {name: task_means(some) for name, some in scores.items()}
    first = next(iter(scores.values()))
    lines: list[list[str]] = []
    for group in dict.fromkeys(task.group for task in tasks().values()):
        inside = [name for name, task in tasks().items() if task.group == group and name in first]
        lines += [
            [name, str(len(first[name])), *[number(m[name]) for m in means.values()]]
            for name in inside
        ]
        if inside:
            lines.append(
                [
                    f"**{group}**",
                    "",
                    *[f"**{number(mean([m[name] for name in inside]))}**" for m in means.values()],
                ]
            )
    lines.append(
        [
            "**mean of tasks**",
            str(sum(map(len, first.values()))),
            *[f"**{number(mean(list(m.values())))}**" for m in means.values()],
        ]
    )
    return markdown(["task", "rows", *means], lines)


def differences(scores: Scores, against: str) -> str:
    """Every method less the one named: the mean of task means, with its interval."""
    lines = []
    for name, some in scores.items():
        if name != against:
            gap, interval = paired_difference(scores[against], some)
            low, high = interval or (0.0, 0.0)
            if interval:
                shown = [f"{low:+.1f} to {high:+.1f}", "yes" if low > 0 or high < 0 else "no"]
            else:
                shown = ["– (a task has one row)", "–"]
            lines.append([name, f"{gap:+.1f}", *shown])
    return markdown([f"against {against}", "difference", "95 % interval", "beyond chance"], lines)


def write(
    records: Sequence[Record], folder: Path, against: str | None = None
) -> tuple[str, list[Path]]:
    """The table and the differences, for genuine rows and for others apart. against: a method's
    label, the first one otherwise."""
    texts = []
    for kind in dict.fromkeys(record["rows"] for record in records):
        some = [record for record in records if record["rows"] == kind]
        scores = by_method(some)
        if not any(scores.values()):
            texts.append(f"{kind}: no row has been answered by every method yet")
            continue
        left = len({(record["task"], record["id"]) for record in some}) - sum(
            map(len, next(iter(scores.values())).values())
        )
        title = f"{kind} rows · {', '.join(sorted({record['model'] for record in some}))}"
        title += f" · {left} rows that not every method has answered are left out" if left else ""
        text = f"{title}\n\n{table(scores)}"
        if len(scores) > 1:
            text += f"\n{differences(scores, reference(some, against))}"
        texts.append(text)
    whole = "\n\n".join(texts)
    (folder / "longbench.md").write_text(whole, "utf-8")
    return whole, [folder / "longbench.md"]


def reference(records: Sequence[Record], against: str | None) -> str:
    named = names(records)
    chosen = [named[name_key(record)] for record in records if against in (None, record["method"])]
    if not chosen:
        raise ValueError(
            f"against={against!r} is not among the methods: {', '.join(dict.fromkeys(r['method'] for r in records))}"
        )
    return chosen[0]


def predictions(records: Sequence[Record], data: Mapping[str, Sequence[Row]], folder: Path) -> Path:
    """Files that LongBench's own eval.py scores: pred/KIND/METHOD/TASK.jsonl. They hold its right
    answers: not for publishing."""
    rows = {(kind, row.task, row.id): row for kind, some in data.items() for row in some}
    named = names(records)
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
        place = (
            folder
            / "pred"
            / _file_name(record["rows"])
            / _file_name(named[name_key(record)])
            / f"{row.task}.jsonl"
        )
        files.setdefault(place, []).append(json.dumps(line, ensure_ascii=False) + "\n")
    for place, lines in files.items():
        place.parent.mkdir(parents=True, exist_ok=True)
        write_whole(place, "".join(lines))
    return folder / "pred"


def _file_name(text: str) -> str:
    return re.sub(r"[^\w.-]+", "-", text).strip("-")
