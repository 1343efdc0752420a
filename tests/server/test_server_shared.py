"""Servers of the same model that share a folder of pots, as the replicas of a cluster do."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from live import Live, live

LONG = "The keeper hid the letter under the third step. Nobody saw it, but the dog did. " * 12


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[Live, Live]]:
    settings = {"max_sessions": 2, "pot_dir": tmp_path, "shared": True}
    with live(settings) as one, live(settings) as other:
        yield one, other


def cached(here: Live, *said: str, **options: str) -> int:
    return here.chat(*said, **options).usage.prompt_tokens_details.cached_tokens


def test_named_pots_are_everybodys_at_once(two: tuple[Live, Live]) -> None:
    one, other = two
    first = one.http.post("/v1/pots", json={"name": "book", "text": LONG}).json()["tokens_read"]
    assert cached(other, "Who?", pot="book") >= first
    assert (
        other.http.post("/v1/pots", json={"name": "book", "text": "x"}).json()["error"]["code"]
        == "pot_exists"
    )
    second = other.http.put("/v1/pots/book?replace=true", content=LONG[:200].encode()).json()[
        "tokens_read"
    ]
    assert second <= cached(one, "Who?", pot="book") < first
    assert (
        one.chat("Who?", pot="book").choices[0].message.content
        == other.chat("Who?", pot="book").choices[0].message.content
    )
    one.chat("Remember me", session="mine")
    one.http.post("/v1/pots", json={"name": "kept", "session": "mine"})
    assert cached(other, "And now?", pot="kept") > 0
    one.http.delete("/v1/pots/book")
    assert [pot["name"] for pot in other.http.get("/v1/pots").json()["data"]] == ["kept"]
    with pytest.raises(openai.NotFoundError):
        other.chat("Who?", pot="book")


def test_conversations_on_disk_are_found_by_the_other(two: tuple[Live, Live]) -> None:
    one, other = two
    said = [f"I am Anna. {LONG[:300]}"]
    said.append(one.chat(*said).choices[0].message.content)
    for name in ("Ben", "Carl", "Dora"):  # these take its place in memory
        one.chat(f"I am {name}")
    assert cached(other, *said, "Who am I?") > 300
    said += ["Who am I?", other.chat(*said, "Who am I?").choices[0].message.content]
    assert cached(one, *said, "Again?") > 300


def test_what_another_server_is_writing_is_left_alone(tmp_path: Path) -> None:
    fresh, old = tmp_path / ".a.1.b.part", tmp_path / ".c.1.d.part"
    for path in (fresh, old):
        path.write_bytes(b"x")
    os.utime(old, times=(time.time() - 7200,) * 2)
    with live({"pot_dir": tmp_path, "shared": True}):
        assert fresh.exists()
        assert not old.exists()
