"""The text of a request's body: UTF-8, which is read as it arrives, or a document, which is converted
first."""

from __future__ import annotations

import asyncio
import codecs
import tempfile
from collections.abc import AsyncIterator
from typing import Any

from infinipot.server.bodies import TOO_LARGE
from infinipot.server.errors import APIError
from infinipot.text.documents import document_text, kind_of, undecided
from infinipot.text.files import IN_MEMORY

KINDS = {"message/rfc822": "email", "text/html": "html", "text/plain": None}
"""What a content type says that the first bytes do not."""


async def body_text(
    blocks: AsyncIterator[bytes], content_type: str, name: str, most_bytes: int
) -> AsyncIterator[str]:
    """The text of a body, piece by piece. name: as errors call it. most_bytes: of a document.

    Raises APIError for what is neither UTF-8 nor a document that can be converted here.
    """
    start = b""
    async for block in blocks:
        start += block
        if not undecided(start):
            break
    try:
        kind = kind_of(start, name)
        if kind in (None, "html", "email"):
            kind = KINDS.get(content_type.partition(";")[0].strip().lower(), kind)
    except ValueError as problem:
        raise APIError(400, str(problem)) from None
    if kind is None:
        pieces = decode(start, blocks)
    else:
        pieces = convert(kind, start, blocks, name=name, most_bytes=most_bytes)
    async for piece in pieces:
        yield piece


async def decode(start: bytes, blocks: AsyncIterator[bytes]) -> AsyncIterator[str]:
    """UTF-8 as text, without a byte order mark. Raises APIError for what is not UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    first = True
    try:
        async for block in chain(start, blocks):
            text = decoder.decode(block)
            yield text.removeprefix("\ufeff") if first else text
            first = first and not text
        yield decoder.decode(b"", final=True)
    except UnicodeDecodeError as problem:
        raise APIError(400, f"the text is not UTF-8: {problem.reason}") from None


async def chain(start: bytes, blocks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield start
    async for block in blocks:
        yield block


async def convert(
    kind: str, start: bytes, blocks: AsyncIterator[bytes], *, name: str, most_bytes: int
) -> AsyncIterator[str]:
    """A document as text. It is received whole, and converted in a thread, piece by piece."""
    with tempfile.SpooledTemporaryFile(IN_MEMORY) as copy:
        size = 0
        async for block in chain(start, blocks):
            size += len(block)
            if size > most_bytes:
                raise APIError(413, TOO_LARGE.format(most_bytes))
            copy.write(block)
        copy.seek(0)
        pieces = document_text(kind, copy, name)  # type: ignore[arg-type]
        try:
            while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
                yield piece
        except ValueError as problem:
            raise APIError(400, str(problem)) from None


async def whole_text(pieces: AsyncIterator[str]) -> dict[str, Any]:
    """The reply with a document's text."""
    return {"text": "".join([piece async for piece in pieces])}
