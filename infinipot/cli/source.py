"""The texts of a command line, from files and from stdin, read block by block."""

from __future__ import annotations

import os
import select as system
import stat
import sys
from collections.abc import Iterator
from typing import Any, BinaryIO, cast

from infinipot.cli.console import BadUse, interrupts, say
from infinipot.text import files
from infinipot.text.documents import kind_of

PATIENCE_S = 2.0
"""How long a pipe at stdin may say nothing before the user is told what the command waits for."""


class Source:
    """An iterator over the pieces of one or more texts, in order. Several texts stand behind marks
    with their names.

    names: files, folders and patterns; `-` is stdin. What cannot be read ends the text, and
    `problem` says why. Raises BadUse for what is found out before the reading.
    """

    def __init__(self, *names: str) -> None:
        self.problem: str | None = None
        self.size: int | None = 0
        self.done_bytes = 0
        self.text: files.FileText | None = None
        self.pipes: dict[str, BinaryIO] = {}
        try:
            selection = files.select(names)
            self.names = selection.files
            for note in selection.notes:
                say(note)
            for name in self.names:
                self._check(name)
        except (FileNotFoundError, ValueError) as problem:
            raise BadUse(str(problem)) from None

    @property
    def name(self) -> str:
        return ", ".join(shown(name) for name in self.names)

    @property
    def bytes_read(self) -> int:
        if self.text is None:
            return self.done_bytes
        return self.done_bytes + self.text.bytes_read

    def _check(self, name: str) -> None:
        """Look at the start of a file, and note its size. A pipe is left alone."""
        file = open_bytes(name)
        if not file.seekable():
            self.pipes[name] = file
            self.size = None
            return
        place = file.tell()
        start = file.read(files.BLOCK_BYTES)
        file.seek(place)
        files.check_start(start, shown(name))
        size = os.fstat(file.fileno()).st_size
        if self.size is not None and kind_of(start, shown(name)) is None and size:
            self.size += size
        else:
            self.size = None
        if name != "-":
            file.close()

    def __iter__(self) -> Iterator[str]:
        for number, name in enumerate(self.names):
            if len(self.names) > 1:
                yield files.mark(shown(name), first=number == 0)
            file = self.pipes.get(name) or open_bytes(name)
            self.text = files.FileText(file, shown(name), interrupts.waiting)
            try:
                yield from self.text
            except ValueError as problem:
                self.problem = str(problem)
                return
            self.done_bytes = self.bytes_read
            self.text = None
            if name != "-":
                file.close()

    def share(self, tokens: int, given: int) -> float | None:
        """The share of the text that has been read after `tokens` of its tokens; None if the size is
        unknown. given: how many tokens the bytes fetched so far are."""
        if self.size is None or not given:
            return None
        return min(0.99, self.bytes_read / self.size * tokens / given)


def shown(name: str) -> str:
    if name == "-":
        return "stdin"
    return name


def open_bytes(name: str) -> BinaryIO:
    if name == "-":
        return sys.stdin.buffer
    try:
        return open(name, "rb")
    except OSError as problem:
        raise BadUse(f"cannot read {name}: {problem.strerror or problem}") from None


def source_of(names: list[str] | None) -> Source | None:
    """The texts of `-f`, and behind them what is piped in; None if there is neither."""
    given = list(names or ())
    if "-" not in given and piped():
        given.append("-")
    if not given:
        return None
    return Source(*given)


def need_source(names: list[str] | None) -> Source:
    source = source_of(names)
    if source is None:
        raise BadUse("nothing to read: give a text with -f FILE, or pipe one in")
    return source


def piped() -> bool:
    """Whether a text comes at stdin: a pipe, a socket or a file that holds at least a byte. Waits
    for this byte."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):  # closed, or replaced
        return False
    if not (stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)):
        return False
    with interrupts.leaving():
        ready, _, _ = system.select([sys.stdin], [], [], PATIENCE_S)
        if not ready:
            say("waiting for the text at stdin, which is a pipe (< /dev/null leaves it out)")
        return bool(cast(Any, sys.stdin.buffer).peek(1))
