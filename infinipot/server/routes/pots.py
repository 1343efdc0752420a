"""Named pots over HTTP: a text is read once and asked often."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
from collections import deque
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.responses import StreamingResponse
from fastapi.security import HTTPBearer

from infinipot.server import schema
from infinipot.server.bodies import JsonRoute
from infinipot.server.errors import Refusal
from infinipot.server.events import Done
from infinipot.server.jobs.fill import Filling
from infinipot.server.responses import DONE, sse
from infinipot.server.schema import NAME, REFUSALS, STREAMS, NewPot
from infinipot.server.service import Served, Serving, config_of
from infinipot.server.stream import Mailbox, ask
from infinipot.text.tokens import BLOCK, LONGEST, boundary

AHEAD_TOKENS = 1 << 14
"""A stream is received no further than so many tokens ahead of the reading."""
TEXT_BODY = {"requestBody": {"required": True, "content": {"text/plain": {"schema": {"type": "string"}}}}}

router = APIRouter(prefix="/v1/pots", route_class=JsonRoute, responses=REFUSALS, dependencies=[Depends(HTTPBearer(auto_error=False))])
PotName = Annotated[str, Path(pattern=NAME)]


class Receiving:
    """A text on its way from a request to a filling."""

    def __init__(self, serving: Serving, name: str, given: schema.FillOptions) -> None:
        self.serving, self.engine, self.replace = serving, serving.engine, given.replace
        self.mailbox = Mailbox(self.engine.post)
        self.roomy, self.begun, self.system = asyncio.Event(), False, given.system
        config = config_of(given, serving.settings.config)
        self.filling = Filling(config, name, given, self.mailbox.send, self._read)

    def _read(self) -> None:
        """Called in the engine's thread after every slice."""
        if self.filling.waiting_tokens <= AHEAD_TOKENS:
            self.mailbox.tell(self.roomy.set)

    async def feed(self, text: str) -> None:
        """Hand on a piece of text; returns when there is room for more, or when the reading has failed."""
        words, first = self.engine.words, bool(text) and not self.begun
        self.begun = self.begun or first
        try:
            ids = await words.aside(words.first, text, self.system) if first else await words.aside(words.ids, text)
        except ValueError as problem:
            raise Refusal(400, str(problem), param="system") from None
        await ask(self.engine, lambda: self.filling.feed(ids))
        while self.filling.waiting_tokens > AHEAD_TOKENS and not self.mailbox.events:
            self.roomy.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.roomy.wait(), 0.5)

    async def all(self, pieces: AsyncIterator[str]) -> dict[str, Any]:
        """Read a text that comes in pieces. Returns the pot's description."""
        filling, engine, pots = self.filling, self.engine, self.serving.pots
        await ask(engine, lambda: pots.check(filling.name, self.replace))
        try:
            held, enough, seated = "", BLOCK, False
            async for piece in pieces:
                held += piece
                if len(held) > enough:
                    if not seated:  # whoever sends nothing takes no place
                        await ask(engine, lambda: pots.fill(filling, self.replace))
                        seated = True
                    cut = boundary(held) or (len(held) if len(held) > LONGEST else 0)
                    enough = BLOCK if cut else 2 * len(held)
                    ready, held = held[:cut], held[cut:]
                    await self.feed(ready)
                    if self.mailbox.events:
                        break  # it failed: the rest need not come
            if not seated:
                await ask(engine, lambda: pots.fill(filling, self.replace))
            await self.feed(held)
            await ask(engine, lambda: setattr(filling, "complete", True))
            while not isinstance(event := await self.mailbox.next(), Done):
                pass
            return event.report if filling.expendable else await announced(self.serving, filling.name, event.report)
        finally:
            engine.call(lambda: engine.cancel(filling))


