"""Who uses a reader: one answer, or one thread that reads a text into it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_claim = threading.Lock()
"""Held for a moment, while a reader is taken."""
READING = "a text is being read into this session: wait until it is read, or use a session for each thread"


class Turns:
    """One at a time may use an object."""

    def __init__(self) -> None:
        self.busy = False
        """Whether an answer is on its way."""
        self.thread: int | None = None
        """The thread that reads a text."""

    def check_idle(self) -> None:
        """Raise RuntimeError while an answer is on its way, or while another thread reads."""
        if self.busy:
            raise RuntimeError(
                "an answer is still being streamed from this session: "
                "finish or close it first, or fork the session"
            )
        if self.thread not in (None, threading.get_ident()):
            raise RuntimeError(READING)

    def occupy(self) -> None:
        """Take it for an answer, until `busy` is False again."""
        with _claim:
            self.check_idle()
            self.busy = True

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Inside, this thread reads, and others are refused."""
        with _claim:
            self.check_idle()
            if self.thread is not None:  # from a callback of its own reading
                raise RuntimeError(READING)
            self.thread = threading.get_ident()
        try:
            yield
        finally:
            self.thread = None
