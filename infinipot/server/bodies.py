"""Requests' bodies on their way in: not too much, not too slowly, and read as JSON beside the event loop."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Message, Receive

MOST_VALUES = 1_000_000
"""Values in a JSON body: each takes many times the memory that it takes in the body."""
MOST_FIELDS = 100
"""Fields of one object in it: every unknown one would be a problem of its own."""
PIECE = 1 << 20
SMALL = 1 << 16
"""Bytes of JSON that are read at once, in the event loop."""
SLOWEST = 100
"""Bytes a second that a client must send on average, after its first patience."""
ESCAPES = re.compile(rb"\\*")

TOO_LARGE = "the body is too large: {:,} bytes are allowed; PUT /v1/pots/NAME takes a text of any length"
TOO_MANY = "the body holds more than {:,} values: send a long text as text, or read it into a pot with PUT /v1/pots/NAME"
TOO_WIDE = "an object in the body has {:,} fields: {} are allowed"
TOO_SLOW = "the body came too slowly: something must come every {:g} seconds, and {} bytes a second on average"

parsing = ThreadPoolExecutor(1, "infinipot-json")
"""One large body is read at a time: reading takes memory and the interpreter."""


def receiving(receive: Receive, patience_s: float, most: int | None, count: Callable[[int], None] = lambda _: None) -> Receive:
    """Receives a body that is not larger than `most` bytes and does not keep the server waiting. count: is told of what has come."""
    taken, waited, ended = 0, 0.0, False

    async def limited() -> Message:
        nonlocal taken, waited, ended
        if ended:
            return await receive()
        started = time.monotonic()
        allowed = min(patience_s, patience_s + taken / SLOWEST - waited)
        try:
            message = await asyncio.wait_for(receive(), max(0.001, allowed))
        except asyncio.TimeoutError:
            ended = True
            raise HTTPException(408, TOO_SLOW.format(patience_s, SLOWEST), {"Connection": "close"}) from None
        waited += time.monotonic() - started
        ended = not message.get("more_body", False)
        size = len(message.get("body", b""))
        taken += size
        if most is not None and taken > most:
            raise HTTPException(413, TOO_LARGE.format(most))
        count(size)
        return message

    return limited


def values(body: bytes) -> int:
    """How many values JSON holds at most: outside of texts each stands behind one of `[{,:`. Piece by piece, so that others may run."""
    count, inside, start = 0, False, 0
    while start < len(body):
        end = min(start + PIECE, len(body))
        run = ESCAPES.match(body, end - 1)
        end = run.end() + 1 if run else end  # what a backslash stands before belongs to it
        parts = body[start:end].replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')
        outside = b"".join(parts[inside::2])
        count += len(outside) - len(outside.translate(None, b"[{,:"))
        inside ^= (len(parts) - 1) % 2 == 1
        start = end
    return count


def narrow(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object, unless it has more fields than any that is wanted."""
    if len(pairs) > MOST_FIELDS:
        raise HTTPException(400, TOO_WIDE.format(len(pairs), MOST_FIELDS))
    return dict(pairs)


def parsed(body: bytes) -> Any:
    """What JSON says. Raises HTTPException for more than would be looked at, JSONDecodeError for what is none."""
    if values(body) > MOST_VALUES:
        raise HTTPException(400, TOO_MANY.format(MOST_VALUES))
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise HTTPException(400, f"the body is not UTF-8: {problem.reason}") from None
    return json.loads(text, object_pairs_hook=narrow)


class Asked(Request):
    """A request whose JSON is read beside the event loop, if it is long."""

    async def json(self) -> Any:
        body = await self.body()
        if len(body) <= SMALL:
            return parsed(body)
        return await asyncio.get_running_loop().run_in_executor(parsing, parsed, body)


class JsonRoute(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handled(request: Request) -> Response:
            return await handle(Asked(request.scope, request.receive))

        return handled
