"""A chat in a terminal: editing of messages, wrapped answers, keys that wait."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from typing import Any

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import NestedCompleter, PathCompleter
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.key_binding.key_processor import KeyPressEvent
from prompt_toolkit.output import create_output
from prompt_toolkit.shortcuts import CompleteStyle
from prompt_toolkit.styles import Style
from rich.console import Console
from rich.table import Table

from infinipot.cli.console import CLEAR, check_utf8, interrupts, put, terminal
from infinipot.cli.screen import Screen
from infinipot.cli.slash import COMMANDS
from infinipot.cli.state import HISTORY, Talk, make_folder
from infinipot.cli.wrap import Wrapper

PASTE_ON = "\x1b[?2004h"
PASTE_OFF = "\x1b[?2004l"
LAST_SHOWN = 600
"""Characters of the newest answer that are shown when a conversation goes on."""
STYLE = Style.from_dict({"mark": "bold ansicyan"})


def columns() -> int:
    """How many columns an answer may take: the last one stays free."""
    return max(10, shutil.get_terminal_size().columns - 1)


class TerminalScreen(Screen):
    """Messages of one or more lines, edited in a terminal.

    Answers go to stdout, wrapped if that is a terminal; all else goes to stderr. private: nothing
    that is typed is kept.
    """

    interactive = True

    def __init__(self, private: bool = False, quiet: bool = False) -> None:
        self.quiet = quiet
        self.stream = sys.stderr if sys.stderr.isatty() else sys.stdout
        self.console = Console(file=self.stream, highlight=False, markup=False, emoji=False)
        self.wrapper = Wrapper(put, columns) if sys.stdout.isatty() else None
        self.waiting = False
        """Whether the mark of an answer that has not begun is shown."""
        self.prompting = False
        """Whether a message is being typed."""
        os.environ.setdefault("PROMPT_TOOLKIT_NO_CPR", "1")  # no questions to the terminal
        self.prompt: PromptSession[str] = PromptSession(
            message=[("class:mark", "> ")],
            prompt_continuation="  ",
            multiline=True,
            history=self._history(private),
            key_bindings=key_bindings(),
            completer=completer(),
            complete_while_typing=False,
            complete_style=CompleteStyle.READLINE_LIKE,
            enable_open_in_editor=True,
            style=STYLE,
            output=create_output(self.stream),
        )

    def _history(self, private: bool) -> History:
        if private:
            return InMemoryHistory()
        try:
            path = make_folder() / HISTORY
            path.touch(mode=0o600)
            with path.open("a"):
                return FileHistory(str(path))
        except OSError as problem:
            self.note(f"what is typed is not kept for the next chat: {problem}")
            return InMemoryHistory()

    def greet(self, talk: Talk, pot: str) -> None:
        if self.quiet:
            return
        self.console.print(f"{talk.model} · {pot}", style="bold")
        keys = "/help: commands · Alt-Enter: new line · Ctrl-C: stop · Ctrl-D: leave"
        self.console.print(keys, style="dim")
        if not talk.turns:
            return
        message, answer = talk.turns[-1]
        if len(answer) > LAST_SHOWN:
            answer = f"... {answer[-LAST_SHOWN:]}"
        count = len(talk.turns)
        self.console.print(f"going on behind {count:,} message{'s' * (count > 1)}", style="dim")
        self.console.print(f"> {message:.{LAST_SHOWN}}\n{answer}\n", style="dim")

    def next_message(self) -> str | None:
        self.prompting = True
        try:
            # an error inside the prompt must not wait for a key: the terminal may be closed
            message = self.prompt.prompt(pre_run=self._leave, set_exception_handler=False)
        except KeyboardInterrupt:
            if not self.prompt.default_buffer.text:
                self.note("Ctrl-D or /exit ends the chat")
            return ""
        except EOFError:
            return None
        finally:
            self.prompting = False
            self._paste(PASTE_ON)
        check_utf8("the message", message)
        return str(message).rstrip("\r\n")

    def end_input(self) -> bool:
        """An exception would be lost: the prompt's event loop catches those of its callbacks."""
        self.ended = True
        loop = self.prompt.app.loop
        if loop is not None:
            loop.call_soon_threadsafe(self._leave)
        return self.prompting

    def _leave(self) -> None:
        """End the prompt if the input has ended. Runs in the prompt's event loop, also at its
        start."""
        future = self.prompt.app.future
        if self.ended and future is not None and not future.done():
            self.prompt.app.exit(exception=EOFError())

    def show(self, piece: str) -> None:
        self._clear_mark()
        if self.wrapper is None:
            put(piece)
        else:
            self.wrapper.push(piece)

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        self.waiting = self.wrapper is not None and terminal()
        if self.waiting:
            self.console.print("...", style="dim", end="")
            self.stream.flush()
        try:
            yield
        finally:
            self._clear_mark()
            if self.wrapper is not None:
                self.wrapper.finish()
            put("\n")

    def _clear_mark(self) -> None:
        if self.waiting:
            print(CLEAR, end="", file=self.stream, flush=True)
            self.waiting = False

    def note(self, text: str) -> None:
        self.console.print(text, style="dim")

    def show_rows(self, rows: list[tuple[str, str]]) -> None:
        table = Table.grid(padding=(0, 2))
        for name, meaning in rows:
            table.add_row(name, meaning)
        self.console.print(table)

    def _paste(self, sequence: str) -> None:
        if os.environ.get("TERM") != "dumb":
            with contextlib.suppress(OSError):  # the terminal was closed
                print(sequence, end="", file=self.stream, flush=True)

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Keys that are pressed while the model works are not shown, and wait for the next prompt;
        what is pasted then stays one message."""
        undo = hold_keys()
        self._paste(PASTE_ON)

        def close() -> None:
            self._paste(PASTE_OFF)
            undo()

        interrupts.last_words = close
        try:
            yield
        finally:
            interrupts.last_words = None
            close()


def hold_keys() -> Callable[[], None]:
    """Switch off echo and line mode of the terminal at stdin. Returns what switches them on."""
    try:
        import termios
    except ImportError:  # Windows shows no keys by itself
        return lambda: None
    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)
    held: list[Any] = list(before)
    held[3] &= ~(termios.ECHO | termios.ICANON)
    held[3] |= termios.NOFLSH  # Ctrl-C leaves what was typed
    termios.tcsetattr(number, termios.TCSANOW, held)

    def release() -> None:
        # keys for a chat that has ended are no commands for the shell
        with contextlib.suppress(termios.error):  # the terminal was closed
            termios.tcsetattr(number, termios.TCSAFLUSH, before)

    return release


def send(event: KeyPressEvent) -> None:
    """Send the message. Behind a backslash, begin a new line."""
    buffer = event.current_buffer
    if buffer.document.current_line_before_cursor.endswith("\\"):
        buffer.delete_before_cursor()
        buffer.insert_text("\n")
    else:
        buffer.validate_and_handle()


def begin_line(event: KeyPressEvent) -> None:
    event.current_buffer.insert_text("\n")


def key_bindings() -> KeyBindings:
    keys = KeyBindings()
    keys.add("enter")(send)
    keys.add("escape", "enter")(begin_line)
    return keys


def completer() -> NestedCompleter:
    path = PathCompleter(expanduser=True)
    return NestedCompleter(
        {
            f"/{name}": path if behind in ("PATH", "POT") else None
            for name, (behind, _) in COMMANDS.items()
        }
    )
