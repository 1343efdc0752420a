"""Converts documents in processes of their own: a document that takes too long holds up nothing."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import BinaryIO

import infinipot
from infinipot.server.errors import APIError
from infinipot.text.converter import REFUSED

MEMORY_BYTES = 1 << 31
"""Most memory of a conversion."""
AT_ONCE = 2
"""Conversions at a time; others wait."""
SIGXCPU = int(getattr(signal, "SIGXCPU", 0))
"""The signal of a process that took too much of the processor. Windows has none."""
HOME = Path(infinipot.__file__).parents[1]


class Conversions:
    """The conversions of a server. limit_s: the longest. queue: how many may wait."""

    def __init__(self, limit_s: float, queue: int) -> None:
        self.limit_s = limit_s
        self.queue = queue
        self._places = asyncio.Semaphore(AT_ONCE)
        self._open = 0

    async def convert(self, kind: str, name: str, source: BinaryIO, target: BinaryIO) -> None:
        """Write a document's text to a file, both files of the system. Raises APIError for a
        document that is refused or takes too long, and if too many wait."""
        if self._open >= AT_ONCE + self.queue:
            message = f"{self._open} documents are being converted already: try again later"
            raise APIError(429, message, code="queue_full")
        self._open += 1
        try:
            async with self._places:
                child = start(kind, name, source, target, self.limit_s)
                try:
                    said = await asyncio.to_thread(end_of, child, self.limit_s)
                finally:
                    child.kill()  # also if the client has left
        finally:
            self._open -= 1
        check(child.returncode, said, name, self.limit_s)


def start(
    kind: str, name: str, source: BinaryIO, target: BinaryIO, limit_s: float
) -> subprocess.Popen[bytes]:
    source.seek(0)
    arguments = json.dumps([kind, name, MEMORY_BYTES, int(limit_s) + 1])
    return subprocess.Popen(
        [sys.executable, "-m", "infinipot.text.converter", arguments],
        stdin=source,
        stdout=target,
        stderr=subprocess.PIPE,
        cwd=HOME,  # so that no module of the folder in which the server was started is found
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )


def end_of(child: subprocess.Popen[bytes], limit_s: float) -> str | None:
    """What a conversion says at its end; None if it had to be ended."""
    try:
        _, said = child.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        return None
    return said.decode("utf-8", "replace")


def check(status: int, said: str | None, name: str, limit_s: float) -> None:
    """Raise APIError if a conversion has failed. said: None if it took too long."""
    if said is None or status == -SIGXCPU:
        raise APIError(
            400,
            f"{name} takes longer than {limit_s:g} seconds to convert: convert it to text first, "
            "or send it in parts",
            code="document_too_slow",
        )
    if status == REFUSED:
        raise APIError(400, said)
    if status:
        raise APIError(
            400,
            f"{name} cannot be converted: its converter ended with status {status}. "
            "Convert it to text first",
        )
