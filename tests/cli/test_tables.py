"""Tables in a terminal: they fit, and nothing of them is lost."""

from __future__ import annotations

import io
import re
import sys

import pytest

from infinipot.cli import sweep
from infinipot.cli.tables import narrowed
from infinipot.eval.tables import markdown

LABEL = "infinipot catalyst general novelty 0.3 pool 13 pool_mode avg, question unknown"
TABLE = markdown(
    ["%, at depth 0.1 / 0.5", *(f"{count}K" for count in range(8))],
    [[LABEL, *(f"{count} / 100 / [88]" for count in range(8))], ["streaming", *"01234567"]],
)


def cells(text: str) -> list[str]:
    """All that stands in the cells of a folded table, column by column, without white space."""
    rows = [line[1:-1].split("|") for line in text.splitlines() if line.startswith("|")]
    return ["".join("".join(column).split()).replace("-", "") for column in zip(*rows, strict=True)]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_wide_table_is_folded(width: int) -> None:
    text = narrowed(f"needles · smollm2\n\n{TABLE}\nbehind it\n", width)
    assert text.startswith("needles · smollm2\n\n|")
    assert text.endswith("\n\nbehind it\n")
    assert max(map(len, text.splitlines())) <= width < len(TABLE.splitlines()[0])
    lines = TABLE.splitlines()
    whole = "\n".join([lines[0], *lines[2:]])
    assert [cell.replace(":", "") for cell in cells(text)] == cells(whole)


def test_a_table_that_fits_stays_as_it_is() -> None:
    width = len(TABLE.splitlines()[0])
    assert narrowed(TABLE, width) == TABLE


@pytest.mark.parametrize(
    "text",
    [
        markdown(["method", "", "1K"], [[LABEL, "", "1"]]),
        markdown(["method", "1K"], [[f"one | two {LABEL}", "1"]]),
        markdown([LABEL, "1K"], []),
    ],
)
def test_odd_tables_lose_nothing(text: str) -> None:
    """An empty column, a bar within a cell, no rows."""
    letters = [re.findall(r"[^\s|:-]", one) for one in (narrowed(text, 50), text)]
    assert sorted(letters[0]) == sorted(letters[1])


def test_only_a_terminal_gets_folded_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "70")
    for terminal in (True, False):
        out = io.StringIO()
        out.isatty = lambda terminal=terminal: terminal  # type: ignore[method-assign]
        monkeypatch.setattr(sys, "stdout", out)
        sweep.show([], TABLE, [], False)
        assert (max(map(len, out.getvalue().splitlines())) <= 70) is terminal
