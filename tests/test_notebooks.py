"""The notebooks run from top to bottom, and what they claim (their cells' asserts) holds."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import infinipot

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
TOKENS = {"long_book": "800", "write_a_policy": "300"}
"""As few as there can be for what the notebooks claim."""
ANSWERS = {"long_book": 4}
"""The code cell that prints what the model says: that depends on the length of the text."""
SHOWS = ("print(", "pyplot.show()")


def docs_script(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


made = docs_script("make_notebooks")


def shape(text: str) -> list[str]:
    """What does not depend on the length of the text: words, without numbers and bars."""
    return [" ".join(re.sub(r"[\d.,█%]+", " ", line).split()) for line in text.splitlines()]


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
    """On a short text, with the embedded model that other tests have loaded. All that is stored comes
    out again, but for numbers and for what the model says."""
    for name, value in (
        ("TOKENS", TOKENS[path.stem]),
        ("MPLBACKEND", "agg"),
        ("TQDM_DISABLE", "1"),
    ):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(infinipot, "load", {"smollm2": smollm2}.__getitem__, raising=False)
    outputs = made.run(path)
    held = made.stored(path)
    for got, kept in zip(outputs, held, strict=True):
        if kept != held[ANSWERS.get(path.stem, -1)]:
            assert shape(made.text_of(got)) == shape(made.text_of(kept))
        assert [one["output_type"] for one in got] == [one["output_type"] for one in kept]


def test_a_cell_that_raises_and_a_claim_that_is_wrong_are_seen(
    tmp_path: Path,
) -> None:
    outputs = made.run(written(tmp_path / "right.ipynb", "a = 1", "assert a == 1\nprint(a)"))
    assert [*map(made.text_of, outputs)] == ["", "1\n"]
    for number, (wrong, problem) in enumerate(
        (("assert a == 2", AssertionError), ("nothing", NameError), ("a +", SyntaxError))
    ):
        with pytest.raises(problem) as raised:
            made.run(written(tmp_path / f"{number}.ipynb", "a = 1", wrong))
        assert "cell 2" in str(raised.getrepr(style="native"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_with_outputs_and_explains_every_cell(path: Path) -> None:
    book = json.loads(path.read_text("utf-8"))
    assert book["nbformat"] == 4
    assert len({cell["id"] for cell in book["cells"]}) == len(book["cells"])
    for before, cell in zip(book["cells"], book["cells"][1:], strict=False):
        if cell["cell_type"] == "code":
            assert before["cell_type"] == "markdown", (
                f"nothing explains the cell {cell['source'][:1]}"
            )
            assert bool(cell["outputs"]) == any(word in "".join(cell["source"]) for word in SHOWS)
    cells = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == [*range(1, len(cells) + 1)]
    assert path.stat().st_size < 2 * made.LARGEST
    assert any("image/png" in one.get("data", ()) for cell in cells for one in cell["outputs"])


def test_outputs_are_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.ipynb"
    shutil.copy(NOTEBOOKS[0], path)
    version = json.loads(path.read_text("utf-8"))["metadata"]["language_info"]["version"]
    monkeypatch.setattr(made.platform, "python_version", lambda: version)
    shown = [made.printed(f"{number}\n") for number, _ in enumerate(made.stored(path))]
    made.store(path, shown)
    assert made.stored(path) == shown
    made.store(path, made.stored(NOTEBOOKS[0]))
    assert path.read_text("utf-8") == NOTEBOOKS[0].read_text("utf-8")


def test_there_are_two() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["long_book", "write_a_policy"]
