"""The routes of named pots: a text is read once and asked often."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.responses import StreamingResponse
from fastapi.security import HTTPBearer

from infinipot.server.bodies import JsonRoute
from infinipot.server.documents import body_text
from infinipot.server.error_fields import ERRORS, STREAMS
from infinipot.server.errors import APIError
from infinipot.server.fields import NAME
from infinipot.server.responses import DONE, STREAM_HEADERS, sse
from infinipot.server.schema import NewPot, StreamedFill
from infinipot.server.service import ServiceDep
from infinipot.server.upload import Upload, when_written
from infinipot.text.tokens import BLOCK

TEXT_BODY = {
    "requestBody": {"required": True, "content": {"text/plain": {"schema": {"type": "string"}}}}
}

router = APIRouter(
    prefix="/v1/pots",
    route_class=JsonRoute,
    responses=ERRORS,
    dependencies=[Depends(HTTPBearer(auto_error=False))],
)
PotName = Annotated[str, Path(pattern=NAME)]


@router.post("", status_code=201)
async def create(body: NewPot, service: ServiceDep) -> dict[str, Any]:
    """Read a text into a named pot, or name a conversation's pot."""
    name = body.name
    session = body.session
    text = body.text
    if (text is None) == (session is None):
        raise APIError(400, "give either a text, or the session of a conversation", param="text")
    if session is not None:
        salt = body.cache_salt or ""
        about = await service.engine.ask(
            lambda: service.pots.name(name, session, body.replace, salt)
        )
        return await when_written(service, name, about)

    async def pieces() -> AsyncIterator[str]:
        whole = text or ""
        for start in range(0, len(whole), BLOCK):
            yield whole[start : start + BLOCK]

    return await Upload(service, name, body).read(pieces())


@router.put("/{name}", status_code=201, openapi_extra=TEXT_BODY)
async def stream(
    name: PotName,
    request: Request,
    service: ServiceDep,
    options: Annotated[StreamedFill, Query()],
) -> dict[str, Any]:
    """Stream a text of any length, UTF-8, into a named pot. It is received as fast as it is read,
    and never held whole. A document (PDF, HTML, DOCX, EPUB, e-mail) is converted first."""
    text = body_text(request, "the text", service.documents)
    return await Upload(service, name, options).read(text)


@router.get("")
async def listed(service: ServiceDep) -> dict[str, Any]:
    """All named pots, in memory and on disk."""
    return await service.engine.ask(service.pots.list)


@router.get("/{name}")
async def about(name: PotName, service: ServiceDep, places: bool = False) -> dict[str, Any]:
    """What a pot has read and holds. places: which positions of the text it keeps, and the share
    of its layers and heads with each."""
    return await service.engine.ask(lambda: service.pots.about(name, places))


@router.get("/{name}/events", responses=STREAMS)
async def events(name: PotName, service: ServiceDep) -> StreamingResponse:
    """Watch a pot being filled: server-sent events with what it keeps, until it is ready."""
    loop = asyncio.get_running_loop()
    newest = deque[dict[str, Any]](maxlen=1)
    changed = asyncio.Event()

    def watcher(state: dict[str, Any]) -> None:
        newest.append(state)  # a slow client gets fewer states, not older ones
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(changed.set)

    first = await service.engine.ask(lambda: service.pots.watch(name, watcher))

    async def states() -> AsyncIterator[str]:
        state = first
        try:
            while True:
                yield sse(state)
                if state["state"] not in ("reading", "waiting"):
                    break
                await changed.wait()
                changed.clear()
                state = newest[-1]
            yield DONE
        finally:
            service.engine.call(lambda: service.pots.unwatch(name, watcher))

    return StreamingResponse(states(), media_type="text/event-stream", headers=STREAM_HEADERS)


@router.post("/{name}/save")
async def save(name: PotName, service: ServiceDep) -> dict[str, Any]:
    """Write a pot to the server's folder."""
    return await asyncio.wrap_future(await service.engine.ask(lambda: service.pots.save(name)))


@router.post("/{name}/restore")
async def restore(name: PotName, service: ServiceDep) -> dict[str, Any]:
    """Go back to the saved pot of this name."""
    return await asyncio.wrap_future(await service.engine.ask(lambda: service.pots.restore(name)))


@router.delete("/{name}")
async def delete(name: PotName, service: ServiceDep) -> dict[str, Any]:
    """Delete a pot and its file."""
    return await asyncio.wrap_future(await service.engine.ask(lambda: service.pots.delete(name)))
