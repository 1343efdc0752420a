"""Runs the notebooks from top to bottom, and stores what their cells print and draw.

    python docs/make_notebooks.py [--check]

--check writes nothing, and fails if a cell prints something else than what is stored. The texts that
the notebooks read come with Python, so its version counts: that of the stored outputs is in the
notebook's metadata. It takes some minutes.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
LARGEST = 100_000
"""Bytes of a picture. A larger one is not stored."""


def run(path: Path) -> list[list[dict[str, Any]]]:
    """The outputs of each code cell. The cells run one after another, as in a kernel."""
    names: dict[str, Any] = {"__name__": "__main__"}
    outputs = []
    for number, cell in enumerate(json.loads(path.read_text("utf-8"))["cells"]):
        if cell["cell_type"] == "code":
            code = compile("".join(cell["source"]), f"cell {number}", "exec", dont_inherit=True)
            shown = io.StringIO()
            with contextlib.redirect_stdout(shown):
                exec(code, names)
            outputs.append([*printed(shown.getvalue()), *pictures()])
    return outputs


def printed(text: str) -> list[dict[str, Any]]:
    if not text:
        return []
    lines = text.splitlines(keepends=True)
    return [{"name": "stdout", "output_type": "stream", "text": lines}]


def pictures() -> list[dict[str, Any]]:
    """The figures that a cell has drawn, as PNG. They are closed."""
    if "matplotlib.pyplot" not in sys.modules:
        return []
    from matplotlib import pyplot

    found = []
    for number in pyplot.get_fignums():
        stream = io.BytesIO()
        pyplot.figure(number).savefig(stream, format="png", dpi=80)
        if stream.tell() <= LARGEST:
            data = {"image/png": base64.b64encode(stream.getvalue()).decode(), "text/plain": []}
            found.append({"data": data, "metadata": {}, "output_type": "display_data"})
    pyplot.close("all")
    return found


def text_of(outputs: list[dict[str, Any]]) -> str:
    """What a cell printed."""
    return "".join("".join(output.get("text", [])) for output in outputs)


def store(path: Path, outputs: list[list[dict[str, Any]]]) -> None:
    book = json.loads(path.read_text("utf-8"))
    cells = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    for number, (cell, shown) in enumerate(zip(cells, outputs, strict=True), 1):
        cell["outputs"] = shown
        cell["execution_count"] = number
    book["metadata"]["language_info"]["version"] = platform.python_version()
    path.write_text(json.dumps(book, indent=1, ensure_ascii=False) + "\n", "utf-8")


def stored(path: Path) -> list[list[dict[str, Any]]]:
    """The outputs that a notebook holds, of each code cell."""
    cells = json.loads(path.read_text("utf-8"))["cells"]
    return [cell["outputs"] for cell in cells if cell["cell_type"] == "code"]


def main() -> int:
    os.environ.setdefault("MPLBACKEND", "agg")
    code = 0
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        outputs = run(path)
        if "--check" not in sys.argv:
            store(path, outputs)
        elif [*map(text_of, outputs)] != [*map(text_of, stored(path))]:
            print(f"{path.name} prints something else than it holds", file=sys.stderr)
            code = 1
    return code


if __name__ == "__main__":
    sys.exit(main())
