"""A model with its application, as one of several on a cluster: asked by messages instead of a socket."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from ray import serve
from starlette.types import Message, Scope

from infinipot.server.app import create_app
from infinipot.server.service import Serving


class Replica:
    """Loads the model before it is ready. make: gives the server that was asked for, not yet started."""

    def __init__(self, make: Callable[[], Serving]) -> None:
        self.serving = make()
        self.serving.start()
        self.check_health()
        self.app = create_app(self.serving)

    def check_health(self) -> None:
        """Asked now and then; what it raises ends this replica, and another one begins."""
        if self.serving.failure is not None:
            raise self.serving.failure

    async def answer(self, scope: Scope, body: bytes) -> AsyncIterator[Message]:
        """The application's messages, as they come. Whoever stops listening ends the request, as a client does that leaves."""
        messages: asyncio.Queue[Message | None] = asyncio.Queue()
        given: asyncio.Queue[Message] = asyncio.Queue()
        given.put_nowait({"type": "http.request", "body": body, "more_body": False})
        answering = asyncio.create_task(self.app(scope, given.get, messages.put))  # type: ignore[arg-type]
        answering.add_done_callback(lambda _: messages.put_nowait(None))
        try:
            while (message := await messages.get()) is not None:
                yield message
            await answering
        finally:
            answering.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await answering

    async def whole(self, scope: Scope) -> tuple[str, int, bytes]:
        """This replica's name, and status and body of an answer that is short."""
        messages = [message async for message in self.answer(scope, b"")]
        name = serve.get_replica_context().replica_id.unique_id
        return name, messages[0]["status"], b"".join(message.get("body", b"") for message in messages[1:])

    async def __del__(self) -> Any:
        """Called when the cluster ends this replica: what would be missed is written."""
        if hasattr(self, "serving"):
            await asyncio.to_thread(self.serving.stop)
