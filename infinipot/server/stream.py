"""From the engine's thread to a handler in the event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from infinipot.server.errors import Refusal
from infinipot.server.events import Done, Event, Likely, Piece

if TYPE_CHECKING:
    from infinipot.server.engine import Engine
    from infinipot.server.jobs.base import Work

T = TypeVar("T")

MOST = 512
"""Pieces of an answer that may wait for its client."""


class Post:
    """What the engine has to tell the event loop, all of a slice at once: to wake the loop for every piece of every answer would cost more
    than to make them. Only the engine's thread touches it."""

    def __init__(self, wake: Callable[[], object] = lambda: None) -> None:
        """wake: has the engine look again, which may sleep while all its answers wait for their clients."""
        self.bag: list[tuple[Mailbox, Event]] = []
        self.wake = wake

    def deliver(self) -> None:
        if self.bag:
            bag, self.bag = self.bag, []

            def empty() -> None:
                for mailbox, event in bag:
                    mailbox.put(event)

            bag[0][0].tell(empty)  # a server has one loop


class Mailbox:
    """One work's events, in order. A client that reads slowly lets them wait here, and its own answer when there are many; nobody else's."""

    def __init__(self, post: Post) -> None:
        self.post, self.loop = post, asyncio.get_running_loop()
        self.events: deque[Event] = deque()
        self._awaited: asyncio.Future[None] | None = None

    def crowded(self) -> bool:
        """Whether the answer should wait until some of it has been fetched. Called by the engine's thread."""
        return len(self.events) >= MOST

    def tell(self, act: Callable[[], object]) -> None:
        """Have something done in the event loop."""
        with contextlib.suppress(RuntimeError):  # the loop has ended: nobody is there to hear it
            self.loop.call_soon_threadsafe(act)

    def send(self, event: Event) -> None:
        """Called by the engine's thread, which delivers it with the rest of its slice."""
        self.post.bag.append((self, event))

    def put(self, event: Event) -> None:
        """Called in the event loop."""
        self.events.append(event)
        if self._awaited is not None and not self._awaited.done():
            self._awaited.set_result(None)

    async def next(self, timeout_s: float | None = None) -> Event | None:
        """The next event; None if none came in time. Raises Refusal if the work failed."""
        if not self.events:
            self._awaited = self.loop.create_future()
            await asyncio.wait({self._awaited}, timeout=timeout_s)  # wait_for would begin a task for every token
        if not self.events:
            return None
        event = self.events.popleft()
        if len(self.events) == MOST - 1:
            self.post.wake()
        if isinstance(event, Refusal):
            raise event
        return event

    async def whole(self) -> tuple[str, list[Likely], Done]:
        """The answer when it is complete: text, probabilities, end."""
        text, likely = [], []
        while not isinstance(event := await self.next(), Done):
            assert isinstance(event, Piece)
            text.append(event.text)
            likely += event.likely
        return "".join(text), likely, event


async def ask(engine: Engine, act: Callable[[], T]) -> T:
    """Have something done by the engine's thread, and wait for it."""
    return await asyncio.wrap_future(engine.call(act))


@contextlib.asynccontextmanager
async def running(engine: Engine, works: list[Work]):  # type: ignore[no-untyped-def]
    """Inside, the works are in the engine's hands; whoever leaves early, leaves nothing behind."""
    try:
        engine.check()  # a thread that has ended says nothing
        await ask(engine, lambda: engine.submit(*works))
        yield
    finally:
        for work in works:
            engine.call(lambda work=work: engine.cancel(work))  # type: ignore[misc]
