"""Writes docs/cli.md from the command line's own help.

    python docs/make_cli.py [--check]

--check writes nothing and fails if the file is not what the help says.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from typer.main import get_command

from infinipot.cli.app import EPILOG, app

TARGET = Path(__file__).parent / "cli.md"
HEAD = "# Command line\n\nMade from the help by `python docs/make_cli.py`.\n"


def helped() -> str:
    """All commands and their options, as Markdown."""
    group = get_command(app)
    context = group.make_context("infinipot", [], resilient_parsing=True)
    parts = [HEAD, f"{group.help}\n", re.sub(r"\s+", " ", EPILOG) + "\n"]
    for name in group.list_commands(context):  # type: ignore[attr-defined]
        command = group.get_command(context, name)  # type: ignore[attr-defined]
        inner = command.make_context(name, [], parent=context, resilient_parsing=True)
        given = [parameter for parameter in command.get_params(inner) if parameter.name != "help"]
        arguments = [str(parameter.metavar) for parameter in given if parameter.param_type_name == "argument"]
        parts.append(f"## infinipot {name}\n\n{command.help}\n\n```\ninfinipot {' '.join([name, *arguments])} [OPTIONS]\n```\n")
        options = [parameter for parameter in given if parameter.param_type_name == "option"]
        rows = [record for parameter in options if (record := parameter.get_help_record(inner))]
        cells = [(f"`{flags}`".replace("|", "\\|"), re.sub(r"\s+", " ", text).replace("|", "\\|")) for flags, text in rows]
        parts.append("| option | |\n|---|---|\n" + "".join(f"| {flags} | {text} |\n" for flags, text in cells))
    return "\n".join(parts)


if __name__ == "__main__":
    if "--check" in sys.argv:
        same = TARGET.exists() and TARGET.read_text("utf-8") == helped()
        print("docs/cli.md is up to date" if same else "docs/cli.md differs from the help: run python docs/make_cli.py", file=sys.stderr)
        sys.exit(not same)
    TARGET.write_text(helped(), "utf-8")
