"""Checks the API key, the origin and the host of each request, and limits the size of its body."""

from __future__ import annotations

import hmac

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from infinipot.server.bodies import TOO_LARGE, limited_receive
from infinipot.server.errors import APIError
from infinipot.server.json_reply import JsonReply
from infinipot.server.service import Service

OPEN = ("/", "/health", "/ready", "/docs", "/openapi.json")
"""Paths that need no key. They reveal nothing and change nothing."""
MAX_BODIES = 4
"""Memory for the bodies of all open requests, in bodies of the largest size."""
FULL = (
    "the requests in hand hold as much text as there is room for: "
    "try again later, or send a smaller one"
)


class AuthMiddleware:
    def __init__(self, app: ASGIApp, service: Service) -> None:
        self.app = app
        self.service = service
        self.access = service.access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        headers = Headers(scope=scope)
        # a streamed text may be of any length
        max_bytes = None if scope["method"] == "PUT" else self.access.max_body_bytes
        error = self._access_error(scope["path"], headers) or _length_error(headers, max_bytes)
        if error is not None:
            await JsonReply(error.body(), error.status)(scope, receive, send)
            return
        body_bytes = 0

        def count(size: int) -> None:
            nonlocal body_bytes
            if max_bytes is None:
                return
            if self.service.body_bytes + size > MAX_BODIES * max_bytes:
                raise HTTPException(429, FULL)
            body_bytes += size
            self.service.body_bytes += size

        try:
            limited = limited_receive(receive, self.access.patience_s, max_bytes, count)
            await self.app(scope, limited, send)
        finally:
            self.service.body_bytes -= body_bytes

    def _access_error(self, path: str, headers: Headers) -> APIError | None:
        origin = headers.get("origin")
        host = headers.get("host")
        if origin is not None and not self.access.allows(origin, host):
            message = (
                f"pages of {origin[:100]!r} may not use this server, which was asked as "
                f"{(host or '')[:100]!r}: start it with --allowed-origin and the page's origin, or "
                "let the proxy before it pass the Host header on"
            )
            return APIError(403, message, code="cross_origin")
        key = self.access.api_key
        if key is None:  # other sites' pages do not know a key
            return self.access.hosts.error(headers.get("host"))
        if path in OPEN or path.startswith("/page/"):
            return None
        scheme, _, token = headers.get("authorization", "").partition(" ")
        # takes the same time for every wrong key
        matches = hmac.compare_digest(token.encode("latin-1"), key.encode())
        if scheme.lower() == "bearer" and matches:
            return None
        return APIError(
            401,
            "the API key is wrong or missing: send it as `Authorization: Bearer KEY`",
            code="invalid_api_key",
        )


def _length_error(headers: Headers, max_bytes: int | None) -> APIError | None:
    length = headers.get("content-length", "0")
    if max_bytes is not None and length.isdigit() and int(length) > max_bytes:
        return APIError(413, TOO_LARGE.format(max_bytes))
    return None
