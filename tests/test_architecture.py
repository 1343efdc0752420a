"""The tree shows the paper: imports go one way, nothing imports in a circle, and importing the package does no work."""

from __future__ import annotations

import ast
import graphlib
import subprocess
import sys
from functools import cache
from pathlib import Path

from modules import MODULES, PACKAGE

LAYERS = """
checks compat kernels parallel catalysts optional machine
scoring text
cache policies
option_types
model
config sampling
engine
session custom_generate pot_file
server eval bench
cli llm_plugin
"""
"""A line imports from those above it, and within itself."""


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """All of a file's syntax."""
    return tuple(ast.walk(ast.parse(path.read_text())))


@cache
def imports(path: Path) -> set[str]:
    """Modules of this package that a file imports: anywhere in it, for type checkers, too."""
    found: set[str] = set()
    for node in nodes(path):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "infinipot":
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.add(whole if whole in MODULES else str(node.module))
    return found - {"infinipot"}


def test_imports_go_upwards_only() -> None:
    rank = {
        name: number
        for number, line in enumerate(LAYERS.strip().splitlines())
        for name in line.split()
    }
    for module, path in MODULES.items():
        if module != "infinipot":
            for other in imports(path):
                assert rank[other.split(".")[1]] <= rank[module.split(".")[1]], (
                    f"{module} imports {other}"
                )


def test_nothing_imports_in_a_circle() -> None:
    graph = {
        module: imports(path) - {module}
        for module, path in MODULES.items()
        if module != "infinipot"
    }
    tuple(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError, which names them


def test_files_are_short() -> None:
    for path in PACKAGE.rglob("*.py"):
        assert len(path.read_text().splitlines()) <= 300, (
            f"{path.name} is too long to be seen at once"
        )


FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
FOREIGN = {"infinipot.custom_generate.generate"}
"""Functions whose parameters another library names."""


@cache
def functions() -> list[tuple[str, FUNCTION]]:
    """All functions but kernels and the commands of the command line, whose parameters are their options."""
    found = []
    for module, path in MODULES.items():
        for node in nodes(path):
            if isinstance(node, FUNCTION) and not any(
                ".command(" in ast.unparse(decorator) or "triton.jit" in ast.unparse(decorator)
                for decorator in node.decorator_list
            ):
                found.append((f"{module}.{node.name}", node))
    return found


def test_functions_are_short() -> None:
    for name, node in functions():
        lines = (node.end_lineno or node.lineno) - node.lineno + 1
        assert lines <= 40, f"{name} has {lines} lines: cut it into named steps"


def test_functions_have_few_parameters() -> None:
    for name, node in functions():
        parameters = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        count = sum(parameter.arg not in ("self", "cls") for parameter in parameters)
        assert count <= 6 or name in FOREIGN, f"{name} has {count} parameters: group them"


def test_no_packed_assignments() -> None:
    """`a, b = x, y` has to be read twice. Swaps, where one depends on the other, are few."""
    packed = [
        f"{module}:{node.lineno}"
        for module, path in MODULES.items()
        for node in nodes(path)
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Tuple)
        and isinstance(node.value, ast.Tuple)
    ]
    assert len(packed) <= 3, packed


def test_import_does_no_work() -> None:
    code = "import sys, infinipot; print(sorted({'torch', 'transformers', 'numpy'} & set(sys.modules)))"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "[]"
    )


def attributes_of_cache() -> set[str]:
    """Names of the attributes that objects of the cache have: annotated in their classes, or assigned to `self`."""
    names: set[str] = set()
    for path in (PACKAGE / "cache").glob("*.py"):
        for cls in (
            node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)
        ):
            for node in ast.walk(cls):
                if (
                    isinstance(node, ast.Attribute)
                    and isinstance(node.ctx, ast.Store)
                    and ast.unparse(node.value) == "self"
                ):
                    names.add(node.attr)
            names |= {
                node.target.id
                for node in cls.body
                if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
            }
            for node in (node for node in cls.body if isinstance(node, ast.Assign)):
                names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names


OTHERS: set[tuple[str, str]] = set()
"""Files, and names there, of attributes that other objects have, too."""


def test_only_the_cache_writes_to_pots_and_layers() -> None:
    """Whoever keeps a copy of a pot's state must know who changes it."""
    names = attributes_of_cache()
    assert {"tokens_read", "novelty", "hidden", "length", "peak", "pinned"} <= names
    written = set()
    for path in PACKAGE.rglob("*.py"):
        if path.parent.name != "cache":
            for node in nodes(path):
                stored = (
                    isinstance(node, ast.Attribute)
                    and isinstance(node.ctx, (ast.Store, ast.Del))
                    and node.attr in names
                )
                if stored and ast.unparse(node.value) not in ("self", "cls"):  # type: ignore[attr-defined]
                    written.add((path.relative_to(PACKAGE).as_posix(), node.attr))  # type: ignore[attr-defined]
    assert written == OTHERS
