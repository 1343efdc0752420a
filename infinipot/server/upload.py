"""A text on its way from a request into a named pot."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from infinipot.server.errors import APIError
from infinipot.server.events import Done
from infinipot.server.jobs.fill import FillJob
from infinipot.server.requests import config_of
from infinipot.server.schema import FillOptions
from infinipot.server.service import Service
from infinipot.server.stream import EventStream
from infinipot.text.tokens import BLOCK, LONGEST, boundary

AHEAD_TOKENS = 1 << 14
"""Tokens that may wait to be read. A longer text is received no faster than it is read."""
POLL_S = 0.5


class NextPiece:
    """Pieces of a text, of which one is fetched while the piece before it is read: so a client that
    leaves is noticed meanwhile."""

    def __init__(self, pieces: AsyncIterator[str]) -> None:
        self._pieces = pieces
        self._next: asyncio.Task[str | None] | None = None

    async def _fetch(self) -> str | None:
        return await anext(self._pieces, None)

    def begin(self) -> None:
        if self._next is None:
            self._next = asyncio.create_task(self._fetch())

    def check(self) -> None:
        """Raise if the next piece will not come."""
        if self._next is not None and self._next.done():
            self._next.result()

    async def take(self) -> str | None:
        """The next piece; None at the end."""
        self.begin()
        assert self._next is not None
        piece = await self._next
        self._next = None
        return piece

    def close(self) -> None:
        if self._next is not None:
            self._next.cancel()
            self._next.add_done_callback(lambda done: done.cancelled() or done.exception())


class Upload:
    """Tokenizes a text block by block, and feeds the ids to a FillJob."""

    def __init__(self, service: Service, name: str, options: FillOptions) -> None:
        self.service = service
        self.engine = service.engine
        self.options = options
        self.events = EventStream(self.engine.outbox)
        self._has_room = asyncio.Event()
        self._submitted = False
        self._begun = False
        """Whether some of the text has been tokenized."""
        config = config_of(options, service.settings.config)
        self.job = FillJob(config, name, options, self.events.send, self._on_read)

    def _on_read(self) -> None:
        """Called in the engine's thread after every slice."""
        if self.job.waiting_tokens <= AHEAD_TOKENS:
            self.events.call(self._has_room.set)

    @property
    def _failed(self) -> bool:
        """Whether the job has sent an event before its text is complete."""
        return bool(self.events.events)

    async def read(self, pieces: AsyncIterator[str]) -> dict[str, Any]:
        """Read a text that comes in pieces. Returns the pot's description."""
        job = self.job
        await self.engine.ask(lambda: self.service.pots.check(job.name, self.options.replace))
        coming = NextPiece(pieces)
        try:
            await self._receive(coming)
            await self.engine.ask(job.end_text)
            while not isinstance(event := await self.events.next(), Done):
                pass
        except BaseException:
            self.engine.cancel(job)
            raise
        finally:
            coming.close()
        if job.expendable:
            return event.report
        return await when_written(self.service, job.name, event.report)

    async def _receive(self, coming: NextPiece) -> None:
        """Tokenize the text in blocks that end where the ids do not depend on what follows."""
        text = ""
        enough = BLOCK
        while (piece := await coming.take()) is not None:
            text += piece
            if len(text) <= enough:
                continue
            await self._submit()  # a client that sends nothing takes no place
            cut = boundary(text) or (len(text) if len(text) > LONGEST else 0)
            enough = BLOCK if cut else 2 * len(text)
            block = text[:cut]
            text = text[cut:]
            coming.begin()
            await self._feed(block, coming)
            if self._failed:
                break  # the rest need not come
        await self._submit()
        await self._feed(text, coming)

    async def _submit(self) -> None:
        if not self._submitted:
            replace = self.options.replace
            await self.engine.ask(lambda: self.service.pots.fill(self.job, replace))
            self._submitted = True

    async def _feed(self, text: str, coming: NextPiece) -> None:
        """Hand on a block. Returns when there is room for more, or when the job has failed. Raises
        when the client has left."""
        prompts = self.engine.prompts
        try:
            if text and not self._begun:
                self._begun = True
                system = self.options.system
                ids = await prompts.in_thread(prompts.first_ids, text, system)
            else:
                ids = await prompts.in_thread(prompts.ids, text)
        except ValueError as problem:
            raise APIError(400, str(problem), param="system") from None
        await self.engine.ask(lambda: self.job.feed(ids))
        while self.job.waiting_tokens > AHEAD_TOKENS and not self._failed:
            coming.check()
            self._has_room.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._has_room.wait(), POLL_S)


async def when_written(service: Service, name: str, about: dict[str, Any]) -> dict[str, Any]:
    """Wait until a ready pot is written, if it replaces a file or the folder is shared."""
    await asyncio.wrap_future(await service.engine.ask(lambda: service.pots.written(name)))
    return about
