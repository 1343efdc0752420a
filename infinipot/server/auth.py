"""Who may come in: the API key, and no pages of other sites, under whatever name. Counts what goes out."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from infinipot.server.bodies import TOO_LARGE, receiving
from infinipot.server.errors import Refusal

if TYPE_CHECKING:
    from infinipot.server.service import Serving

OPEN = ("/", "/health", "/docs", "/openapi.json")
"""Paths that need no key: they tell nothing and do nothing."""


ROOM = 4
"""How many bodies of the largest size are held at once, those of requests that wait or are being answered among them."""
FULL = "the requests in hand hold as much text as there is room for: try again later, or send a smaller one"


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
        refusal = self._refusal(scope["path"], headers)
        most = None if scope["method"] == "PUT" else self.serving.max_body_bytes  # a stream may be of any length
        length = headers.get("content-length", "0")
        if refusal is None and most is not None and length.isdigit() and int(length) > most:
            refusal = Refusal(413, TOO_LARGE.format(most))
        if refusal is not None:
            await JSONResponse(refusal.body(), refusal.status)(scope, receive, counted)
            return
        held = 0

        def count(size: int) -> None:
            nonlocal held
            if most is None:
                return
            if self.serving.held_bytes + size > ROOM * most:
                raise HTTPException(429, FULL)
            held += size
            self.serving.held_bytes += size

        try:
            await self.app(scope, receiving(receive, self.serving.patience_s, most, count), counted)
        finally:
            self.serving.held_bytes -= held

    def _refusal(self, path: str, headers: Headers) -> Refusal | None:
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != headers.get("host"):
            return Refusal(403, "pages of other sites may not use this server", code="cross_origin")
        key = self.serving.api_key
        if key is None and (refusal := self.serving.hosts.refusal(headers.get("host"))):  # with a key no page of others gets far
            return refusal
        if key is None or path in OPEN or path.startswith("/page/"):
            return None
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and hmac.compare_digest(given.encode("latin-1"), key.encode()):  # takes as long for any wrong key
            return None
        return Refusal(401, "the API key is wrong or missing: send it as `Authorization: Bearer KEY`", code="invalid_api_key")
