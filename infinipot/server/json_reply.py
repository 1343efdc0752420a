"""Replies in JSON."""

from __future__ import annotations

from typing import Any

from starlette.responses import JSONResponse

from infinipot.text.json_text import json_text


class JsonReply(JSONResponse):
    """A reply in JSON, on one line."""

    def render(self, content: Any) -> bytes:
        return json_text(content, nan=False).encode()
