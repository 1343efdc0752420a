"""Tables for people: markdown that is also legible as it is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from infinipot.eval.results import Record


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table with its columns lined up; all but the first are numbers, to the right."""
    cells = [list(head), *[list(row) for row in rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]

    def line(row: Sequence[str]) -> str:
        return (
            "| "
            + " | ".join(
                cell.ljust(w) if not n else cell.rjust(w)
                for n, (cell, w) in enumerate(zip(row, widths, strict=True))
            )
            + " |"
        )

    rule = (
        "|"
        + "|".join("-" * (w + 2) if not n else "-" * (w + 1) + ":" for n, w in enumerate(widths))
        + "|"
    )
    return "\n".join([line(cells[0]), rule, *map(line, cells[1:])]) + "\n"


def number(value: float | None, digits: int = 1) -> str:
    if value is None:
        return "–"
    return f"{value:.{digits}f}"


def tokens(count: int) -> str:
    """4096 -> 4K, 1048576 -> 1M, 5000 -> 5,000."""
    for unit, sign in ((1 << 20, "M"), (1 << 10, "K")):
        if count >= unit and count % unit == 0:
            return f"{count // unit}{sign}"
    return f"{count:,}"


def names(records: Iterable[Record]) -> dict[str, str]:
    """A name for every method among the records, in order of appearance: its label, whether the
    question was known while it read, and only as much else as tells it from the others. The keys
    are those of `name_key`."""
    first: dict[str, Record] = {}
    for record in records:
        first.setdefault(name_key(record), record)
    shown: dict[str, str] = {}
    different = [
        name for name in ("model", "dtype") if len({record[name] for record in first.values()}) > 1
    ]
    for key, record in first.items():
        alike = [other for other in first.values() if other["method"] == record["method"]]
        changed = {name for other in alike for name in {**other["options"], **record["options"]}
                   if other["options"].get(name) != record["options"].get(name)}  # fmt: skip
        parts = [
            record["method"].replace(":catalyst=question", "").replace(":", " ").replace("=", " ")
        ]
        parts += [f"question {record['question']}"] * bool(record["question"])
        parts += [record[name] for name in different]
        parts += [f"{name} {record['options'].get(name, 'default')}" for name in sorted(changed)]
        shown[key] = ", ".join(parts)
    return shown


def name_key(record: Record) -> str:
    return str(
        [record[name] for name in ("method", "question", "model", "dtype")]
        + sorted(record["options"].items(), key=str)
    )