async def announced(serving: Serving, name: str, about: dict[str, Any]) -> dict[str, Any]:
    """A pot that is ready. Where it replaces a file, or others share the folder, it is written before that is said."""
    await asyncio.wrap_future(await ask(serving.engine, lambda: serving.pots.settled(name)))
    return about


@router.post("", status_code=201)
async def create(body: NewPot, serving: Served) -> dict[str, Any]:
    """Read a text into a named pot, or name a conversation's pot."""
    name, session, replace = body.name, body.session, body.replace
    if (body.text is None) == (session is None):
        raise Refusal(400, "give either a text, or the session of a conversation", param="text")
    if session is not None:
        salt = body.cache_salt or ""
        return await announced(serving, name, await ask(serving.engine, lambda: serving.pots.name(name, session, replace, salt)))

    async def whole() -> AsyncIterator[str]:
        text = body.text or ""
        for start in range(0, len(text), BLOCK):
            yield text[start : start + BLOCK]

    return await Receiving(serving, name, body).all(whole())


@router.put("/{name}", status_code=201, openapi_extra=TEXT_BODY)
async def stream(name: PotName, request: Request, serving: Served, given: Annotated[schema.StreamedFill, Query()]) -> dict[str, Any]:
    """Stream a text of any length, UTF-8, into a named pot: it is received as fast as it is read, and never held whole."""

    async def pieces() -> AsyncIterator[str]:
        decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            first = True
            async for block in request.stream():
                text = decoder.decode(block)
                yield text.removeprefix("\ufeff") if first else text
                first = first and not text
            yield decoder.decode(b"", final=True)
        except UnicodeDecodeError as problem:
            raise Refusal(400, f"the text is not UTF-8: {problem.reason}") from None

    return await Receiving(serving, name, given).all(pieces())


@router.get("")
async def listed(serving: Served) -> dict[str, Any]:
    """All named pots, in memory and on disk."""
    return await ask(serving.engine, serving.pots.list)


@router.get("/{name}")
async def about(name: PotName, serving: Served, places: bool = False) -> dict[str, Any]:
    """What a pot has read and holds. places: which places of the text it keeps, and in which share of its layers and heads."""
    return await ask(serving.engine, lambda: serving.pots.about(name, places))


@router.get("/{name}/events", responses=STREAMS)
async def events(name: PotName, serving: Served) -> StreamingResponse:
    """Watch a pot being filled: server-sent events with what it keeps, until it is ready."""
    loop, newest, news = asyncio.get_running_loop(), deque[dict[str, Any]](maxlen=1), asyncio.Event()

    def tell(event: dict[str, Any]) -> None:
        newest.append(event)  # whoever reads slowly sees fewer states, not old ones
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(news.set)

    first = await ask(serving.engine, lambda: serving.pots.watch(name, tell))

    async def told() -> AsyncIterator[str]:
        event = first
        try:
            while True:
                yield sse(event)
                if event["state"] not in ("reading", "waiting"):
                    break
                await news.wait()
                news.clear()
                event = newest[-1]
            yield DONE
        finally:
            serving.engine.call(lambda: serving.pots.unwatch(name, tell))

    return StreamingResponse(told(), media_type="text/event-stream", headers={"Cache-Control": "no-cache"})


@router.post("/{name}/save")
async def save(name: PotName, serving: Served) -> dict[str, Any]:
    """Write a pot to the server's folder."""
    return await asyncio.wrap_future(await ask(serving.engine, lambda: serving.pots.save(name)))


@router.post("/{name}/restore")
async def restore(name: PotName, serving: Served) -> dict[str, Any]:
    """Go back to the pot that was saved under this name."""
    return await asyncio.wrap_future(await ask(serving.engine, lambda: serving.pots.restore(name)))


@router.delete("/{name}")
async def delete(name: PotName, serving: Served) -> dict[str, Any]:
    """Forget a pot, and delete its file."""
    return await asyncio.wrap_future(await ask(serving.engine, lambda: serving.pots.delete(name)))
