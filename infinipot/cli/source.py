"""A text from a file or from stdin, read block by block."""

from __future__ import annotations

import codecs
import os
import sys
from collections.abc import Iterator
from typing import BinaryIO

from infinipot.cli.console import BadUse, interrupts

BLOCK_BYTES = 1 << 14


def open_bytes(name: str) -> BinaryIO:
    if name == "-":
        return sys.stdin.buffer
    return open(name, "rb")


class Source:
    """An iterator over the pieces of a text. Bytes that are not UTF-8 end it, and `problem` says
    where they are."""

    def __init__(self, name: str) -> None:
        self.name = name
        if name == "-":
            self.name = "stdin"
        self.bytes_read = 0
        self.problem: str | None = None
        self.size: int | None = None
        try:
            self.file = open_bytes(name)
            if self.file.seekable():
                self.size = os.fstat(self.file.fileno()).st_size or None
                if not self.file.peek(1):  # type: ignore[attr-defined]
                    raise BadUse(f"{self.name} is empty: there is nothing to read")
        except FileNotFoundError:
            raise BadUse(f"there is no file {name}") from None
        except OSError as problem:
            raise BadUse(f"cannot read {name}: {problem.strerror or problem}") from None

    def __iter__(self) -> Iterator[str]:
        decoder = codecs.getincrementaldecoder("utf-8")()
        first = True
        more = True
        while more:
            # bytes of a character whose end is in the next block
            waiting = len(decoder.getstate()[0])
            with interrupts.waiting():
                block = self.file.read1(BLOCK_BYTES)  # type: ignore[attr-defined]
            more = bool(block)
            try:
                text = decoder.decode(block, final=not more)
            except UnicodeDecodeError as problem:
                place = self.bytes_read - waiting + problem.start
                byte = problem.object[problem.start]
                self.problem = (
                    f"{self.name} is not UTF-8 at byte {place:,} (0x{byte:02x}); convert it first"
                )
                text = problem.object[: problem.start].decode("utf-8")
                more = False
            self.bytes_read += len(block)
            if first:
                first = not text
                text = text.removeprefix("\ufeff")
            yield text

    def share(self, tokens: int) -> float | None:
        """The approximate share of the text that has been read after `tokens` tokens; None if the
        size is unknown. Blocks are fetched ahead of the reading, so bytes fetched are an upper
        bound, and so are four bytes a token."""
        if self.size is None:
            return None
        return min(0.99, min(self.bytes_read, 4 * tokens) / self.size)
