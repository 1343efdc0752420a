"""Limits the number of connections, and closes idle ones."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from infinipot.server.errors import APIError
from infinipot.server.request_record import id_of
from infinipot.server.throttled_log import ThrottledLog

BACKLOG = 128
"""Connections that the system accepts before the server sees them."""
OTHERS = 64
"""File handles left for everything else."""
MAX_CONNECTIONS = 4096
MAX_HEAD = 16_384
"""Bytes of a request's head."""
HEAD_S = 20.0
"""How long the head of a request may take."""
FULL = "the server has as many connections as it can have: try again later"


def max_connections() -> int:
    """As many as the process's file handles allow."""
    try:
        import resource
    except ModuleNotFoundError:  # Windows has no such limit
        return MAX_CONNECTIONS
    handles = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if handles == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return max(8, min(MAX_CONNECTIONS, handles - BACKLOG - OTHERS))


class Connection(H11Protocol):
    """uvicorn's connection, closed if the client sends no request or does not fetch its answer.

    Each server sets patience_s, max_connections and throttled_log in a subclass.
    """

    patience_s = 60.0
    max_connections = MAX_CONNECTIONS
    throttled_log = ThrottledLog()

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
        if len(self.connections) > self.max_connections:
            self._make_room()

    def _make_room(self) -> None:
        """Close the connection that has been idle longest. If none is idle, refuse this one."""
        others = [
            other
            for other in self.connections
            if isinstance(other, Connection) and other is not self and other.idle
        ]
        self.throttled_log.error(
            f"there are {self.max_connections} connections: "
            "more are refused, or take the place of one without a request"
        )
        if others:
            oldest = min(others, key=lambda other: other._idle_since)
            self.connections.discard(oldest)
            oldest.transport.abort()
            return
        self.connections.discard(self)
        self._refuse("503 Service Unavailable", APIError(503, FULL, code="too_many_connections"))

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP request, or has a head that is too long."""
        error = APIError(400, f"{msg.rstrip('.')}: its head may have {MAX_HEAD:,} bytes")
        self._refuse("400 Bad Request", error)

    def _refuse(self, status: str, error: APIError) -> None:
        """Answer outside of the application, and close the connection."""
        body = json.dumps(error.body()).encode()
        head = (
            f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nx-request-id: {id_of(None)}\r\n"
            "connection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
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
        """The client does not fetch its answer. Close the connection if that lasts."""
        super().pause_writing()
        if self._unfetched is None:
            self._unfetched = self.loop.call_later(self.patience_s, self._end)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unfetched is not None:
            self._unfetched.cancel()
            self._unfetched = None
