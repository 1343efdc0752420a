"""What a server writes to stderr: lines of text, or a JSON object a line."""

from __future__ import annotations

import datetime
import json
import logging
import sys
import warnings
from typing import Any

from infinipot.server.request_record import current_record

FORMATS = ("text", "json")

notices = logging.getLogger("infinipot.notices")
"""Lines for the person who started the server. They are shown at any level."""


class JsonFormatter(logging.Formatter):
    """A message as an object: time, level, logger, request_id, message, and traceback."""

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.datetime.fromtimestamp(record.created, datetime.timezone.utc)
        message = record.getMessage()
        fields: dict[str, Any] = {
            "time": when.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        request = current_record()
        if request is not None:
            fields["request_id"] = request.request_id
            message = message.removeprefix(f"request {request.request_id}: ")
        fields["message"] = message
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields)


def write_logs(level: str, kind: str) -> None:
    """Let messages of at least this level go to stderr. kind: from FORMATS."""
    formatter = logging.Formatter("infinipot: %(message)s")
    if kind == "json":
        formatter = JsonFormatter()
        log_others()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(level.upper())
    notices.setLevel(logging.INFO)


def log_others() -> None:
    """Let Python's warnings, and messages of the Hub's libraries, be lines of the log."""
    warnings.showwarning = lambda message, *where: notices.warning("%s", message)
    for name in ("transformers", "huggingface_hub"):
        library = logging.getLogger(name)
        library.handlers.clear()
        library.propagate = True


def say(line: str) -> None:
    notices.info("%s", line)
