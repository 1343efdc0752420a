"""The terminal: messages, answers, and what Ctrl-C does."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from infinipot.checks import ModelWarning

CLEAR = "\r\x1b[K"


class BadUse(Exception):
    """The command line, or a file it names, cannot be used (exit code 2)."""


class Failure(Exception):
    """The command failed while it ran (exit code 1)."""


class Stopped(Exception):
    """Ctrl-C, at a moment when the pot is consistent (exit code 130)."""


class ClosedOutput(Exception):
    """Nobody reads stdout any more."""


def terminal() -> bool:
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def say(line: str) -> None:
    """Print a message to stderr, as one line."""
    print(f"infinipot: {line}", file=sys.stderr, flush=True)


def check_utf8(what: str, text: str | None) -> None:
    """Refuse a text whose bytes are not UTF-8. Python keeps such bytes as halves of characters."""
    try:
        (text or "").encode()
    except UnicodeEncodeError as problem:
        code = ord(problem.object[problem.start])
        place = len(problem.object[: problem.start].encode())
        byte = f" (0x{code & 0xFF:02x})" if 0xDC80 <= code <= 0xDCFF else ""
        raise BadUse(f"{what} is not UTF-8 at byte {place:,}{byte}; convert it first") from None


def show_warning(message: Warning | str, *where: object) -> None:
    """Print what `warnings` would print, as one line without the place in the code."""
    if terminal():
        print(CLEAR, end="", file=sys.stderr, flush=True)
    say(str(message))


def silence(quiet: bool) -> None:
    """Hide warnings and bars of other libraries, and show ours about the model. A download from the
    Hub may show its bar on a terminal."""
    import warnings

    import transformers
    from huggingface_hub.utils import logging as hub_logging
    from huggingface_hub.utils.tqdm import enable_progress_bars

    warnings.simplefilter("ignore")
    if not quiet:
        warnings.filterwarnings("default", category=ModelWarning)
        warnings.showwarning = show_warning  # type: ignore[assignment]
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    hub_logging.set_verbosity_error()
    if sys.stderr.isatty() and not quiet:
        enable_progress_bars()


def put(text: str) -> None:
    """Print a piece of the answer to stdout, at once."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise ClosedOutput from None


class Interrupts:
    """What Ctrl-C does. It raises KeyboardInterrupt, except in three contexts.

    leaving: it ends the program at once, because an import in progress could swallow an exception.
    gently: the first one only sets `pending`, so that the work can stop at a safe point.
    waiting: while the program waits for input, it raises Stopped.
    """

    def __init__(self) -> None:
        self.pending = False
        self._leave = False
        self._gentle = False
        self._waiting = False
        self._note = ""
        self._before: Any = None
        self.last_words: Callable[[], None] | None = None
        """Called before the program ends at once."""

    def __enter__(self) -> None:
        self.pending = False
        self._before = signal.signal(signal.SIGINT, self._handle)

    def __exit__(self, *problem: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self._gentle or self.pending:
            self._clear()
            os.write(2, b"infinipot: interrupted\n")
            if self._leave:
                if self.last_words is not None:
                    self.last_words()
                os._exit(130)
            raise KeyboardInterrupt
        self.pending = True
        if self._waiting:
            raise Stopped("stopped")
        if self._note and terminal():
            os.write(2, f"{CLEAR}{self._note}".encode())

    def _clear(self) -> None:
        if terminal():
            os.write(2, CLEAR.encode())

    @contextmanager
    def leaving(self) -> Iterator[None]:
        self._leave = True
        try:
            yield
        finally:
            self._leave = False

    @contextmanager
    def gently(self, note: str = "") -> Iterator[None]:
        """note: shown on a terminal after the first Ctrl-C, until the work stops."""
        self.pending = False
        self._gentle = True
        self._note = note
        try:
            yield
        finally:
            self._gentle = False

    @contextmanager
    def waiting(self) -> Iterator[None]:
        self._waiting = True
        try:
            yield
        finally:
            self._waiting = False

    def check(self) -> None:
        if self.pending:
            raise Stopped("stopped")


interrupts = Interrupts()


class Traces:
    """Whether an error shows where it comes from (--debug)."""

    wanted = False


traces = Traces()


@contextmanager
def doing(what: str, quiet: bool) -> Iterator[None]:
    """Show what the program does, and clear it afterwards. Ctrl-C leaves at once, because there is
    nothing to lose yet."""
    shown = terminal() and not quiet
    if shown:
        print(f"{what} ...", end="", file=sys.stderr, flush=True)
    try:
        with interrupts.leaving():
            yield
    finally:
        if shown:
            print(CLEAR, end="", file=sys.stderr, flush=True)
