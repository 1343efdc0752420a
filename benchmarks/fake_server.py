"""A server that streams words as fast as it can. It shows what the client of benchmarks/serving.py
can take at most.

    python benchmarks/fake_server.py        # prints its address
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

TOGETHER = 16
"""Events that are written at once, each in an HTTP chunk of its own."""


def chunk(content: str) -> bytes:
    data = f"data: {content}\n\n".encode()
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def event(**fields: object) -> bytes:
    """A chunk with all the fields that a real one has."""
    about = {"id": "chatcmpl-" + "0" * 24, "object": "chat.completion.chunk", "created": 0}
    return chunk(json.dumps({**about, "model": "fake", **fields}))


def choice(text: str) -> list[dict[str, object]]:
    return [{"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": None}]


WORD = event(choices=choice(" word"))


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One request."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = int(head.split("content-length:")[1].split("\r\n")[0])
    body = await reader.readexactly(length)
    if head.startswith("get"):
        models = json.dumps({"data": [{"id": "fake"}]}).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n")
        writer.write(b"Content-Length: %d\r\n\r\n" % len(models) + models)
    else:
        await stream(writer, json.loads(body))
    await writer.drain()
    writer.close()


async def stream(writer: asyncio.StreamWriter, request: dict[str, Any]) -> None:
    count = int(request["max_tokens"])
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n")
    writer.write(b"Transfer-Encoding: chunked\r\n\r\n")
    for start in range(0, count, TOGETHER):
        writer.write(WORD * min(TOGETHER, count - start))
        await writer.drain()
        await asyncio.sleep(0)
    usage = {
        "prompt_tokens": sum(len(one["content"].split()) for one in request["messages"]),
        "completion_tokens": count,
    }
    writer.write(event(choices=[], usage=usage) + chunk("[DONE]") + b"0\r\n\r\n")


async def main() -> None:
    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1 << 24, backlog=1024)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
