"""Where a chat takes its messages from, and where it shows answers and notes."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator

from infinipot.cli.console import BadUse, check_utf8, put, say
from infinipot.cli.state import Talk


class Screen:
    """Messages from a pipe, one a line; answers go to stdout, notes to stderr."""

    interactive = False
    ended = False
    """Whether the terminal was closed. Then no more messages are taken."""

    def greet(self, talk: Talk, pot: str) -> None:
        """Say what one talks with. talk: the conversation that goes on. pot: its sizes."""

    def next_message(self) -> str | None:
        """The next message; None at the end of the input."""
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            line = sys.stdin.readline()
            check_utf8("the message", line)
            return line.rstrip("\r\n") if line else None
        except KeyboardInterrupt:
            return None
        except UnicodeDecodeError as problem:
            raise BadUse(f"the message is not UTF-8: {problem}") from None
        finally:
            signal.signal(signal.SIGINT, before)

    def end_input(self) -> bool:
        """Take no more messages; a signal handler calls this. Returns whether `next_message` is
        running and will return by itself."""
        self.ended = True
        return False

    def show(self, piece: str) -> None:
        """Show a piece of an answer."""
        put(piece)

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        """Around an answer."""
        yield
        put("\n")

    def note(self, text: str) -> None:
        say(text)

    def show_rows(self, rows: list[tuple[str, str]]) -> None:
        """Show names and what they mean."""
        for name, meaning in rows:
            say(f"{name}: {meaning}")

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Around the whole chat."""
        yield
