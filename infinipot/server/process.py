"""A server process: its socket, its life, its end."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from typing import Any

import uvicorn

from infinipot.checks import within
from infinipot.server.app import create_app
from infinipot.server.connections import BACKLOG, Connection, Seldom, most_connections
from infinipot.server.service import Serving

GRACE_S = 5
"""How long requests in progress may take to end when the server is told to stop; those that are left then are refused, in words."""
CLOSE_S = 5
"""How long those may take to be told before their connections are closed."""


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens there; port 0 takes a free one. Raises ValueError with the reason why not."""
    within("port", port, 0, 65535)
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        place = socket.socket(family, kind, protocol)
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        place.bind(address)
    except OSError as problem:
        why = "another program listens there: choose another --port" if problem.errno == errno.EADDRINUSE else problem.strerror
        raise ValueError(f"cannot listen on {host}:{port}: {why}") from None
    return place


class Server(uvicorn.Server):
    """Ends when it is told to, or when the model could not be loaded."""

    def __init__(self, serving: Serving) -> None:
        self.serving, self.seldom = serving, Seldom()
        limits = {"patience_s": serving.patience_s, "most": most_connections(), "seldom": self.seldom}
        options: dict[str, Any] = {"http": type("Connection", (Connection,), limits), "ws": "none", "lifespan": "on", "backlog": BACKLOG}
        end_s = GRACE_S + CLOSE_S
        super().__init__(uvicorn.Config(create_app(serving), log_config=None, access_log=False, timeout_graceful_shutdown=end_s, **options))

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(self.seldom.on_problem)
        await super().startup(sockets)

    async def on_tick(self, counter: int) -> bool:
        return await super().on_tick(counter) or self.serving.failure is not None

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        ending = asyncio.get_running_loop().call_later(GRACE_S, self.serving.close)
        try:
            await super().shutdown(sockets)
        finally:
            ending.cancel()


def serve(serving: Serving, place: socket.socket) -> None:
    """Serve until a signal says stop. Raises what kept the model from being loaded."""
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    asyncio.run(Server(serving).serve(sockets=[place]))
    if serving.failure is not None:
        raise serving.failure
