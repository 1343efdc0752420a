"""The form of errors, for the description of the API."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel


class Problem(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorReply(BaseModel):
    """The form of every error."""

    error: Problem


ERRORS: dict[int | str, dict[str, Any]] = {
    400: {
        "model": ErrorReply,
        "description": "The request cannot be used. The message says why.",
    },
    401: {"model": ErrorReply, "description": "The API key is wrong or missing."},
    403: {"model": ErrorReply, "description": "The request comes from a page of another site."},
    404: {"model": ErrorReply, "description": "The model, pot or path does not exist."},
    409: {
        "model": ErrorReply,
        "description": "A conflict: the name is in use, or the file is damaged.",
    },
    408: {"model": ErrorReply, "description": "The body came too slowly."},
    413: {"model": ErrorReply, "description": "The body is too large."},
    421: {
        "model": ErrorReply,
        "description": "The Host header names no host of this server.",
    },
    429: {"model": ErrorReply, "description": "Too many requests are waiting."},
    503: {
        "model": ErrorReply,
        "description": "Try again later: the model is loading, or memory or disk is full.",
    },
}
STREAMS: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}
}
