"""One option of the command line, and its default."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from infinipot.checks import SIZES
from infinipot.cli.parsers import number, size, whole

PACKAGE = Path(__file__).parents[1]


def dataclass_defaults() -> dict[str, Any]:
    """The default of every option that has the same one for all policies. It is read from the
    source, because importing the policies imports torch, which takes seconds."""
    policies = sorted({*(PACKAGE / "policies").glob("*.py")} - {PACKAGE / "policies" / "base.py"})
    defaults: dict[str, set[Any]] = {}
    for path in (PACKAGE / "config.py", PACKAGE / "sampling.py", *policies):
        for field in fields_in(path):
            if isinstance(field.target, ast.Name) and isinstance(
                field.value, (ast.Constant, ast.Tuple)
            ):
                defaults.setdefault(field.target.id, set()).add(ast.literal_eval(field.value))
    return {name: values.pop() for name, values in defaults.items() if len(values) == 1}


def fields_in(path: Path) -> Iterator[ast.AnnAssign]:
    """The fields of the dataclasses in a file."""
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.ClassDef) and node.decorator_list:
            yield from (line for line in node.body if isinstance(line, ast.AnnAssign))


DEFAULTS = {
    name: default for name, default in dataclass_defaults().items() if default not in (None, (), "")
} | {"policy": "infinipot"}


PARSERS: dict[Any, Callable[[Any], Any]] = {int: whole, float: number, list[int]: whole}
METAVARS = {
    int: "N",
    float: "X",
    str: "TEXT",
    list[str]: "TEXT",
    list[int]: "N",
    Path: "FILE",
    bool: None,
}


def option(name: str, kind: Any, help: str, *flags: str, **more: Any) -> inspect.Parameter:
    """One option. Its value is None if neither flag nor environment nor config file gives it."""
    if name in DEFAULTS and kind is not bool and "[default" not in help:
        help += f" [default: {DEFAULTS[name]}]"
    if not flags:
        flags = (f"--{name.replace('_', '-')}",)
    parser = PARSERS.get(kind)
    if name in SIZES:
        parser = size
    settings = {"metavar": METAVARS[kind], "parser": parser, **more}
    info = typer.Option(*flags, help=help, show_envvar=False, show_default=False, **settings)
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[kind | None, info],
    )
