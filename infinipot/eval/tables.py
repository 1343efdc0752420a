"""Tables in markdown that are readable as plain text too."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from infinipot.eval.results import Record


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table with aligned columns: the first to the left, all others to the right."""
    cells = [list(head), *[list(row) for row in rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]

    def line(row: Sequence[str]) -> str:
        aligned = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        aligned[0] = row[0].ljust(widths[0])
        return f"| {' | '.join(aligned)} |"

    rules = ["-" * (widths[0] + 2), *["-" * (width + 1) + ":" for width in widths[1:]]]
    return "\n".join([line(cells[0]), f"|{'|'.join(rules)}|", *map(line, cells[1:])]) + "\n"


def number(value: float | None, digits: int = 1) -> str:
    """The number with so many digits after the point, or a dash for None."""
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
    """`name_key` -> the name of the method, in order of appearance.

    A name has the label of the method and whether it knew the question during reading. Model and
    dtype are in the name only if the records have several. Options are in the name only if methods
    of the same label differ in them.
    """
    first: dict[str, Record] = {}
    for record in records:
        first.setdefault(name_key(record), record)
    name_of: dict[str, str] = {}
    different = [
        name for name in ("model", "dtype") if len({record[name] for record in first.values()}) > 1
    ]
    for key, record in first.items():
        label = record["method"].replace(":catalyst=question", "")
        parts = [label.replace(":", " ").replace("=", " ")]
        if record["question"]:
            parts.append(f"question {record['question']}")
        parts += [record[name] for name in different]
        alike = [other for other in first.values() if other["method"] == record["method"]]
        for name in sorted(_different_options(record["options"], [r["options"] for r in alike])):
            parts.append(f"{name} {record['options'].get(name, 'default')}")
        name_of[key] = ", ".join(parts)
    return name_of


def _different_options(own: Record, others: Iterable[Record]) -> set[str]:
    """The options in which a method differs from one of the others."""
    return {
        name for other in others for name in {**other, **own} if other.get(name) != own.get(name)
    }


def name_key(record: Record) -> str:
    """What identifies a method among records."""
    return str(
        [record[name] for name in ("method", "question", "model", "dtype")]
        + sorted(record["options"].items(), key=str)
    )
