"""Events from the engine's thread to handlers in the event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from infinipot.server.errors import APIError
from infinipot.server.events import Done, Event, Likely, Piece
from infinipot.text.calls.base import Part, joined
from infinipot.text.reply import Reply

MAX_EVENTS = 512
"""Events that may wait for a client before its answer pauses."""


@dataclass(frozen=True)
class Whole:
    """A complete answer: what it holds, its probabilities, its end."""

    reply: Reply
    likely: list[Likely]
    done: Done


class Outbox:
    """The events of one slice, delivered together: one wake-up of the event loop for each event
    would cost more than the events themselves. Only the engine's thread uses it."""

    def __init__(self, wake: Callable[[], object] = lambda: None) -> None:
        """wake: wakes the engine, which sleeps while all answers wait for their clients."""
        self.wake = wake
        self._events: list[tuple[EventStream, Event]] = []

    def add(self, stream: EventStream, event: Event) -> None:
        self._events.append((stream, event))

    def deliver(self) -> None:
        if not self._events:
            return
        events = self._events
        self._events = []

        def put() -> None:
            for stream, event in events:
                stream.put(event)

        events[0][0].call(put)  # a server has one event loop


class EventStream:
    """The events of one job, in order. A slow client delays only its own answer."""

    def __init__(self, outbox: Outbox) -> None:
        self.outbox = outbox
        self.loop = asyncio.get_running_loop()
        self.events: deque[Event] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def is_full(self) -> bool:
        """Whether the answer must pause. Called in the engine's thread."""
        return len(self.events) >= MAX_EVENTS

    def call(self, act: Callable[[], object]) -> None:
        """Run a function in the event loop."""
        with contextlib.suppress(RuntimeError):  # the loop has ended, so nobody waits
            self.loop.call_soon_threadsafe(act)

    def send(self, event: Event) -> None:
        """Add an event to the slice's. Called in the engine's thread."""
        self.outbox.add(self, event)

    def put(self, event: Event) -> None:
        """Append an event. Called in the event loop."""
        self.events.append(event)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def next(self, timeout_s: float | None = None) -> Event | None:
        """The next event; None after the timeout. Raises APIError if the job failed."""
        if not self.events:
            self._waiter = self.loop.create_future()
            # wait_for would create a task for each token
            await asyncio.wait({self._waiter}, timeout=timeout_s)
        if not self.events:
            return None
        event = self.events.popleft()
        if len(self.events) == MAX_EVENTS - 1:
            self.outbox.wake()
        if isinstance(event, APIError):
            raise event
        return event

    async def whole(self) -> Whole:
        """The complete answer."""
        parts: list[Part] = []
        likely: list[Likely] = []
        while not isinstance(event := await self.next(), Done):
            assert isinstance(event, Piece)
            parts += event.all_parts
            likely += event.likely
        reply = Reply()
        for part in joined(parts):
            reply.add(part)
        return Whole(reply, likely, event)
