"""The commands inside a chat: lines that begin with a slash."""

from __future__ import annotations

import re

from infinipot.checks import known

COMMANDS = {
    "exit": ("", "leave, as Ctrl-D does"),
    "clear": ("", "forget the messages; what was read before the first one stays"),
    "file": ("PATH", "read a file, a folder or a pattern"),
    "system": ("TEXT", "begin anew with this system prompt; without TEXT: show it"),
    "retry": ("[TEMPERATURE]", "answer the last message again"),
    "undo": ("", "take back the last message, /file, /clear, /system or /load"),
    "save": ("POT", "save the pot in a file"),
    "load": ("POT", "go on from a saved pot"),
    "stats": ("", "what was read, and how much memory it takes"),
    "help": ("", "show this"),
}
"""What stands behind a command, and what it does."""
OTHER_NAMES = {"quit": "exit", "bye": "exit", "reset": "clear", "?": "help"}
KEYS = (
    ("Enter", "send; behind a \\ it begins a new line"),
    ("Alt-Enter", "begin a new line; what is pasted stays one message"),
    ("Ctrl-C", "clear the line, or stop the answer"),
    ("Ctrl-D", "leave"),
)
PLAIN_WORDS = {
    **dict.fromkeys(("exit", "quit", "exit()", "quit()", ":q", ":quit"), "exit"),
    "help": "help",
}
"""Messages of one word that were meant as commands."""


class UnknownCommand(ValueError):
    """A line that begins with a slash, and names no command."""


def parse(message: str) -> tuple[str, str] | None:
    """Command and argument of a message; None if it is one for the model.

    Paths and other texts that begin with a slash are messages. Raises UnknownCommand for a slash
    and a word that is no command, and for words that were meant as commands.
    """
    plain = PLAIN_WORDS.get(message.strip().lower())
    if plain is not None and not message[:1].isspace():
        raise UnknownCommand(
            f"/{plain} is the command ({COMMANDS[plain][1]}). "
            f"To send the word {message.strip()!r} itself, put a space before it"
        )
    match = re.match(r"/([\w-]+|\?)(?!\S)\s*(.*)", message, re.DOTALL)
    if match is None:
        return None
    word = OTHER_NAMES.get(match[1], match[1])
    try:
        known("command", f"/{word}", [f"/{name}" for name in COMMANDS])
    except ValueError as problem:
        raise UnknownCommand(
            f"{str(problem).partition(' (known')[0]} (/help lists them). "
            "To send a message that begins with /, put a space before it"
        ) from None
    return word, match[2].strip()


def help_lines() -> list[tuple[str, str]]:
    """Commands and keys, each with what it does."""
    rows = [(f"/{name} {behind}".rstrip(), what) for name, (behind, what) in COMMANDS.items()]
    return [*rows, *KEYS]
