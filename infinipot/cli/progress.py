"""How far a reading or a sweep has come: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import shutil
import sys
import time
from typing import TYPE_CHECKING, Any

from infinipot.cli.console import CLEAR, interrupts, say, terminal

if TYPE_CHECKING:
    from infinipot import Session

EVERY_S = 0.1
EVERY_PLAIN_S = 10.0
"""How often progress is shown, on a terminal and elsewhere."""
PART = " · "
"""Stands between the parts of a line."""


class Progress:
    """Shows lines at intervals: redrawn in place on a terminal, nothing if quiet."""

    def __init__(self, quiet: bool) -> None:
        self.live = terminal() and not quiet
        self.quiet = quiet
        self.every = EVERY_S if self.live else EVERY_PLAIN_S
        self.started = time.monotonic()
        self.last = self.started
        self.drawn = False

    def due(self, now: float) -> bool:
        return not self.quiet and now - self.last >= self.every

    def show(self, line: str, now: float) -> None:
        self.last = now
        if not self.live:
            say(line)
            return
        line = fitted(line, shutil.get_terminal_size().columns - 1)
        print(CLEAR + line, end="", file=sys.stderr, flush=True)
        self.drawn = True

    def bar(self, share: float) -> str:
        """A bar, on a terminal only."""
        if not self.live:
            return ""
        return ("█" * round(20 * share)).ljust(20, "░") + " "

    def close(self) -> None:
        """Clear the line, also where Ctrl-C has left its note there."""
        if self.drawn or (self.live and interrupts.pending):
            print(CLEAR, end="", file=sys.stderr, flush=True)


class ReadingProgress(Progress):
    """The progress of reading a text."""

    def __init__(self, session: Session, source: Any, quiet: bool) -> None:
        super().__init__(quiet)
        self.session = session
        self.source = source
        self.before = session.stats.tokens_read
        self.given_before = session.tokens_given

    def __call__(self) -> None:
        """The reader calls this after every chunk, when the pot is consistent. Ctrl-C stops it
        here."""
        interrupts.check()
        now = time.monotonic()
        if self.due(now):
            self.show(self.line(now), now)

    def line(self, now: float) -> str:
        stats = self.session.stats
        tokens = stats.tokens_read - self.before
        elapsed = now - self.started
        parts = [
            f"{tokens:,} tokens",
            distillations(stats.distillations),
            f"{tokens / elapsed:,.0f} tok/s",
        ]
        share = self.source.share(tokens, self.session.tokens_given - self.given_before)
        if share is None:
            return "reading " + PART.join(parts)
        left = elapsed * (1 - share) / max(share, 1e-9)
        parts.append(f"{int(left // 60)}:{int(left % 60):02} left")
        return f"reading {self.bar(share)}{100 * share:3.0f} %{PART}" + PART.join(parts)


class SweepProgress(Progress):
    """The progress of a sweep over many readings."""

    def __init__(self, task: str, quiet: bool) -> None:
        super().__init__(quiet)
        self.task = task
        self.already: int | None = None
        if self.live:
            self.last = 0.0

    def __call__(self, done: int, total: int, title: str) -> None:
        """The sweep calls this after every reading. Ctrl-C stops it here."""
        interrupts.check()
        if self.already is None:
            self.already = done
            if done and not self.quiet:
                say(f"{self.task}: {done:,} of {total:,} were done before")
        now = time.monotonic()
        if self.due(now) or (self.live and done == total):
            self.show(self.line(done, total, title, now), now)

    def line(self, done: int, total: int, title: str, now: float) -> str:
        parts = [f"{self.task} {self.bar(done / max(total, 1))}{done:,}/{total:,}"]
        fresh = done - (self.already or 0)
        if fresh:
            left = (now - self.started) / fresh * (total - done)
            parts.append(
                f"{int(left // 3600)}:{int(left % 3600 // 60):02}:{int(left % 60):02} left"
            )
        if title:
            parts.append(title)
        return PART.join(parts)


def fitted(line: str, width: int) -> str:
    """A line without those of its middle parts for which there is no room."""
    parts = line.split(PART)
    while len(PART.join(parts)) > width and len(parts) > 2:
        parts.pop(min(2, len(parts) - 2))
    return PART.join(parts)[:width]


def distillations(count: int) -> str:
    return f"{count:,} distillation" + "s" * (count != 1)
