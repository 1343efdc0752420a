"""The tree shows the paper: imports go one way, nothing imports in a circle, and importing the package does no work."""

from __future__ import annotations

import ast
import graphlib
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "infinipot"
LAYERS = """
checks compat kernels catalysts optional machine
scoring text
cache policies
model
config
engine
session custom_generate pot_file
server eval bench
cli
"""
"""A line imports from those above it, and within itself."""


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_of(path): path for path in PACKAGE.rglob("*.py")}


def imports(path: Path) -> set[str]:
    """Modules of this package that a file imports: anywhere in it, for type checkers, too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "infinipot":
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.add(whole if whole in MODULES else str(node.module))
    return found - {"infinipot"}


def test_imports_go_upwards_only() -> None:
    rank = {name: number for number, line in enumerate(LAYERS.strip().splitlines()) for name in line.split()}
    for module, path in MODULES.items():
        if module != "infinipot":
            for other in imports(path):
                assert rank[other.split(".")[1]] <= rank[module.split(".")[1]], f"{module} imports {other}"


def test_nothing_imports_in_a_circle() -> None:
    graph = {module: imports(path) - {module} for module, path in MODULES.items() if module != "infinipot"}
    tuple(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError, which names them


def test_files_are_short() -> None:
    for path in PACKAGE.rglob("*.py"):
        assert len(path.read_text().splitlines()) <= 300, f"{path.name} is too long to be seen at once"


def test_import_does_no_work() -> None:
    code = "import sys, infinipot; print(sorted({'torch', 'transformers', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
