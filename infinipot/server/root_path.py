"""The path under which a reverse proxy shows the server: https://name/some/path/ instead of
https://name/."""

from __future__ import annotations

import re

from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send

PATH = re.compile(r"(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)+")
OWN = ("docs", "health", "metrics", "openapi.json", "page", "ready", "tokenize", "v1")
"""How the server's own paths begin."""


def checked(path: str) -> str:
    """The path without a slash at its end; "" is none. Raises ValueError with the reason."""
    path = path.rstrip("/")
    if not path:
        return ""
    if not PATH.fullmatch(path):
        raise ValueError(
            f"root-path={path!r} is not allowed: it must begin with / and have only letters, "
            "digits, . _ ~ - in its parts, for example /infinipot"
        )
    first = path.split("/")[1]
    if first in OWN:
        raise ValueError(
            f"root-path={path!r} is not allowed: /{first} is a path of the server itself; "
            "choose another first part, for example /infinipot"
        )
    return path


class RootPath:
    """Takes the path off requests that have it, so it is the same whether the proxy does so.

    path: as `checked` returns it.
    """

    def __init__(self, app: ASGIApp, path: str) -> None:
        self.app = app
        self.path = path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self.path:
            await self.app(scope, receive, send)
            return
        if scope["path"] == self.path:  # the page's links are relative to the folder
            query = scope["query_string"].decode("latin-1")
            to = f"{self.path}/" + (f"?{query}" if query else "")
            await RedirectResponse(to, 308)(scope, receive, send)
            return
        if scope["path"].startswith(f"{self.path}/"):
            raw = scope.get("raw_path") or b""  # the access log shows it
            scope["path"] = scope["path"].removeprefix(self.path)
            scope["raw_path"] = raw.removeprefix(self.path.encode())
        await self.app(scope, receive, send)
