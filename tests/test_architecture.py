"""The tree shows the paper: each module imports only from those above it, and importing the package does no work."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "infinipot"
LAYERS = """
fused identity
kernels
positions selection novelty catalyst slots
policies witness grouped norms abreast
options
compat
attention
probe layers window together
state
pot
host
observe graphs
distill
decoding gguf text files
template
models reader
answering
session generation
bench eval server
cli
"""


BESIDE = {"bench", "eval", "server", "cli"}
"""What stands on the core."""
SPEED = ("fused", "kernels", "identity", "norms", "graphs", "abreast")
"""What only makes it fast and could be left out: the engine runs without, with the same results."""


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "infinipot":
            inside = (node.module or "").split(".")[1:]
            found |= {inside[0]} if inside else {alias.name for alias in node.names}
    return found


def test_imports_go_upwards_only() -> None:
    rank = {name: number for number, line in enumerate(LAYERS.strip().splitlines()) for name in line.split()}
    for path in PACKAGE.rglob("*.py"):
        own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if own == "__init__":
            continue
        assert own in rank, f"{path} has no place in the architecture"
        for other in imports(path) - {own, "__version__"}:
            assert own == "cli" or rank[other] < rank[own], f"{own} imports {other}"


def code_lines(path: Path) -> int:
    """Lines that hold code: no blank ones, comments or docstrings."""
    source = path.read_text()
    nodes = [node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)]
    words = {line for node in nodes for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    lines = enumerate(source.splitlines(), 1)
    return sum(bool(line.strip()) and not line.strip().startswith("#") and number not in words for number, line in lines)


def test_files_are_short() -> None:
    for path in PACKAGE.rglob("*.py"):
        assert len(path.read_text().splitlines()) <= 300, f"{path.name} is too long to be seen at once"
    core = [path for path in PACKAGE.rglob("*.py") if not BESIDE & set(path.parts) and path.stem not in (*SPEED, "gguf")]
    assert sum(map(code_lines, core)) <= 2820


def test_import_does_no_work() -> None:
    code = "import sys, infinipot; print(sorted({'torch', 'transformers', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
