"""How a command takes its options and shows its help."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from infinipot.checks import known
from infinipot.cli.console import BadUse
from infinipot.cli.help_words import EXAMPLES, GROUPS, RARE

PREFIX = "INFINIPOT_"
OTHER_NAMES = ("MODELS", "COMMIT", "DATA", "CACHE_GB")
"""Variables that are no options: tests and benchmarks read them, and loading reads the last."""
SERVICE_LINKS = re.compile(r"SERVICE_(HOST|PORT.*)|PORT_\d+_(TCP|UDP).*")
"""Variables that Kubernetes sets by itself for a service named infinipot."""
WIDTH = 110


def lines_of(parameter: Any, context: Any) -> list[str] | None:
    """The values of a repeatable option in the environment: one a line."""
    lines = os.environ.get(parameter.envvar, "").splitlines()
    return [line for line in lines if line] or None


def takes_several(parameter: Any) -> bool:
    """Whether an option may be repeated, or says the same when it is."""
    if parameter.param_type_name == "argument" or parameter.multiple:
        return True
    return parameter.is_flag and not parameter.secondary_opts


class Command(TyperCommand):
    """A command. Each option comes from its flag, else from INFINIPOT_NAME, else from the config
    file. `--help` shows everyday options in groups, `--help-all` all of them."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        for parameter in self.params:
            if parameter.param_type_name == "option" or parameter.name == "model":
                parameter.envvar = f"{PREFIX}{str(parameter.name).upper()}"
                parameter.show_envvar = False  # type: ignore[attr-defined]
            if getattr(parameter, "multiple", False):
                parameter.value_from_envvar = functools.partial(  # type: ignore[method-assign]
                    lines_of, parameter
                )

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        if "--help-all" in args:
            ctx.meta["infinipot.help_all"] = True
            args = ["--help"]
        _, _, order = self.make_parser(ctx).parse_args(list(args))
        for parameter in order:
            if order.count(parameter) > 1 and not takes_several(parameter):
                raise BadUse(
                    f"{parameter.opts[-1]} is given {order.count(parameter)} times, and takes one "
                    f"value: leave one (a default for all commands: {parameter.envvar})"
                )
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        check_environment(ctx)
        return super().invoke(ctx)

    def get_short_help_str(self, limit: int = 45) -> str:
        """The first sentence of the help, whole."""
        return re.split(r"(?<=[a-z)])[.:] ", " ".join((self.help or "").split()))[0].rstrip(".")

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        super().format_help_text(ctx, formatter)
        with formatter.section("Examples"):
            for line in EXAMPLES[ctx.command_path.removeprefix("infinipot ")]:
                formatter.write(f"{'':{formatter.current_indent}}{line}\n")

    def format_options(self, ctx: Any, formatter: Any) -> None:
        shown_all = ctx.meta.get("infinipot.help_all", False)
        groups, hidden = grouped(self.get_params(ctx), ctx, shown_all)
        for title, rows in groups.items():
            with formatter.section(title):
                formatter.write_dl(rows)
        if hidden:
            formatter.write_paragraph()
            formatter.write_text(f"{hidden} more options: --help-all shows them.")


class Group(TyperGroup):
    """A group of commands. It has no rare options: `--help-all` is its help."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        if args[:1] == ["--help-all"]:
            args = ["--help"]
        return super().parse_args(ctx, args)


def grouped(
    parameters: list[Any], context: Any, shown_all: bool
) -> tuple[dict[str, list[tuple[str, str]]], int]:
    """The rows of the help by group, and how many options are not shown."""
    groups: dict[str, list[tuple[str, str]]] = {
        "Arguments": [],
        "Options": [],
        **{title: [] for title in GROUPS},
    }
    homes = {name: title for title, names in GROUPS.items() for name in names}
    hidden = 0
    for parameter in parameters:
        row = parameter.get_help_record(context)
        if row is None:
            continue
        if parameter.param_type_name == "argument":
            groups["Arguments"].append(row)
        elif parameter.name in RARE and not shown_all:
            hidden += 1
        else:
            groups[homes.get(parameter.name, "Options")].append(row)
    return {title: rows for title, rows in groups.items() if rows}, hidden


def options_of(command: Any) -> Iterator[Any]:
    """All options of a command and of the commands inside it, and the argument MODEL."""
    for inner in getattr(command, "commands", {}).values():
        yield from options_of(inner)
    if isinstance(command, Command):
        for parameter in command.params:
            if parameter.param_type_name == "option" or parameter.name == "model":
                yield parameter


def all_options(context: Any) -> dict[str, Any]:
    """The options of all commands by name; which command is run makes no difference. Where only a
    part of the app was built, the root's `obj` is the whole app."""
    root = context.find_root()
    command = root.command
    if root.obj is not None:
        command = get_command(root.obj)
    found = {parameter.name: parameter for parameter in options_of(command)}
    found.pop("help", None)
    return found


def is_ours(variable: str) -> bool:
    """Whether a variable of the environment has to be an option's."""
    name = variable.removeprefix(PREFIX)
    return name not in (variable, *OTHER_NAMES) and not SERVICE_LINKS.fullmatch(name)


def check_environment(context: typer.Context) -> None:
    """Refuse names that begin like ours and are no option's."""
    ours = [variable for variable in os.environ if is_ours(variable)]
    if not ours:
        return
    names = {name.upper() for name in all_options(context)}
    for variable in ours:
        try:
            known("variable", variable, sorted(f"{PREFIX}{one}" for one in names))
        except ValueError as problem:
            sentence = str(problem).partition(" (known")[0]
            raise BadUse(
                f"{sentence} (what begins with {PREFIX} must be an option of a command: rename "
                "it, or remove it; infinipot COMMAND --help-all lists the options)"
            ) from None
