"""Needle results as a table and a heat map."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from infinipot.eval import charts
from infinipot.eval.results import Record
from infinipot.eval.tables import markdown, name_key, names, tokens


def shares(
    records: Sequence[Record], what: str = "right"
) -> dict[str, dict[tuple[float, int], float | None]]:
    """Method -> (depth, length) -> mean of the field `what` over the trials."""
    name_of = names(records)
    values: dict[str, dict[tuple[float, int], list[float]]] = {}
    for record in records:
        cells = values.setdefault(name_of[name_key(record)], {})
        if record[what] is not None:
            cells.setdefault((record["depth"], record["length"]), []).append(float(record[what]))
    return {
        name: {cell: sum(trials) / len(trials) for cell, trials in cells.items()}
        for name, cells in values.items()
    }


def trials(records: Sequence[Record]) -> str:
    """The number of trials per cell as text: the lowest, and the highest if it is different."""
    counts: dict[str, int] = {}
    for record in records:
        cell = f"{name_key(record)} {record['depth']} {record['length']}"
        counts[cell] = counts.get(cell, 0) + 1
    low = min(counts.values())
    high = max(counts.values())
    if low == high:
        return f"{low} trial{'s' * (low != 1)} a cell"
    return f"{low} to {high} trials a cell"


def table(records: Sequence[Record], what: str = "right") -> str:
    """Methods down, lengths across. A cell has all depths: 95 / 90 / 100."""
    cells = shares(records, what)
    lengths = sorted({record["length"] for record in records})
    depths = sorted({record["depth"] for record in records})

    def cell(name: str, length: int) -> str:
        values = [cells[name].get((depth, length)) for depth in depths]
        if all(value is None for value in values):
            return "–"
        return " / ".join(_percent(value) for value in values)

    head = [
        "%, at depth " + " / ".join(f"{depth:g}" for depth in depths),
        *[tokens(length) for length in lengths],
    ]
    return markdown(head, [[name, *[cell(name, length) for length in lengths]] for name in cells])


def _percent(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{100 * value:.0f}"


def groups(records: Sequence[Record]) -> dict[str, list[Record]]:
    """The records by kind of needle and haystack. Different groups never share a figure."""
    grouped: dict[str, list[Record]] = {}
    for record in records:
        name = f"{record['kind']}-{Path(record['haystack']).stem}"
        grouped.setdefault(name, []).append(record)
    return grouped


def write(records: Sequence[Record], folder: Path) -> tuple[str, list[Path]]:
    """Write a table and a heat map of every group. Returns the text and the paths of the files."""
    texts = []
    files = []
    for name, some in groups(records).items():
        kind, _, haystack = name.partition("-")
        what = {"number": "pass key", "word": "secret word", "multi": "pass keys of several"}[kind]
        models = ", ".join(sorted({record["model"] for record in some}))
        title = f"{what} in {haystack} · {models} · {trials(some)}"
        text = f"{title}\n\n{table(some)}"
        if any(record["forced"] != record["right"] for record in some):
            text += f"\nfirst choice after the answer's first words\n\n{table(some, 'forced')}"
        if any(record["kept"] is not None for record in some):
            text += f"\nneedle's entries still in the pot\n\n{table(some, 'kept')}"
        texts.append(text)
        files += charts.heat_maps(shares(some), title, tokens, folder / f"needle-{name}")
    text = "\n\n".join(texts)
    (folder / "needle.md").write_text(text, "utf-8")
    return text, [*files, folder / "needle.md"]
