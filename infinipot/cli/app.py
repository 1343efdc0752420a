"""The typer app, and the arguments that several commands share. Each command has its own file."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from infinipot.cli.command import WIDTH, Command, Group
from infinipot.cli.console import put

EPILOG = (
    "Every option comes from its flag, else from the environment (INFINIPOT_POT_SIZE=1k; "
    "of a repeatable option one value a line), "
    "else from --config FILE.yaml (pot_size: 1k), else it has its default. "
    "Unknown names are refused in all three. Sizes may end in k (1,024) or m (1,024 k). "
    "Answers go to stdout, everything else to stderr. "
    "Exit codes: 0 done; 1 failed while running; "
    "2 bad use (an unknown option or policy, sizes without room, "
    "a missing or damaged file or model); 130 interrupted; 141 stdout was closed."
)

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": WIDTH}


HELP = ("-h", "--help", "--help-all")


class App(typer.Typer):
    """A group of commands, all of them of our class."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(
            cls=Group,
            rich_markup_mode=None,
            pretty_exceptions_enable=False,
            context_settings=CONTEXT,
            **settings,
        )

    def command(  # type: ignore[override]
        self, name: str, **settings: Any
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        settings = {"epilog": EPILOG, "cls": Command, "context_settings": CONTEXT, **settings}
        return super().command(name, **settings)

    def outline(self) -> App:
        """A twin whose commands have no options: help about all commands shows none, and options take
        most of the time."""
        twin = copy.copy(self)
        twin.registered_commands = [named(command) for command in self.registered_commands]
        twin.registered_groups = []
        for group in self.registered_groups:
            own = copy.copy(group)
            if isinstance(own.typer_instance, App):
                own.typer_instance = own.typer_instance.outline()
            twin.registered_groups.append(own)
        return twin

    def names_in(self, args: list[str]) -> list[str]:
        """The first arguments, as far as they name a group or a command of it."""
        if not args:
            return []
        for group in self.registered_groups:
            if group.name == args[0] and isinstance(group.typer_instance, App):
                return [args[0], *group.typer_instance.names_in(args[1:])]
        return [command.name for command in self.registered_commands if command.name == args[0]]

    def part(self, names: list[str]) -> App:
        """One command or the outline of a group, by the names that lead to it. It holds no options of
        other commands: they take most of the time."""
        if not names:
            return self.outline()
        for group in self.registered_groups:
            if group.name == names[0] and isinstance(group.typer_instance, App):
                return group.typer_instance.part(names[1:])
        alone = App(add_completion=False)
        alone.registered_commands = [
            command for command in self.registered_commands if command.name == names[0]
        ]
        return alone


def named(command: Any) -> Any:
    """A command with the same name and help, and nothing else."""

    def callback() -> None:
        """Never called."""

    callback.__name__ = command.callback.__name__
    callback.__doc__ = command.callback.__doc__
    own = copy.copy(command)
    own.callback = callback
    return own


app = App()

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="smollm2 (embedded; the default), a Hub id, a folder, or a .gguf file.",
        show_default=False,
    ),
]
TextFiles = Annotated[
    list[str] | None,
    typer.Option(
        "-f",
        "--file",
        metavar="FILE",
        help="Text to read first, of any length: a file, a folder, or a pattern ('*.md'); "
        "repeatable. Several are read in order, behind marks with their names. PDF, HTML, DOCX, "
        "EPUB and e-mail are converted. What is piped in comes last, or where -f - stands.",
        show_default=False,
    ),
]
Question = Annotated[
    str | None, typer.Option("-p", "--prompt", metavar="TEXT", help="The question.")
]
SavedPot = Annotated[
    Path | None, typer.Option("--pot", metavar="FILE", help="Go on from this saved pot.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")]


def show_version(requested: bool) -> None:
    if requested:
        from infinipot import __version__

        put(f"infinipot {__version__}\n")
        raise typer.Exit()


@app.callback(epilog=EPILOG)
def root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Read text of any length with a pot of fixed size, and answer from it (InfiniPot, arXiv
    2410.01518)."""
