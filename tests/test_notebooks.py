"""The notebooks run from top to bottom, and what they claim (their cells' asserts) holds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from infinipot.model.load import embedded

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
RUN = """
import json, sys

names = {"__name__": "__main__"}
for number, cell in enumerate(json.load(open(sys.argv[1], encoding="utf-8"))["cells"]):
    if cell["cell_type"] == "code":
        exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
"""


def ran(path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """All code cells, one after another in one new process, as a kernel would run them."""
    known = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "MPLBACKEND": "agg",
        "OMP_NUM_THREADS": "1",
        **environment,
    }
    return subprocess.run(
        [sys.executable, "-c", RUN, str(path)],
        env=known,
        capture_output=True,
        text=True,
        timeout=600,
    )


def written(path: Path, *sources: str) -> Path:
    cells = [
        {"cell_type": "code", "source": source.splitlines(keepends=True)} for source in sources
    ]
    path.write_text(
        json.dumps({"cells": [{"cell_type": "markdown", "source": ["not python"]}, *cells]})
    )
    return path


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_cell_runs_and_every_claim_holds(path: Path) -> None:
    """On a short text."""
    try:
        embedded()
    except FileNotFoundError as missing:
        pytest.skip(str(missing))
    child = ran(path, TOKENS="1000")
    assert child.returncode == 0, child.stderr[-3000:]
    assert child.stdout.count("\n") > 5


def test_a_cell_that_raises_and_a_claim_that_is_wrong_are_seen(tmp_path: Path) -> None:
    assert (
        ran(written(tmp_path / "right.ipynb", "a = 1", "assert a == 1\nprint(a)")).stdout == "1\n"
    )
    for number, wrong in enumerate(("assert a == 2", "nothing", "a +")):
        child = ran(written(tmp_path / f"{number}.ipynb", "a = 1", wrong))
        assert child.returncode == 1
        assert 'File "cell 2"' in child.stderr


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
