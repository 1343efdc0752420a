"""The terminal: messages, progress, what Ctrl-C does. Everything here goes to stderr, except
`Output`."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from infinipot import Session

EVERY_S = 0.1
EVERY_PLAIN_S = 10.0
"""How often progress is shown, on a terminal and elsewhere."""
CLEAR = "\r\x1b[K"


class BadUse(Exception):
    """What was given cannot be used (exit code 2)."""


class Failure(Exception):
    """Running it failed (exit code 1)."""


class Stopped(Exception):
    """Ctrl-C, taken at a moment when the pot is whole (exit code 130)."""


class ClosedOutput(Exception):
    """Nobody reads stdout any more."""


def terminal() -> bool:
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def say(line: str) -> None:
    """A line for the user that is no part of the answer."""
    print(f"infinipot: {line}", file=sys.stderr, flush=True)


def put(text: str) -> None:
    """A piece of the answer to stdout, at once."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise ClosedOutput from None


class Interrupts:
    """Ctrl-C raises KeyboardInterrupt, as usual, except in three places: `leaving()` it ends the
    program at once, as an exception could be swallowed by an import in progress; `gently()` the
    first one only sets `asked`, for the work in hand to come to a point where it can stop;
    `waiting()`, when nothing is in hand, it raises Stopped."""

    def __init__(self) -> None:
        self.asked = self._leave = self._gentle = self._waiting = False
        self._note = ""
        self._before: Any = None

    def __enter__(self) -> None:
        self.asked = False
        self._before = signal.signal(signal.SIGINT, self._handle)

    def __exit__(self, *problem: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self._gentle or self.asked:
            os.write(2, (CLEAR if terminal() else "").encode() + b"infinipot: interrupted\n")
            if self._leave:
                os._exit(130)
            raise KeyboardInterrupt
        self.asked = True
        if self._waiting:
            raise Stopped("stopped")
        if self._note and terminal():
            os.write(2, f"{CLEAR}{self._note}".encode())

    @contextmanager
    def leaving(self) -> Iterator[None]:
        self._leave = True
        try:
            yield
        finally:
            self._leave = False

    @contextmanager
    def gently(self, note: str = "") -> Iterator[None]:
        """note: shown on a terminal when Ctrl-C is pressed and has not worked yet."""
        self.asked = False
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
        if self.asked:
            raise Stopped("stopped")


interrupts = Interrupts()


class Progress:
    """How far the reading has come: a bar that is redrawn on a terminal, elsewhere a line now and
    then, nothing if quiet."""

    def __init__(self, session: Session, source: Any, quiet: bool) -> None:
        self.session = session
        self.source = source
        self.before = session.stats.tokens_read
        self.started = self.shown = time.monotonic()
        self.live = terminal() and not quiet
        if quiet:
            self.every = float("inf")
        elif self.live:
            self.every = EVERY_S
        else:
            self.every = EVERY_PLAIN_S
        self.drawn = False

    def __call__(self) -> None:
        """Called after every chunk, when the pot is whole: here Ctrl-C is heard."""
        interrupts.check()
        now = time.monotonic()
        if now - self.shown < self.every:
            return
        self.shown = now
        if self.live:
            line = self.line(now)[: shutil.get_terminal_size().columns - 1]
            print(CLEAR + line, end="", file=sys.stderr, flush=True)
            self.drawn = True
        else:
            say(self.line(now))

    def line(self, now: float) -> str:
        stats = self.session.stats
        tokens = stats.tokens_read - self.before
        parts = [
            f"{tokens:,} tokens",
            distillations(stats.distillations),
            f"{tokens / (now - self.started):,.0f} tok/s",
        ]
        share = self.source.share(tokens)
        if share is None:
            return "reading " + " · ".join(parts)
        left = (now - self.started) * (1 - share) / max(share, 1e-9)
        parts.append(f"{int(left // 60)}:{int(left % 60):02} left")
        if self.live:
            bar = ("█" * round(20 * share)).ljust(20, "░") + " "
        else:
            bar = ""
        return f"reading {bar}{100 * share:3.0f} % · " + " · ".join(parts)

    def close(self) -> None:
        if self.drawn or (self.live and interrupts.asked):
            print(CLEAR, end="", file=sys.stderr, flush=True)


@contextmanager
def doing(what: str, quiet: bool) -> Iterator[None]:
    """Shows what is being waited for, and takes it away afterwards. Ctrl-C leaves: there is nothing
    to lose yet."""
    shown = terminal() and not quiet
    if shown:
        print(f"{what} ...", end="", file=sys.stderr, flush=True)
    try:
        with interrupts.leaving():
            yield
    finally:
        if shown:
            print(CLEAR, end="", file=sys.stderr, flush=True)


def distillations(count: int) -> str:
    return f"{count:,} distillation" + "s" * (count != 1)


def statistics(session: Session) -> str:
    """What was read and what it takes, in one line."""
    stats = session.stats
    size = session.pot.size
    if size is None:
        pot = "a pot without a bound"
    else:
        pot = f"a pot of {size:,}"
    if stats.tokens_skipped:
        unread = f", {stats.tokens_skipped:,} never read"
    else:
        unread = ""
    return (
        f"{stats.tokens_read:,} tokens{unread} in {pot} (peak {stats.peak_entries:,}, {distillations(stats.distillations)}) · "
        f"{stats.pot_bytes / 1e6:,.1f} MB, a full cache {stats.full_cache_bytes / 1e6:,.1f} MB"
    )
