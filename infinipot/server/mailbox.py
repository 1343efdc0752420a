"""From the engine's thread to a handler in the event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from infinipot.server.events import Done, Event, Likely, Piece
from infinipot.server.refusal import Refusal

if TYPE_CHECKING:
    from infinipot.server.engine import Engine
    from infinipot.server.work import Work

T = TypeVar("T")


class Mailbox:
    """One work's events, in order. A client that reads slowly lets them wait here, never the engine."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.events: asyncio.Queue[Event] = asyncio.Queue()

    def tell(self, act: Callable[[], object]) -> None:
        """Have something done in the event loop."""
        with contextlib.suppress(RuntimeError):  # the loop has ended: nobody is there to hear it
            self.loop.call_soon_threadsafe(act)

    def send(self, event: Event) -> None:
        self.tell(lambda: self.events.put_nowait(event))

    async def next(self, timeout_s: float | None = None) -> Event | None:
        """The next event; None if none came in time. Raises Refusal if the work failed."""
        try:
            event = await asyncio.wait_for(self.events.get(), timeout_s)
        except asyncio.TimeoutError:
            return None
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
        for work in works:
            await ask(engine, lambda work=work: engine.submit(work))  # type: ignore[misc]
        yield
    finally:
        for work in works:
            engine.call(lambda work=work: engine.cancel(work))  # type: ignore[misc]
