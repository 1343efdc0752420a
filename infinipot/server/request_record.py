"""What is known of a request while it is answered: its id and its jobs."""

from __future__ import annotations

import contextlib
import contextvars
import logging
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

PLAIN_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
"""Ids of clients that are kept."""


@dataclass(eq=False)
class RequestRecord:
    """request_id: also in the answer's headers. jobs: those of the request, as they begin."""

    request_id: str
    jobs: list[Any] = field(default_factory=list)


_current: contextvars.ContextVar[RequestRecord | None] = contextvars.ContextVar(
    "infinipot_request", default=None
)


def current_record() -> RequestRecord | None:
    """The record of the request that this code works for; None outside of requests."""
    return _current.get()


@contextlib.contextmanager
def working_for(record: RequestRecord | None) -> Iterator[None]:
    """Inside the context, log lines carry the request's id, and new jobs belong to it."""
    token = _current.set(record)
    try:
        yield
    finally:
        _current.reset(token)


def id_of(given: str | None) -> str:
    """The id that a client gives, if it is short and plain; else a new one."""
    if given is not None and PLAIN_ID.fullmatch(given):
        return given
    return secrets.token_hex(8)


class RequestIdFilter(logging.Filter):
    """Puts the request's id before the text of log lines."""

    def filter(self, record: logging.LogRecord) -> bool:
        current = current_record()
        if current is not None:
            record.msg = f"request {current.request_id}: {record.msg}"
        return True


logging.getLogger("infinipot").addFilter(RequestIdFilter())
