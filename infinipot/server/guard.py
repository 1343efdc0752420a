"""Who may come in: the API key, and no pages of other sites. Counts what goes out."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from infinipot.server.refusal import Refusal

if TYPE_CHECKING:
    from infinipot.server.serving import Serving

OPEN = ("/", "/health", "/docs", "/openapi.json")
"""Paths that need no key: they tell nothing and do nothing."""


TOO_LARGE = "the body is too large: {:,} bytes are allowed; PUT /v1/pots/NAME takes a text of any length"


def counting(receive: Receive, most: int) -> Receive:
    """Receives no more than so many bytes."""
    taken = 0

    async def limited() -> Message:
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        if taken > most:
            raise HTTPException(413, TOO_LARGE.format(most))
        return message

    return limited


class Guard:
    def __init__(self, app: ASGIApp, serving: Serving) -> None:
        self.app, self.serving = app, serving

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                route = scope.get("route")
                self.serving.metrics.requests.labels(getattr(route, "path", "other"), message["status"]).inc()
            await send(message)

        headers = Headers(scope=scope)
        most = self.serving.max_body_bytes
        refusal = self._refusal(scope["path"], headers)
        if scope["method"] == "PUT":  # a stream may be of any length
            limited = receive
        else:
            length = headers.get("content-length", "0")
            if refusal is None and length.isdigit() and int(length) > most:
                refusal = Refusal(413, TOO_LARGE.format(most))
            limited = counting(receive, most)
        if refusal is not None:
            await JSONResponse(refusal.body(), refusal.status)(scope, receive, counted)
            return
        await self.app(scope, limited, counted)

    def _refusal(self, path: str, headers: Headers) -> Refusal | None:
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != headers.get("host"):
            return Refusal(403, "pages of other sites may not use this server", code="cross_origin")
        key = self.serving.api_key
        if key is None or path in OPEN or path.startswith("/page/"):
            return None
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and hmac.compare_digest(given.encode("latin-1"), key.encode()):  # takes as long for any wrong key
            return None
        return Refusal(401, "the API key is wrong or missing: send it as `Authorization: Bearer KEY`", code="invalid_api_key")
