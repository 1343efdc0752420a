"""Tables of results in a terminal that is narrower than they are."""

from __future__ import annotations

import io
from itertools import groupby

LEAST = 8
"""Characters of names beside which numbers stay whole."""


def narrowed(text: str, width: int) -> str:
    """A text whose Markdown tables take at most `width` columns: long cells take several lines. What
    fits stays as it is."""
    parts = []
    for table, lines in groupby(text.splitlines(), key=lambda line: line.startswith("|")):
        rows = list(lines)
        if table and len(rows[0]) > width:
            rows = folded(rows, width)
        parts += rows
    return "\n".join(parts) + "\n"


def spaces(rows: list[list[str]], width: int) -> list[int]:
    """How many characters each column gets. Names, in the first one, get what the others leave, and at
    least a third; numbers are broken only where even that is no room."""
    names, *others = (max(map(len, column)) for column in zip(*rows, strict=True))
    words = [
        max(map(len, " ".join(column).split()), default=1) for column in zip(*rows, strict=True)
    ][1:]
    free = max(len(rows[0]), width - 3 * len(rows[0]) - 1)  # beside the lines between columns
    first = min(names, max(1, free // 3, free - sum(others)))
    share = min(1.0, (free - first) / max(1, sum(others)))
    columns = [max(1, int(share * other)) for other in others]
    whole = [max(*both) for both in zip(columns, words, strict=True)]
    if free - sum(whole) >= LEAST:
        return [min(first, free - sum(whole)), *whole]
    return [first, *columns]


def folded(lines: list[str], width: int) -> list[str]:
    """The lines of one table, in at most `width` columns. The second line says how columns are
    aligned."""
    from rich.box import MARKDOWN
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    cells = [[cell.strip() for cell in line[1:-1].split("|")] for line in lines]
    if len({len(row) for row in cells}) > 1:  # a bar within a cell
        return lines
    head, rules, *rows = cells
    table = Table(box=MARKDOWN)
    for cell, rule, space in zip(head, rules, spaces([head, *rows], width), strict=True):
        justify = "right" if rule.endswith(":") else "left"
        table.add_column(Text(cell), justify=justify, overflow="fold", width=space)  # type: ignore[arg-type]
    for row in rows:
        table.add_row(*map(Text, row))
    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(table)
    return [line.rstrip() for line in out.getvalue().splitlines() if line.strip()]
