"""A log that does not repeat itself."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

log = logging.getLogger("infinipot")

QUIET_S = 60.0
"""The least time between two lines about the same."""


class ThrottledLog:
    """Writes about each thing at most once in QUIET_S seconds."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}

    def error(self, text: str, about: str = "") -> None:
        """about: what the line is about, if other texts are about the same."""
        now = time.monotonic()
        about = about or text
        if now - self._last.get(about, -QUIET_S) >= QUIET_S:
            self._last[about] = now
            log.error("%s", text)

    def on_problem(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """The exception handler of the event loop. Without file handles asyncio calls it thousands
        of times a second."""
        if isinstance(context.get("exception"), OSError) and "accept" in context.get("message", ""):
            self.error(f"no more connections can be accepted: {context['exception']}")
        else:
            loop.default_exception_handler(context)
