"""The text of a request's body: UTF-8, which is read as it arrives, or a document, which is converted
first."""

from __future__ import annotations

import codecs
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from infinipot.server.bodies import TOO_LARGE
from infinipot.server.conversion import Conversions
from infinipot.server.departure import while_here
from infinipot.server.errors import APIError
from infinipot.text.documents import kind_of, undecided

KINDS = {"message/rfc822": "email", "text/html": "html", "text/plain": None}
"""What a content type says that the first bytes do not."""
BLOCK_BYTES = 1 << 16


@dataclass(frozen=True)
class Documents:
    """How a server converts documents. most_bytes: of a document."""

    conversions: Conversions
    most_bytes: int


async def body_text(request: Request, name: str, documents: Documents) -> AsyncIterator[str]:
    """The text of a body, piece by piece. name: as errors call it.

    Raises APIError for what is neither UTF-8 nor a document that can be converted here, and
    ClientDisconnect if the client leaves.
    """
    blocks = request.stream()
    start = b""
    async for block in blocks:
        start += block
        if not undecided(start):
            break
    try:
        kind = kind_of(start, name)
        if kind in (None, "html", "email"):
            content_type = request.headers.get("content-type", "").partition(";")[0]
            kind = KINDS.get(content_type.strip().lower(), kind)
    except ValueError as problem:
        raise APIError(400, str(problem)) from None
    if kind is None:
        pieces = decode(start, blocks)
    else:
        pieces = convert(request, kind, chain(start, blocks), name, documents)
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
    request: Request, kind: str, blocks: AsyncIterator[bytes], name: str, documents: Documents
) -> AsyncIterator[str]:
    """A document as text. It is received whole, and converted whole in a process of its own, which
    ends when the client leaves."""
    with tempfile.TemporaryFile() as source, tempfile.TemporaryFile() as target:
        size = 0
        async for block in blocks:
            size += len(block)
            if size > documents.most_bytes:
                raise APIError(413, TOO_LARGE.format(documents.most_bytes))
            source.write(block)
        source.flush()
        await while_here(request, documents.conversions.convert(kind, name, source, target))
        target.seek(0)
        text = codecs.getreader("utf-8")(target)
        while piece := text.read(BLOCK_BYTES):
            yield piece


async def whole_text(pieces: AsyncIterator[str], most_bytes: int) -> dict[str, Any]:
    """The reply with a document's text. Raises APIError if that is too long."""
    found = []
    size = 0
    async for piece in pieces:
        found.append(piece)
        size += len(piece)
        if size > most_bytes:
            raise APIError(
                413,
                f"the text of the document has more than {most_bytes:,} characters: "
                "PUT /v1/pots/NAME reads it into a pot",
            )
    return {"text": "".join(found)}
