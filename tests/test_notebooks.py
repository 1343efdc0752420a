"""The notebooks run from top to bottom, and what they claim (their cells' asserts) holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import infinipot

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
TOKENS = {"long_book": "800", "write_a_policy": "300"}
"""As few as there can be for what the notebooks claim."""


def ran(path: Path) -> None:
    """All code cells, one after another, as a kernel would run them."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(json.loads(path.read_text("utf-8"))["cells"]):
        if cell["cell_type"] == "code":
            code = compile("".join(cell["source"]), f"cell {number}", "exec", dont_inherit=True)
            exec(code, names)


def written(path: Path, *sources: str) -> Path:
    cells = [
        {"cell_type": "code", "source": source.splitlines(keepends=True)} for source in sources
    ]
    path.write_text(
        json.dumps({"cells": [{"cell_type": "markdown", "source": ["not python"]}, *cells]})
    )
    return path


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_cell_runs_and_every_claim_holds(
    path: Path,
    smollm2: tuple[Any, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """On a short text, with the embedded model that other tests have loaded."""
    for name, value in (
        ("TOKENS", TOKENS[path.stem]),
        ("MPLBACKEND", "agg"),
        ("TQDM_DISABLE", "1"),
    ):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(infinipot, "load", {"smollm2": smollm2}.__getitem__, raising=False)
    ran(path)
    assert capsys.readouterr().out.count("\n") > 5


def test_a_cell_that_raises_and_a_claim_that_is_wrong_are_seen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ran(written(tmp_path / "right.ipynb", "a = 1", "assert a == 1\nprint(a)"))
    assert capsys.readouterr().out == "1\n"
    for number, (wrong, problem) in enumerate(
        (("assert a == 2", AssertionError), ("nothing", NameError), ("a +", SyntaxError))
    ):
        with pytest.raises(problem) as raised:
            ran(written(tmp_path / f"{number}.ipynb", "a = 1", wrong))
        assert "cell 2" in str(raised.getrepr(style="native"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_outputs_and_explains_every_cell(path: Path) -> None:
    book = json.loads(path.read_text("utf-8"))
    assert book["nbformat"] == 4
    assert len({cell["id"] for cell in book["cells"]}) == len(book["cells"])
    for before, cell in zip(book["cells"], book["cells"][1:], strict=False):
        if cell["cell_type"] == "code":
            assert before["cell_type"] == "markdown", (
                f"nothing explains the cell {cell['source'][:1]}"
            )
            assert cell["outputs"] == [] and cell["execution_count"] is None


def test_there_are_two() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["long_book", "write_a_policy"]
