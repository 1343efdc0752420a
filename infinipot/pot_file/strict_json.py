"""JSON from a file that anybody may have written."""

from __future__ import annotations

import json
from typing import Any

MOST_VALUES = 200_000
"""Values in one text. A parsed value takes many times the memory of its text."""


def parse(text: str | bytes) -> Any:
    """The value of a JSON text. Raises ValueError or RecursionError.

    Refuses names that an object has twice, numbers that are none (NaN, Infinity), halves of
    surrogate pairs, and more than MOST_VALUES values.
    """
    raw = text
    if isinstance(raw, str):
        raw = raw.encode()
    # outside of strings, each value follows one of these characters
    outside = b"".join(raw.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')[::2])
    count = len(outside) - len(outside.translate(None, b"[{,:"))
    if count > MOST_VALUES:
        raise ValueError(f"it has about {count:,} values: {MOST_VALUES:,} are allowed")
    value = json.loads(raw, object_pairs_hook=_unique, parse_constant=_refuse)
    json.dumps(value, ensure_ascii=False).encode()  # raises for halves of surrogate pairs
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("an object has two fields of one name")
    return fields


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not a number")
