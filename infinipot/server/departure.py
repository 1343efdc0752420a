"""Ends the work for a client that leaves before its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request

T = TypeVar("T")


async def while_here(request: Request, work: Awaitable[T]) -> T:
    """The result of some work for a request whose body has been received. If the client leaves first,
    the work is cancelled. Raises ClientDisconnect."""
    done = asyncio.ensure_future(work)
    left = asyncio.create_task(departure(request))
    either: set[asyncio.Future[Any]] = {done, left}
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if done.done():
            return done.result()
        raise ClientDisconnect
    finally:
        for future in either:
            future.cancel()
            future.add_done_callback(forget)


def forget(future: asyncio.Future[Any]) -> None:
    """Take a result that nobody waits for; asyncio would report its exception as lost."""
    if not future.cancelled():
        future.exception()


async def departure(request: Request) -> None:
    """Return when the client has left."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
