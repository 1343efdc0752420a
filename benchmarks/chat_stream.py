"""A light client of OpenAI-compatible servers: streamed chat completions over plain sockets.

One thread serves all streams, and libraries for HTTP would cost more than the answers of a small
model. `python benchmarks/serving.py fake` measures how many events a second it can take.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

END = object()
"""What stands for [DONE]."""


@dataclass
class Answer:
    """An answer as it came. Times are of time.perf_counter."""

    asked: float = field(default_factory=time.perf_counter)
    times: list[float] = field(default_factory=list)
    """When each piece of text came."""
    text: str = ""
    usage: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    """The kind of error; None: the answer is complete."""

    @property
    def tokens(self) -> int:
        """Tokens as the server counts them, else pieces."""
        return int(self.usage.get("completion_tokens") or len(self.times))

    @property
    def cached_tokens(self) -> int:
        details = self.usage.get("prompt_tokens_details") or {}
        return int(details.get("cached_tokens") or 0)


class Refusal(Exception):
    """An answer that the server did not give. Its text is the kind of error."""


@dataclass(frozen=True)
class Server:
    """url: without /v1. timeout_s: how long an answer may take."""

    url: str
    key: str | None = None
    timeout_s: float = 600.0

    async def chat(self, body: dict[str, Any]) -> Answer:
        """The streamed answer to a request. Errors are in the answer."""
        answer = Answer()
        usage = {"include_usage": True}
        content = json.dumps({**body, "stream": True, "stream_options": usage}).encode()
        try:
            await asyncio.wait_for(self._receive(answer, content), self.timeout_s)
        except Refusal as problem:
            answer.error = str(problem)
        except asyncio.IncompleteReadError:
            answer.error = "incomplete"
        except (OSError, asyncio.TimeoutError) as problem:
            answer.error = type(problem).__name__
        return answer

    async def _receive(self, answer: Answer, content: bytes) -> None:
        ended = False
        async for event in self._events("POST", "/v1/chat/completions", content):
            if event is END:
                ended = True
            else:
                _take(answer, event)
        if not ended:
            raise Refusal("incomplete")

    async def model(self) -> str:
        """The name of the first model that is served."""
        async for event in self._events("GET", "/v1/models", b""):
            return str(event["data"][0]["id"])
        raise SystemExit("the server names no model")

    async def _events(self, method: str, path: str, content: bytes) -> AsyncIterator[Any]:
        """The reply's JSON objects: of each event, or of the whole body. Raises Refusal, OSError."""
        place = urlsplit(self.url)
        secure = place.scheme == "https"
        port = place.port or (443 if secure else 80)
        reader, writer = await asyncio.open_connection(place.hostname, port, ssl=secure or None)
        try:
            writer.write(self._head(method, f"{place.path.rstrip('/')}{path}", content) + content)
            head = await reader.readuntil(b"\r\n\r\n")
            status = int(head.split(None, 2)[1])
            blocks = _blocks(reader, b"transfer-encoding: chunked" in head.lower())
            if status != 200 or b"text/event-stream" not in head.lower():
                whole = b"".join([block async for block in blocks])
                if status != 200:
                    raise Refusal(f"{status} {_code(whole)}".strip())
                yield json.loads(whole)
                return
            async for event in _parsed(blocks):
                yield event
        finally:
            writer.close()

    def _head(self, method: str, path: str, content: bytes) -> bytes:
        lines = [
            f"{method} {path} HTTP/1.1",
            f"Host: {urlsplit(self.url).netloc}",
            "Connection: close",
            "Content-Type: application/json",
            f"Content-Length: {len(content)}",
        ]
        if self.key:
            lines.append(f"Authorization: Bearer {self.key}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def _parsed(blocks: AsyncIterator[bytes]) -> AsyncIterator[Any]:
    """The events' JSON objects, and END."""
    rest = b""
    async for block in blocks:
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                data = line[5:].strip()
                yield END if data == b"[DONE]" else json.loads(data)


def _take(answer: Answer, event: dict[str, Any]) -> None:
    if "error" in event:
        error = event["error"]
        raise Refusal(f"event {error.get('code') or error.get('type') or ''}".strip())
    for choice in event.get("choices", ()):
        text = choice["delta"].get("content")
        if text:
            answer.times.append(time.perf_counter())
            answer.text += text
    if event.get("usage"):
        answer.usage = event["usage"]


async def _blocks(reader: asyncio.StreamReader, chunked: bool) -> AsyncIterator[bytes]:
    """The body, as it comes."""
    if not chunked:
        while block := await reader.read(1 << 16):
            yield block
        return
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        block = await reader.readexactly(size + 2)
        yield block[:-2]


def _code(body: bytes) -> str:
    """The code of an error reply; empty if it has none."""
    try:
        return str(json.loads(body)["error"].get("code") or "")
    except (ValueError, KeyError, TypeError, AttributeError):
        return ""
