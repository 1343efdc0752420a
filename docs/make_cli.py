"""Writes docs/cli.md from the command line's own help.

    python docs/make_cli.py [--check]

--check writes nothing and fails if the file differs from the help.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command

from infinipot.cli.app import EPILOG, app
from infinipot.cli.help_words import EXAMPLES

TARGET = Path(__file__).parent / "cli.md"
HEAD = "# Command line\n\nMade from the help by `python docs/make_cli.py`.\n"


def document() -> str:
    """All commands and their options, as Markdown."""
    group = get_command(app)
    context = group.make_context("infinipot", [], resilient_parsing=True)
    parts = [HEAD, f"{one_line(group.help)}\n", f"{one_line(EPILOG)}\n"]
    return "\n".join([*parts, *sections(group, context, "infinipot")])


def sections(group: Any, context: Any, path: str) -> Iterator[str]:
    """A section for each command of a group. A group inside it is followed by its commands."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        inner = command.make_context(name, [], parent=context, resilient_parsing=True)
        if hasattr(command, "list_commands"):
            yield f"## {path} {name}\n\n{command.help}\n"
            yield from sections(command, inner, f"{path} {name}")
        else:
            yield section(command, inner, f"{path} {name}")


def section(command: Any, context: Any, path: str) -> str:
    parameters = [one for one in command.get_params(context) if one.name != "help"]
    arguments = [
        str(one.metavar) if one.required else f"[{one.metavar}]"
        for one in parameters
        if one.param_type_name == "argument"
    ]
    usage = " ".join([path, *arguments])
    lines = [f"## {path}", "", one_line(command.help), "", "```", f"{usage} [OPTIONS]", "```", ""]
    lines += ["```sh", *EXAMPLES[path.removeprefix("infinipot ")], "```", ""]
    lines += ["| option | |", "|---|---|"]
    for parameter in parameters:
        row = parameter.get_help_record(context)
        if parameter.param_type_name == "option" and row:
            flags, text = (one_line(cell).replace("|", "\\|") for cell in row)
            lines.append(f"| `{flags}` | {text} |")
    return "\n".join(lines) + "\n"


def one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def main() -> int:
    text = document()
    if "--check" not in sys.argv:
        TARGET.write_text(text, "utf-8")
        return 0
    if TARGET.exists() and TARGET.read_text("utf-8") == text:
        return 0
    print("docs/cli.md differs from the help: run python docs/make_cli.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
