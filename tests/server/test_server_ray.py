"""Two replicas on a Ray cluster of one machine, from the command line: `make ray` runs this."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2 as httpx
import openai
import psutil
import pytest
from commands import save_tiny
from live import free_port

pytest.importorskip("ray.serve", reason="Ray Serve is not installed: pip install 'infinipot[ray]'")

LONG = "The keeper hid the letter under the third step. Nobody saw it, but the dog did. " * 40
NAMES = ("Anna", "Ben", "Carl", "Dora", "Emil", "Fay")


class Cluster:
    """A running command, and its clients."""

    def __init__(self, child: subprocess.Popen[str], port: int, pots: Path) -> None:
        self.child, self.pots = child, pots
        self.http = httpx.Client(
            base_url=f"http://127.0.0.1:{port}", timeout=60, headers={"authorization": "Bearer key"}
        )
        self.openai = openai.OpenAI(
            base_url=f"http://127.0.0.1:{port}/v1", api_key="key", max_retries=0, timeout=60
        )

    def chat(self, *said: str, stream: bool = False, max_tokens: int = 8, **extra: str) -> Any:
        messages = [
            {"role": ("user", "assistant")[number % 2], "content": text}
            for number, text in enumerate(said)
        ]
        return self.openai.chat.completions.create(
            model="model", messages=messages, max_tokens=max_tokens, stream=stream, extra_body=extra
        )

    def gauge(self, name: str) -> dict[str, float]:
        """A number of every replica, by the replica's name."""
        found: dict[str, float] = defaultdict(float)
        for line in self.http.get("/metrics").text.splitlines():
            if line.startswith(name + "{"):
                found[line.split('replica="')[1].split('"')[0]] = float(line.split()[-1])
        return found

    def replicas(self) -> list[psutil.Process]:
        everything = psutil.Process(self.child.pid).children(recursive=True)
        return [
            process
            for process in everything
            if "ServeReplica:infinipot:replica" in " ".join(process.cmdline())
        ]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder, port = tmp_path_factory.mktemp("ray"), free_port()
    (folder / "model").mkdir()
    save_tiny(folder / "model")
    options = [
        "--ray",
        "local",
        "--replicas",
        "2",
        "--port",
        str(port),
        "--pot-dir",
        "pots",
        "--api-key",
        "key",
        "--device",
        "cpu",
    ]
    limits = ["--pot-size", "256", "--max-sessions", "3", "--max-body-mb", "1"]
    child = subprocess.Popen(
        [sys.executable, "-m", "infinipot.cli", "serve", "model", *options, *limits],
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stderr is not None
        lines = []
        while not (lines and "is ready" in lines[-1]):
            lines.append(child.stderr.readline())
            assert lines[-1], "".join(lines)
        yield Cluster(child, port, folder / "pots")
    finally:
        if child.poll() is None:
            child.send_signal(signal.SIGINT)
            child.wait(60)


@pytest.fixture(scope="module")
def talks(cluster: Cluster) -> dict[str, list[str]]:
    """Six conversations of three turns, side by side."""

    def turn(said: list[str]) -> int:
        reply = cluster.chat(*said)
        said.append(reply.choices[0].message.content)
        return reply.usage.prompt_tokens_details.cached_tokens

    said = {name: [f"I am {name}. {LONG[:200]}"] for name in NAMES}
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(turn, said.values())) == [0] * len(NAMES)
        for question in ("Who am I?", "And who are you?"):
            for one in said.values():
                one.append(question)
            assert min(pool.map(turn, said.values())) > 50  # each came back to where its pot is
    return said


def test_conversations_return_to_their_replicas(
    cluster: Cluster, talks: dict[str, list[str]]
) -> None:
    read = cluster.gauge("infinipot_tokens_read_total")
    assert len(read) == 2
    assert min(read.values()) > 100  # both have worked
    replies = [cluster.chat("Hello", session=name) for name in NAMES]
    more = [
        cluster.chat("Hello", reply.choices[0].message.content, "More", session=name)
        for name, reply in zip(NAMES, replies, strict=True)
    ]
    assert all(reply.usage.prompt_tokens_details.cached_tokens > 0 for reply in more)


def test_a_named_pot_is_read_once_and_asked_everywhere(cluster: Cluster) -> None:
    about = cluster.http.put("/v1/pots/book", content=LONG.encode()).json()
    assert about["tokens_read"] > 500
    before = cluster.gauge("infinipot_tokens_generated_total")
    replies = [cluster.chat(f"What did the dog see on day {day}?", pot="book") for day in range(8)]
    assert all(
        reply.usage.prompt_tokens_details.cached_tokens >= about["tokens_read"] for reply in replies
    )
    after = cluster.gauge("infinipot_tokens_generated_total")
    assert all(after[name] > before[name] for name in after)
    assert [pot["name"] for pot in cluster.http.get("/v1/pots").json()["data"]] == ["book"]


