"""What one client can take of a server: bounded, and said so in a sentence."""

from __future__ import annotations

import json
import random
import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from live import Live, live

from infinipot.server import bodies


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    with live({"max_sessions": 4}) as here:
        yield here


def chat(content: str) -> str:
    return f'{{"model": "tiny", "messages": [{{"role": "user", "content": {content}}}]}}'


def many(item: str, count: int) -> str:
    return f"[{', '.join([item] * count)}]"


WRONG = {
    "parts": ("/v1/chat/completions", chat(many("{}", 200_000))),
    "parts of parts": ("/v1/chat/completions", chat(many("[[]]", 200_000))),
    "messages": ("/v1/chat/completions", f'{{"model": "tiny", "messages": {many("{}", 200_000)}}}'),
    "stop": ("/v1/chat/completions", chat('"x"')[:-1] + f', "stop": {many("0", 200_000)}}}'),
    "tools": ("/v1/chat/completions", chat('"x"')[:-1] + f', "tools": {many("0", 200_000)}}}'),
    "ids": ("/v1/completions", f'{{"model": "tiny", "prompt": {many("null", 200_000)}}}'),
    "lists of ids": ("/v1/completions", f'{{"model": "tiny", "prompt": {many("[null]", 200_000)}}}'),
    "fields": ("/v1/pots", json.dumps({str(number): 0 for number in range(200_000)})),
    "a few fields": ("/v1/chat/completions", json.dumps({str(number): 0 for number in range(90)})),
    "metadata": ("/v1/completions", json.dumps({"metadata": {str(number): 0 for number in range(200_000)}})),
    "too many values": ("/tokenize", many("[]", 2_000_000)),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_is_wrong_many_times_is_told_a_few_times(server: Live, kind: str) -> None:
    """Every problem that is noted takes a thousand times the bytes that cause it."""
    path, body = WRONG[kind]
    reply = server.http.post(path, content=body, headers={"content-type": "application/json"})
    assert reply.status_code == 400
    message = reply.json()["error"]["message"]
    more = re.search(r"and (\d+) more", message)
    assert more is None or int(more[1]) < 20, message
    assert "function" not in message


def test_values_are_counted_without_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "PIECE", 7)
    chance = random.Random(0)

    def made(depth: int) -> Any:
        text = "".join(chance.choice('a"\\,[{:}]\n') for _ in range(chance.randrange(9)))
        kind = chance.randrange(4) if depth else 3
        if kind == 0:
            return [made(depth - 1) for _ in range(chance.randrange(4))]
        if kind == 1:
            return {f"{text}{number}": made(depth - 1) for number in range(chance.randrange(4))}
        return text

    def marks(value: Any) -> int:
        """Of [ { , and : that are no part of a text."""
        inner = list(value.values()) if isinstance(value, dict) else value
        if not isinstance(value, (dict, list)):
            return 0
        return 1 + max(0, len(inner) - 1) + (len(inner) if isinstance(value, dict) else 0) + sum(map(marks, inner))

    for _ in range(300):
        value = made(4)
        assert bodies.values(json.dumps(value).encode()) == marks(value)


def test_others_are_answered_while_a_large_body_is_read(server: Live) -> None:
    body = json.dumps({"model": "none", "messages": [{"role": "user", "content": 'a "word"\n' * 4_000_000}]})
    replies: list[int] = []
    sending = threading.Thread(
        target=lambda: replies.append(
            server.http.post("/v1/chat/completions", content=body, headers={"content-type": "application/json"}).status_code
        )
    )
    sending.start()
    while sending.is_alive():
        assert server.openai._client.get(f"{server.url}/health", timeout=5).status_code == 200
    assert replies == [404]


def test_bodies_in_hand_have_a_common_limit() -> None:
    with live(max_body_bytes=10_000) as here:
        here.serving.held_bytes = 39_000
        body = {"model": "tiny", "prompt": "x" * 2000}
        reply = here.http.post("/v1/completions", json=body)
        assert reply.status_code == 429
        assert here.serving.held_bytes == 39_000
        here.serving.held_bytes = 0
        assert here.http.post("/tokenize", json={"prompt": "x"}).status_code == 200
        assert here.serving.held_bytes == 0
