"""Writes docs/cli.md from the command line's own help.

    python docs/make_cli.py [--check]

--check writes nothing and fails if the file differs from the help.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command

from infinipot.cli.app import EPILOG, app
from infinipot.cli.help_words import EXAMPLES
from infinipot.cli.options import COMMON, POT, SAMPLING
from infinipot.cli.sweep import SWEEP

Rows = dict[str, str]
"""The rows of a table of options, by the option's name."""

TARGET = Path(__file__).parent / "cli.md"
HEAD = "# Command line\n\nMade from the help by `python docs/make_cli.py`.\n"
SHARED = {
    "Options of the pot": POT,
    "Options of an answer": SAMPLING,
    "Options of an evaluation": SWEEP,
    "Options of every command": COMMON,
}
"""Options that several commands take. They stand on the page once."""
ABOUT_SHARED = "Commands name these groups instead of repeating them.\n"
TABLE = ["| option | |", "|---|---|"]


def document() -> str:
    """All commands and their options, as Markdown."""
    group = get_command(app)
    context = group.make_context("infinipot", [], resilient_parsing=True)
    commands = dict(commands_of(group, context, "infinipot"))
    shared = shared_rows([rows for _, _, rows in commands.values()])
    parts = [HEAD, f"{one_line(group.help)}\n", f"{one_line(EPILOG)}\n"]
    parts += ["## Shared options\n", ABOUT_SHARED]
    for title, rows in shared.items():
        parts += [f"### {title}\n", table(rows.values())]
    for path, (command, arguments, rows) in commands.items():
        if rows is None:
            parts.append(f"## {path}\n\n{command.help}\n")
        else:
            parts.append(section(command, arguments, rows, path, shared))
    return "\n".join(parts)


def commands_of(group: Any, context: Any, path: str) -> Iterator[tuple[str, Any]]:
    """(path, (command, arguments, rows of its options by name)) of each command; a group has None
    instead of rows, and is followed by its commands."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        inner = command.make_context(name, [], parent=context, resilient_parsing=True)
        if hasattr(command, "list_commands"):
            yield f"{path} {name}", (command, [], None)
            yield from commands_of(command, inner, f"{path} {name}")
        else:
            yield f"{path} {name}", (command, arguments_of(command, inner), rows_of(command, inner))


def arguments_of(command: Any, context: Any) -> list[str]:
    return [
        str(one.metavar) if one.required else f"[{one.metavar}]"
        for one in command.get_params(context)
        if one.param_type_name == "argument"
    ]


def rows_of(command: Any, context: Any) -> Rows:
    """The rows of a command's options, by name."""
    rows = {}
    for parameter in command.get_params(context):
        row = parameter.get_help_record(context)
        if parameter.param_type_name == "option" and row and parameter.name != "help":
            flags, text = (one_line(cell).replace("|", "\\|") for cell in row)
            rows[parameter.name] = f"| `{flags}` | {text} |"
    return rows


def shared_rows(commands: list[Rows | None]) -> dict[str, Rows]:
    """The rows of each shared group. Of several rows of one option, the most common one."""
    counts: dict[str, Counter[str]] = {}
    for rows in commands:
        for name, row in (rows or {}).items():
            counts.setdefault(name, Counter())[row] += 1
    return {
        title: {
            one.name: counts[one.name].most_common(1)[0][0] for one in group if one.name in counts
        }
        for title, group in SHARED.items()
    }


def section(
    command: Any, arguments: list[str], rows: Rows, path: str, shared: dict[str, Rows]
) -> str:
    usage = " ".join([path, *arguments])
    lines = [f"## {path}", "", one_line(command.help), "", "```", f"{usage} [OPTIONS]", "```", ""]
    lines += ["```sh", *EXAMPLES[path.removeprefix("infinipot ")], "```", ""]
    own = dict(rows)
    links = []
    for title, group in shared.items():
        same = [name for name, row in group.items() if rows.get(name) == row]
        if 2 * len(same) > len(group):
            own = {name: row for name, row in own.items() if name not in same}
            links.append(link_to(title, [row for name, row in group.items() if name not in same]))
    if own:
        lines += [table(own.values())]
    if links:
        lines += [f"{'Also the' if own else 'The'} {', the '.join(links)}.", ""]
    return "\n".join(lines)


def link_to(title: str, missing: list[str]) -> str:
    """The name of a shared group, and the options in it that a command does not take as they are."""
    name = f"[{title[0].lower()}{title[1:]}](#{title.lower().replace(' ', '-')})"
    flags = [row.split("`")[1].split(" ")[0] for row in missing]
    if not flags:
        return name
    return f"{name} but {', '.join(f'`{flag}`' for flag in flags)}"


def table(rows: Iterable[str]) -> str:
    return "\n".join([*TABLE, *rows]) + "\n"


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