def test_a_pot_that_is_replaced_or_deleted_is_so_everywhere(cluster: Cluster) -> None:
    first = cluster.http.put("/v1/pots/page", content=LONG.encode()).json()["tokens_read"]
    for day in range(6):
        assert (
            cluster.chat(f"On day {day}?", pot="page").usage.prompt_tokens_details.cached_tokens
            >= first
        )
    second = cluster.http.put("/v1/pots/page?replace=true", content=LONG[:400].encode()).json()[
        "tokens_read"
    ]
    for day in range(6):
        cached = cluster.chat(
            f"On day {day}?", pot="page"
        ).usage.prompt_tokens_details.cached_tokens
        assert second <= cached < first
    assert cluster.http.delete("/v1/pots/page").json()["deleted"]
    for day in range(6):
        with pytest.raises(openai.NotFoundError, match="no pot 'page'"):
            cluster.chat(f"On day {day}?", pot="page")


def test_a_pot_that_is_not_saved_is_asked_where_it_is(cluster: Cluster) -> None:
    about = cluster.http.put(
        "/v1/pots/fleeting?expendable=true", content=LONG[:400].encode()
    ).json()
    assert not (cluster.pots / "fleeting.pot.safetensors").exists()
    for day in range(6):
        reply = cluster.chat(f"On day {day}?", pot="fleeting")
        assert reply.usage.prompt_tokens_details.cached_tokens >= about["tokens_read"]
    cluster.http.delete("/v1/pots/fleeting")


def test_a_conversation_is_named_for_all(cluster: Cluster) -> None:
    cluster.chat("Remember the third step", session="mine")
    assert (
        cluster.http.post("/v1/pots", json={"name": "kept", "session": "mine"}).status_code == 201
    )
    for day in range(6):
        assert (
            cluster.chat(f"And on day {day}?", pot="kept").usage.prompt_tokens_details.cached_tokens
            > 0
        )
    cluster.http.delete("/v1/pots/kept")


def test_streams_come_piece_by_piece_and_can_be_left(cluster: Cluster) -> None:
    whole = cluster.chat("Tell me", max_tokens=30).choices[0].message.content
    pieces = [
        chunk.choices[0].delta.content or ""
        for chunk in cluster.chat("Tell me", max_tokens=30, stream=True)
    ]
    assert "".join(pieces) == whole
    assert len([piece for piece in pieces if piece]) > 3
    stream = cluster.chat("Tell me", max_tokens=100_000, stream=True)
    next(iter(stream))
    assert sum(cluster.gauge("infinipot_running").values()) == 1
    stream.close()
    with pytest.raises(openai.APITimeoutError):
        cluster.openai.with_options(timeout=0.5).chat.completions.create(
            model="model", messages=[{"role": "user", "content": "Tell me"}], max_tokens=100_000
        )
    until = time.monotonic() + 20
    while sum(cluster.gauge("infinipot_running").values()):
        assert time.monotonic() < until
        time.sleep(0.1)


def test_refusals_come_through(cluster: Cluster) -> None:
    assert (
        cluster.http.get("/v1/models", headers={"authorization": "Bearer wrong"}).status_code == 401
    )
    assert (
        cluster.http.get("/v1/pots", headers={"authorization": "Bearer wrong"}).status_code == 401
    )
    reply = cluster.http.put("/v1/pots/huge", content=b"x" * (1 << 20) + b"y")
    assert reply.status_code == 413
    assert "--max-body-mb" in reply.json()["error"]["message"]
    assert cluster.http.post("/v1/chat/completions", content=b"{").status_code == 400
    assert cluster.http.get("/v1/pots/nothing").json()["error"]["code"] == "pot_not_found"
    assert cluster.http.get("/").status_code == cluster.http.get("/health").status_code == 200


def test_a_replica_that_is_killed_takes_nothing_that_was_on_disk(
    cluster: Cluster, talks: dict[str, list[str]]
) -> None:
    there = cluster.http.put("/v1/pots/safe", content=LONG.encode()).json()["tokens_read"]
    assert len(cluster.replicas()) == 2
    victim = cluster.replicas()[0]
    victim.kill()
    for day in range(6):
        assert (
            cluster.chat(
                f"What on day {day}?", pot="safe"
            ).usage.prompt_tokens_details.cached_tokens
            >= there
        )
    cached = [
        cluster.chat(*said, "Again?").usage.prompt_tokens_details.cached_tokens
        for said in talks.values()
    ]
    assert (
        sum(count > 50 for count in cached) >= len(talks) - 3
    )  # all but those that only the killed one's memory held
    until = time.monotonic() + 60
    while len(cluster.replicas()) < 2:  # and another one begins
        assert time.monotonic() < until
        time.sleep(0.2)


def test_ending_writes_what_is_in_memory(cluster: Cluster) -> None:
    cluster.chat("The very last thing", session="last")
    before = len(list((cluster.pots / "conversations").iterdir()))
    cluster.child.send_signal(signal.SIGTERM)
    assert cluster.child.wait(60) == 0
    assert len(list((cluster.pots / "conversations").iterdir())) > before
