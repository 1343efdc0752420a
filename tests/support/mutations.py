"""Requests that are almost right, the same for the same seed."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

GOOD: list[tuple[str, str, Any]] = [
    (
        "POST",
        "/v1/chat/completions",
        {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2},
    ),
    (
        "POST",
        "/v1/chat/completions",
        {
            "model": "tiny",
            "messages": [
                {"role": "system", "content": "Be brief."},
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "Long text"},
                        {"type": "text", "text": "Who?"},
                    ],
                },
                {"role": "assistant", "content": "Me"},
                {"role": "user", "content": "Why?"},
            ],
            "max_completion_tokens": 2,
            "stream": True,
            "stream_options": {"include_usage": True},
            "stop": ["a", "b"],
            "temperature": 0.5,
            "seed": 3,
            "logprobs": True,
            "top_logprobs": 2,
            "pot_size": 128,
            "distill_to": 40,
            "policy": "streaming",
            "session": "fuzz",
        },
    ),
    (
        "POST",
        "/v1/completions",
        {"model": "tiny", "prompt": "Once", "max_tokens": 2, "echo": True, "logprobs": 1},
    ),
    (
        "POST",
        "/v1/completions",
        {
            "model": "tiny",
            "prompt": [[5, 6, 7], [8]],
            "max_tokens": 1,
            "top_p": 0.5,
            "temperature": 1,
        },
    ),
    ("POST", "/tokenize", {"prompt": "Hello", "offsets": True}),
    (
        "POST",
        "/v1/pots",
        {
            "name": "fuzz",
            "text": "Some text",
            "question": "What?",
            "system": "Be kind.",
            "replace": True,
        },
    ),
    ("GET", "/v1/pots/fuzz?places=true", None),
    ("PUT", "/v1/pots/fuzz?replace=true&pot_size=200", "A text"),
    ("DELETE", "/v1/pots/fuzz", None),
]
VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 2, 3.5, 1e308, -1e-308, 2**31, 2**63, 10**400, "", "x", "0", "../../etc/passwd", "\x00", "\ud800", "💥" * 50,
    [], {}, [[]], [None], {"a": {"b": []}}, [0] * 300, "x" * 3000, [1, "a", None], {"type": "text", "text": "x"}, "user", "system",
    float("nan"), float("inf"),
]  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to everything inside."""
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, inner in items:
        yield (*path, key)
        yield from places(inner, (*path, key))


def mutated(body: Any, chance: random.Random) -> Any:
    """The body with one thing changed, taken out, added or doubled."""
    body = copy.deepcopy(body)
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        there = list(places(body))
        if not there:
            return body
        *way, last = chance.choice(there)
        holder = body
        for key in way:
            holder = holder[key]
        deed = chance.randrange(5)
        if deed == 0:
            del holder[last]
        elif deed == 1 and isinstance(holder, dict):
            holder[
                chance.choice(
                    [
                        "extra",
                        "Model",
                        "__proto__",
                        "\ud800",
                        "",
                        last + "x" if isinstance(last, str) else "y",
                    ]
                )
            ] = chance.choice(VALUES)
        elif deed == 2 and isinstance(holder, list):
            holder.extend(copy.deepcopy(holder[:5]))
        else:
            holder[last] = copy.deepcopy(chance.choice(VALUES))
    return body


def requests(seed: int, count: int) -> Iterator[tuple[str, str, bytes | None, dict[str, str]]]:
    """Method, path, body, headers."""
    chance = random.Random(seed)
    for _ in range(count):
        method, path, body = chance.choice(GOOD)
        kind = {"content-type": "application/json"}
        if isinstance(body, str) or body is None:
            data = (
                None
                if body is None
                else chance.choice([body.encode(), b"\xff\xfe", b"", b"a" * 500, b"\x00" * 9])
            )
            path += chance.choice(
                [
                    "",
                    "x",
                    "%00",
                    "%2e%2e",
                    "&sinks=5",
                    "&sinks=x",
                    "&distill_to=99999",
                    "&policy=none",
                    "&novelty=nan",
                ]
            )
            yield method, path, data, {}
            continue
        text = json.dumps(mutated(body, chance)).encode()
        deed = chance.randrange(12)
        if deed == 0:
            cut = chance.randrange(len(text))
            text = text[:cut] + bytes([chance.randrange(256)]) + text[cut + chance.randrange(3) :]
        elif deed == 1:
            text = text[: chance.randrange(len(text))]
        elif deed == 2:
            text = chance.choice(
                [b"[" * 5000, b'{"a":' * 3000, b"null", b"[]", b'"x"', b"1e999", b"", b"9" * 5000]
            )
        elif deed == 3:
            kind = {
                "content-type": chance.choice(
                    [
                        "text/plain",
                        "application/xml",
                        "multipart/form-data",
                        "application/json; charset=utf-16",
                    ]
                )
            }
        yield method, path, text, kind
