"""Receives the bodies of requests within limits of size and time, and parses them as JSON."""

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

MAX_VALUES = 1_000_000
"""Values in a JSON body. A parsed value takes many times the memory of its text."""
MAX_FIELDS = 100
"""Fields of one JSON object. Each unknown field would be an error of its own."""
PIECE = 1 << 20
"""Bytes that are scanned without a pause for other threads."""
SMALL = 1 << 16
"""Bytes of JSON that are parsed in the event loop."""
MIN_BYTES_PER_S = 100
"""Average speed of a body, after its first `patience_s` seconds."""
ESCAPES = re.compile(rb"\\*")

TOO_LARGE = (
    "the body is too large: {:,} bytes are allowed; PUT /v1/pots/NAME takes a text of any length"
)
TOO_MANY = (
    "the body holds more than {:,} values: "
    "send a long text as text, or read it into a pot with PUT /v1/pots/NAME"
)
TOO_WIDE = "an object in the body has {:,} fields: {} are allowed"
TOO_SLOW = (
    "the body came too slowly: "
    "something must come every {:g} seconds, and {} bytes a second on average"
)

parser_thread = ThreadPoolExecutor(1, "infinipot-json")
"""Parses one large body at a time, which takes memory and blocks the interpreter."""


def limited_receive(
    receive: Receive,
    patience_s: float,
    max_bytes: int | None,
    count: Callable[[int], None] = lambda _: None,
) -> Receive:
    """A `receive` that refuses bodies that are too large or too slow. count: called with the size
    of each piece."""
    received = 0
    waited_s = 0.0
    ended = False

    async def limited() -> Message:
        nonlocal received, waited_s, ended
        if ended:
            return await receive()
        started = time.monotonic()
        allowed = min(patience_s, patience_s + received / MIN_BYTES_PER_S - waited_s)
        try:
            message = await asyncio.wait_for(receive(), max(0.001, allowed))
        except asyncio.TimeoutError:
            ended = True
            raise HTTPException(
                408, TOO_SLOW.format(patience_s, MIN_BYTES_PER_S), {"Connection": "close"}
            ) from None
        waited_s += time.monotonic() - started
        ended = not message.get("more_body", False)
        size = len(message.get("body", b""))
        received += size
        if max_bytes is not None and received > max_bytes:
            raise HTTPException(413, TOO_LARGE.format(max_bytes))
        count(size)
        return message

    return limited


def count_values(body: bytes) -> int:
    """An upper bound of the values in a JSON text, found without parsing: outside of strings, each
    value follows one of `[{,:`."""
    count = 0
    inside = False
    start = 0
    while start < len(body):
        end = min(start + PIECE, len(body))
        run = ESCAPES.match(body, end - 1)
        if run:  # a backslash and the character after it stay together
            end = run.end() + 1
        parts = body[start:end].replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')
        outside = b"".join(parts[inside::2])
        count += len(outside) - len(outside.translate(None, b"[{,:"))
        inside ^= (len(parts) - 1) % 2 == 1
        start = end
    return count


def json_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object. Raises HTTPException if it has too many fields."""
    if len(pairs) > MAX_FIELDS:
        raise HTTPException(400, TOO_WIDE.format(len(pairs), MAX_FIELDS))
    return dict(pairs)


def parse(body: bytes) -> Any:
    """Parse JSON. Raises HTTPException for a body beyond the limits, JSONDecodeError for a body
    that is not JSON."""
    if count_values(body) > MAX_VALUES:
        raise HTTPException(400, TOO_MANY.format(MAX_VALUES))
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise HTTPException(400, f"the body is not UTF-8: {problem.reason}") from None
    return json.loads(text, object_pairs_hook=json_object)


class JsonRequest(Request):
    """A request that parses long JSON outside of the event loop."""

    async def json(self) -> Any:
        body = await self.body()
        if len(body) <= SMALL:
            return parse(body)
        return await asyncio.get_running_loop().run_in_executor(parser_thread, parse, body)


class JsonRoute(APIRoute):
    """A route whose requests are JsonRequests."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_json(request: Request) -> Response:
            return await handle(JsonRequest(request.scope, request.receive))

        return handle_json
