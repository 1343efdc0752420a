"""Documents are converted in processes of their own, which end."""

from __future__ import annotations

import asyncio
import io
import socket
import time
from collections.abc import Callable

import psutil
import pytest
from live import live

from infinipot.server.conversion import AT_ONCE, Conversions
from infinipot.server.errors import APIError

MAIL = {"content-type": "message/rfc822"}
SLOW = b"Content-Type: multipart/mixed; boundary=b\n\n" + b"--b\n\nhi\n" * 400_000
"""It takes many seconds to find that it has too many parts."""


def test_a_conversion_that_takes_too_long_is_ended() -> None:
    with live(conversion_s=1) as here:
        before = psutil.Process().children(recursive=True)
        started = time.monotonic()
        for method, path in (("POST", "/v1/documents"), ("PUT", "/v1/pots/book")):
            reply = here.http.request(method, path, content=SLOW, headers=MAIL)
            error = reply.json()["error"]
            assert (reply.status_code, error["code"]) == (400, "document_too_slow")
            assert "takes longer than 1 seconds to convert" in error["message"]
        assert time.monotonic() - started < 15
        assert psutil.Process().children(recursive=True) == before
        assert here.http.get("/v1/pots").json()["data"] == []
        here.service.documents.conversions.limit_s = 60
        reply = here.http.post("/v1/documents", content=b"Subject: x\n\nThe dog did", headers=MAIL)
        assert reply.json()["text"] == "Subject: x\n\nThe dog did\n"
        reply = here.http.post("/v1/documents?name=a", content=SLOW[:20_000], headers=MAIL)
        assert reply.status_code == 400
        assert reply.json()["error"]["message"].startswith("a has more than 1,000 parts")


def test_a_client_that_leaves_ends_its_conversion() -> None:
    """At once: also of one that waits for another to end."""
    with live(conversion_s=600) as here:
        before = psutil.Process().children(recursive=True)
        address = here.http.base_url.host, here.http.base_url.port
        clients = []
        for number, target in enumerate(["POST /v1/documents", "PUT /v1/pots/book"] * 2):
            client = socket.create_connection(address)
            head = f"{target} HTTP/1.1\r\nhost: {address[0]}\r\ncontent-type: message/rfc822\r\n"
            client.sendall(f"{head}content-length: {len(SLOW)}\r\n\r\n".encode() + SLOW)
            clients.append(client)
            until(lambda: here.service.documents.conversions._open == number + 1)  # noqa: B023
        until(lambda: len(psutil.Process().children(recursive=True)) == len(before) + AT_ONCE)
        for client in clients[::-1]:
            client.close()
        until(lambda: psutil.Process().children(recursive=True) == before)
        until(lambda: here.service.documents.conversions._open == 0)
        assert here.http.get("/v1/pots").json()["data"] == []


def until(reached: Callable[[], bool]) -> None:
    """Wait until this is true, for few seconds."""
    last = time.monotonic() + 15
    while not reached():
        assert time.monotonic() < last
        time.sleep(0.02)


def test_conversions_that_wait_have_an_end() -> None:
    async def main() -> None:
        conversions = Conversions(limit_s=60, queue=1)
        files = [io.BytesIO(), io.BytesIO()]
        held = [asyncio.create_task(conversions._places.acquire()) for _ in range(AT_ONCE)]
        await asyncio.gather(*held)
        conversions._open = AT_ONCE
        waiting = asyncio.create_task(conversions.convert("email", "a", *files))
        await asyncio.sleep(0)
        with pytest.raises(APIError, match="3 documents are being converted") as refused:
            await conversions.convert("email", "a", *files)
        assert (refused.value.status, refused.value.code) == (429, "queue_full")
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert conversions._open == AT_ONCE

    asyncio.run(main())
