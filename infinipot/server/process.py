"""A server process: its socket, its start and its stop."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import socket
from typing import Any

import uvicorn

from infinipot.checks import within
from infinipot.server.app import create_app
from infinipot.server.connections import (
    BACKLOG,
    MAX_HEAD,
    Connection,
    max_connections,
)
from infinipot.server.service import Service
from infinipot.server.throttled_log import ThrottledLog

GRACE_S = 5
"""How long open requests may take after a stop signal. Then they are refused."""
CLOSE_S = 5
"""How long refused requests may take before their connections are closed."""


def bound(host: str, port: int) -> socket.socket:
    """A bound socket; port 0: any free port. Raises ValueError with the reason."""
    within("port", port, 0, 65535)
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        place = socket.socket(family, kind, protocol)
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        place.bind(address)
    except OSError as problem:
        if problem.errno == errno.EADDRINUSE:
            why = "another program listens there: choose another --port"
        else:
            why = str(problem.strerror)
        raise ValueError(f"cannot listen on {host}:{port}: {why}") from None
    return place


class Server(uvicorn.Server):
    """Ends on a signal, or if the model cannot be loaded."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.throttled_log = ThrottledLog()
        self.frozen = False
        """Whether the garbage collector leaves out what is loaded."""
        limits = {
            "patience_s": service.access.patience_s,
            "max_connections": max_connections(),
            "throttled_log": self.throttled_log,
        }
        options: dict[str, Any] = {
            "http": type("Connection", (Connection,), limits),
            "ws": "none",
            "lifespan": "on",
            "backlog": BACKLOG,
            "h11_max_incomplete_event_size": MAX_HEAD,
        }
        end_s = GRACE_S + CLOSE_S
        super().__init__(
            uvicorn.Config(
                create_app(service),
                log_config=None,
                access_log=False,
                timeout_graceful_shutdown=end_s,
                **options,
            )
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(self.throttled_log.on_problem)
        await super().startup(sockets)

    async def on_tick(self, counter: int) -> bool:
        if not self.frozen and not self.service.loading:
            self.frozen = True
            # a model's half a million objects stay: looking through them would stop all threads
            gc.collect()
            gc.freeze()
        return await super().on_tick(counter) or self.service.failure is not None

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        ending = asyncio.get_running_loop().call_later(GRACE_S, self.service.close)
        try:
            await super().shutdown(sockets)
        finally:
            ending.cancel()


def serve(service: Service, place: socket.socket) -> None:
    """Serve until a stop signal. Raises the exception that prevented loading the model."""
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    asyncio.run(Server(service).serve(sockets=[place]))
    if service.failure is not None:
        raise service.failure
