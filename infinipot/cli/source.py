"""A text from a file or from stdin, read in blocks and never held whole."""

from __future__ import annotations

import codecs
import os
import sys
from collections.abc import Iterator
from typing import BinaryIO

from infinipot.cli.console import BadUse, interrupts

BLOCK_BYTES = 1 << 14


class Source:
    """Iterating gives the text in pieces. Where it stops being UTF-8 the pieces end too, and
    `problem` says where that was."""

    def __init__(self, name: str) -> None:
        if name == "-":
            self.name = "stdin"
        else:
            self.name = name
        self.bytes_read = 0
        self.problem: str | None = None
        self.size: int | None = None
        try:
            self.file: BinaryIO = sys.stdin.buffer if name == "-" else open(name, "rb")  # noqa: SIM115
            if self.file.seekable():
                self.size = os.fstat(self.file.fileno()).st_size or None
                if not self.file.peek(1):  # type: ignore[union-attr]
                    raise BadUse(f"{self.name} is empty: there is nothing to read")
        except FileNotFoundError:
            raise BadUse(f"there is no file {name}") from None
        except OSError as problem:
            raise BadUse(f"cannot read {name}: {problem.strerror or problem}") from None

    def __iter__(self) -> Iterator[str]:
        decoder = codecs.getincrementaldecoder("utf-8")()
        more = True
        while more:
            waiting = len(decoder.getstate()[0])  # the beginning of a character
            with interrupts.waiting():
                block = self.file.read1(BLOCK_BYTES)  # type: ignore[attr-defined]
            more = bool(block)
            first = self.bytes_read == 0
            try:
                text = decoder.decode(block, final=not more)
            except UnicodeDecodeError as problem:
                place = self.bytes_read - waiting + problem.start
                self.problem = f"{self.name} is not UTF-8 at byte {place:,} (0x{problem.object[problem.start]:02x}); convert it first"
                text = problem.object[: problem.start].decode("utf-8")
                more = False
            self.bytes_read += len(block)
            yield text.removeprefix("\ufeff") if first else text

    def share(self, tokens: int) -> float | None:
        """About how much has been read after so many tokens; None if the size is not known. Blocks
        are fetched ahead of the reading, so four bytes a token are assumed where that says less."""
        if self.size is None:
            return None
        return min(0.99, min(self.bytes_read, 4 * tokens) / self.size)
