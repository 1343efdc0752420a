"""A replica: a model and its application, which gets messages instead of a socket."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from ray import serve
from starlette.types import Message, Scope

from infinipot.server.access_log import write_access_log
from infinipot.server.app import create_app
from infinipot.server.service import Service


class Replica:
    """Loads the model before it is ready. make: creates the service."""

    def __init__(self, make: Callable[[], Service]) -> None:
        self.service = make()
        write_access_log(self.service.settings.access_log)
        self.service.start()
        self.check_health()
        self.app = create_app(self.service)

    def check_health(self) -> None:
        """Called by Ray. An exception ends this replica, and Ray starts another one."""
        if self.service.failure is not None:
            raise self.service.failure

    async def answer(self, scope: Scope, body: bytes) -> AsyncIterator[Message]:
        """The application's messages as they come. Closing the iterator ends the request."""
        messages: asyncio.Queue[Message | None] = asyncio.Queue()
        incoming: asyncio.Queue[Message] = asyncio.Queue()
        incoming.put_nowait({"type": "http.request", "body": body, "more_body": False})
        task = asyncio.create_task(self.app(scope, incoming.get, messages.put))  # type: ignore[arg-type]
        task.add_done_callback(lambda _: messages.put_nowait(None))
        try:
            while (message := await messages.get()) is not None:
                yield message
            await task
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def whole(self, scope: Scope) -> tuple[str, int, bytes]:
        """This replica's name, and the status and body of a short answer."""
        messages = [message async for message in self.answer(scope, b"")]
        name = serve.get_replica_context().replica_id.unique_id
        return (
            name,
            messages[0]["status"],
            b"".join(message.get("body", b"") for message in messages[1:]),
        )

    async def __del__(self) -> Any:
        """Called when the cluster ends this replica. Writes the pots in memory."""
        if hasattr(self, "service"):
            await asyncio.to_thread(self.service.stop)
