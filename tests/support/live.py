"""A server on a free port, in a thread, with a tiny model."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2 as httpx
import openai
from tiny import make_tiny, make_tokenizer

from infinipot import PotConfig, Sampling
from infinipot.server.app import create_app
from infinipot.server.process import Server, bound
from infinipot.server.service import Service
from infinipot.server.settings import Settings

CONFIG = PotConfig(pot_size=256, distill_to=128, chunk_tokens=64)
TIMEOUT_S = 180
"""Tests run on busy machines, too."""


class Live:
    """What tests need of a running server. Its clients read no certificates, which takes long."""

    def __init__(self, service: Service, port: int) -> None:
        self.service, self.url = service, f"http://127.0.0.1:{port}"
        self.http = httpx.Client(base_url=self.url, timeout=TIMEOUT_S, verify=False)
        self.openai = openai.OpenAI(
            base_url=f"{self.url}/v1",
            api_key=service.access.api_key or "none",
            max_retries=0,
            timeout=TIMEOUT_S,
            http_client=openai.DefaultHttpxClient(verify=False),
        )

    def chat(self, *said: str, **options: Any) -> Any:
        """The reply to a conversation: user, assistant, user ..."""
        messages = [
            {"role": ("user", "assistant")[number % 2], "content": text}
            for number, text in enumerate(said)
        ]
        extra = {
            name: options.pop(name)
            for name in ("pot", "session", "cache_salt", "pot_size", "policy", "novelty")
            if name in options
        }
        return self.openai.chat.completions.create(
            model="tiny", messages=messages, extra_body=extra, **{"max_tokens": 12, **options}
        )

    def gauge(self, name: str) -> float:
        line = next(
            line
            for line in self.http.get("/metrics").text.splitlines()
            if line.startswith(name + " ")
        )
        return float(line.split()[1])

    def wait(self, name: str, value: float, timeout_s: float = 60) -> None:
        """Until a gauge has a value."""
        until = time.monotonic() + timeout_s
        while self.gauge(name) != value:
            assert time.monotonic() < until, f"{name} is {self.gauge(name)}, not {value}"
            time.sleep(0.02)


def tiny() -> tuple[Any, Any]:
    """A model that never ends an answer by itself, and its tokenizer."""
    model = make_tiny("llama")
    model.lm_head.weight.data[:4] = 0
    return model, make_tokenizer()


@contextmanager
def live(
    settings: dict[str, Any] | None = None,
    *,
    buffer_bytes: int = 0,
    wait: str = "/ready",
    port: int = 0,
    **options: Any,
) -> Iterator[Live]:
    """Settings and options of the service. buffer_bytes: of the kernel, for what is sent; 0 for its default.
    wait: the path that must say 200 before the block begins. port: 0 for a free one."""
    settings = {"config": CONFIG, "sampling": Sampling(max_tokens=40), **(settings or {})}
    service = Service("tiny", options.pop("load", tiny), Settings(**settings), **options)
    place = bound("127.0.0.1", port)
    if buffer_bytes:  # connections inherit it
        place.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
    server = Server(service)
    thread = threading.Thread(
        target=lambda: asyncio.run(server.serve(sockets=[place])), daemon=True
    )
    thread.start()
    here = Live(service, place.getsockname()[1])
    until = time.monotonic() + 120
    while not (server.started and here.http.get(wait).status_code == 200):
        assert time.monotonic() < until
        time.sleep(0.01)
    try:
        yield here
    finally:
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive()


def free_port() -> int:
    with bound("127.0.0.1", 0) as place:
        return int(place.getsockname()[1])


def document() -> dict[str, Any]:
    """The server's OpenAPI document, without a server."""
    return create_app(Service("tiny", tiny, Settings())).openapi()
