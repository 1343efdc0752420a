"""What a document may hold, so that a small file does not take all memory or time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from xml.parsers import expat

if TYPE_CHECKING:
    from email.message import EmailMessage

MOST_UNPACKED = 1 << 28
"""Bytes of a document, unpacked, with all documents attached to it."""
MOST_MARKUP = 1 << 25
"""Bytes of HTML or XML that are parsed in one piece."""
MOST_TEXT = 1 << 28
"""Characters of a document's text."""
MOST_ENTRIES = 10_000
"""Files in an archive."""
MOST_PAGES = 50_000
MOST_PARTS = 1000
"""Parts of an e-mail, with those of e-mails attached to it."""
MOST_HEADER = 8192
"""Characters of a header of an e-mail that is decoded."""
HTML_DEPTH = 200
XML_DEPTH = 100
"""Elements within elements. The converters call themselves for each."""
MOST_ATTACHED = 5
"""Documents within documents, such as e-mails attached to e-mails."""
INSTEAD = "convert it to text first"


@dataclass
class Budget:
    """What a document, and all documents attached to it, may still unpack to. depth: how many of
    them may lie within each other."""

    unpacked: int = MOST_UNPACKED
    depth: int = MOST_ATTACHED

    def unpack(self, size: int, name: str) -> None:
        """Raise ValueError if so many bytes are too many."""
        self.unpacked -= size
        if self.unpacked < 0:
            raise ValueError(
                f"{name} holds more than {MOST_UNPACKED >> 20} MiB when unpacked: {INSTEAD}"
            )

    @contextmanager
    def within(self) -> Iterator[None]:
        """Read an attached document. Raises ValueError if it lies too deep."""
        if not self.depth:
            raise ValueError(f"it lies within more than {MOST_ATTACHED} documents")
        self.depth -= 1
        try:
            yield
        finally:
            self.depth += 1


def too_many(name: str, what: str, count: int) -> ValueError:
    return ValueError(f"{name} has more than {count:,} {what}: {INSTEAD}")


def too_deep(name: str, what: str, depth: int) -> ValueError:
    return ValueError(f"{name} has {what} within each other, more than {depth} deep: {INSTEAD}")


def limited(pieces: Iterator[str], name: str) -> Iterator[str]:
    """The pieces of a text. Raises ValueError where they get too long."""
    left = MOST_TEXT
    for piece in pieces:
        left -= len(piece)
        if left < 0:
            raise too_many(name, "characters of text", MOST_TEXT)
        yield piece


def check_markup(size: int, name: str) -> None:
    """size: bytes or characters of HTML or XML."""
    if size > MOST_MARKUP:
        raise ValueError(
            f"{name} holds more than {MOST_MARKUP >> 20} MiB of markup in one piece: {INSTEAD}"
        )


def check_xml(data: bytes, name: str) -> None:
    """Raise ValueError for XML that is too large or too deep, or declares entities, which a few
    bytes may repeat without end."""
    check_markup(len(data), name)
    depth = 0

    def begin(tag: str, attributes: Any) -> None:
        nonlocal depth
        depth += 1
        if depth > XML_DEPTH:
            raise too_deep(name, "elements", XML_DEPTH)

    def end(tag: str) -> None:
        nonlocal depth
        depth -= 1

    def declare(*declaration: Any) -> None:
        raise ValueError(f"{name} declares entities of its own, which are not read: {INSTEAD}")

    parser = expat.ParserCreate()
    parser.StartElementHandler = begin
    parser.EndElementHandler = end
    parser.EntityDeclHandler = declare
    parser.Parse(data, True)


def check_mail(message: EmailMessage, name: str) -> None:
    """Raise ValueError for an e-mail with too many parts, or whose parts have headers that take too
    long to decode."""
    for number, part in enumerate(message.walk(), 1):
        if number > MOST_PARTS:
            raise too_many(name, "parts", MOST_PARTS)
        for key, value in part.raw_items():
            if key.lower().startswith("content-") and len(value) > MOST_HEADER:
                raise too_many(name, f"characters in its header {key}", MOST_HEADER)
