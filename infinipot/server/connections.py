"""Connections: not more than there are file handles for, and none that keeps its handle without a request."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from infinipot.server.errors import Refusal

log = logging.getLogger("infinipot")

BACKLOG = 128
"""Connections that are accepted at once, before any of them is looked at."""
OTHERS = 64
"""File handles for everything else."""
MOST = 4096
HEAD_S = 20.0
"""How long a request's first lines may take to come."""
QUIET_S = 60.0
"""The same complaint is not written more often."""
FULL = "the server has as many connections as it can have: try again later"


def most_connections() -> int:
    """As many as the process has file handles for."""
    try:
        import resource
    except ModuleNotFoundError:  # there is no such bound where there is no such module
        return MOST
    handles = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MOST if handles == resource.RLIM_INFINITY else max(8, min(MOST, handles - BACKLOG - OTHERS))


class Seldom:
    """Complaints, each kind once in a while."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}

    def say(self, text: str) -> None:
        now = time.monotonic()
        if now - self._last.get(text, -QUIET_S) >= QUIET_S:
            self._last[text] = now
            log.error("%s", text)

    def on_problem(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """What asyncio calls for problems that nobody waits for: without file handles it would call thousands of times a second."""
        if isinstance(context.get("exception"), OSError) and "accept" in context.get("message", ""):
            self.say(f"no more connections can be accepted: {context['exception']}")
        else:
            loop.default_exception_handler(context)


class Connection(H11Protocol):
    """uvicorn's, with an end for those that send no request, or do not fetch their answer. patience_s, most: set for each server."""

    patience_s = 60.0
    most = MOST
    seldom = Seldom()

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._head: asyncio.TimerHandle | None = None
        self._unfetched: asyncio.TimerHandle | None = None
        self._idle_since = 0.0

    @property
    def idle(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()
        if len(self.connections) > self.most:
            self._make_room()

    def _make_room(self) -> None:
        """Close the connection that has waited longest without a request; if there is none but this, say that there is no room."""
        others = [one for one in self.connections if isinstance(one, Connection) and one is not self and one.idle]
        self.seldom.say(f"there are {self.most} connections: more are refused, or take the place of one without a request")
        if others:
            oldest = min(others, key=lambda one: one._idle_since)
            self.connections.discard(oldest)
            oldest.transport.abort()
            return
        body = json.dumps(Refusal(503, FULL, code="too_many_connections").body()).encode()
        head = f"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        self.transport.write(head.encode() + body)
        self.connections.discard(self)
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_head()
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        if not self.idle:
            self._forget_head()
        elif self._head is None:
            self._await_head()

    def _await_head(self) -> None:
        self._idle_since = self.loop.time()
        self._head = self.loop.call_later(min(HEAD_S, self.patience_s), self._end)

    def _forget_head(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _end(self) -> None:
        self.transport.abort()

    def on_response_complete(self) -> None:
        self._idle_since = self.loop.time()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """The client does not fetch what it asked for: it may think about it for a while."""
        super().pause_writing()
        if self._unfetched is None:
            self._unfetched = self.loop.call_later(self.patience_s, self._end)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unfetched is not None:
            self._unfetched.cancel()
            self._unfetched = None
