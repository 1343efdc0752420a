"""A server for hours under mixed work: flat memory, file handles and threads, no cross-talk, and a
log without tracebacks.

    python benchmarks/server_soak.py [--clients 32] [--minutes 60] [--pause 0]

Clients with a tiny model chat, stream and leave, upload and leave, fork conversations into named
pots, save, restore, delete and list them, send bad requests, and send so slowly that they are cut
off. The answers of each client's own conversation and pot must be those it got alone. A line in
benchmarks/results/server_soak.jsonl has samples of each ten seconds, and what the log holds.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2 as httpx
import psutil
from machine import keep
from server_process import tiny

STORY = "The keeper hid the letter under the third step. Nobody saw it, but the dog did. "
SAMPLE_S = 10.0
EXPECTED = {200, 201, 400, 404, 405, 408, 409, 413, 421, 429}
SHARED = "shared"
"""A pot that all clients save, restore, replace and delete."""


@contextmanager
def served(model: str, log: Path, *options: str) -> Iterator[tuple[str, psutil.Process]]:
    """Address and process of a server whose log is a file."""
    command = [sys.executable, "-m", "infinipot.cli", "serve", model, "--port", "0", *options]
    with log.open("w") as file:
        child = subprocess.Popen(command, stderr=file)
        try:
            while not (found := re.search(r"http://\S+", log.read_text())):
                if child.poll() is not None:
                    raise SystemExit(f"the server did not start: {log.read_text()}")
                time.sleep(0.1)
            while True:
                try:
                    urllib.request.urlopen(f"{found[0]}/ready").read()
                    break
                except OSError:
                    time.sleep(0.1)
            yield found[0], psutil.Process(child.pid)
            if child.poll() is not None:
                raise SystemExit(f"the server ended by itself: {child.returncode}")
        finally:
            child.terminate()
            child.wait(60)


class Client:
    """One of the clients. Each has a conversation and a pot of its own."""

    def __init__(self, number: int, address: str, count: Counter[str], pause: float) -> None:
        self.number = number
        self.pause = pause
        self.place = urlsplit(address)
        self.count = count
        self.chance = random.Random(number)
        self.http = httpx.Client(base_url=address, timeout=600)
        self.expected: dict[str, str] = {}
        self.wrong: list[str] = []

    def body(self, question: str, **more: Any) -> dict[str, Any]:
        text = f"My secret is {self.number * 7919 % 1009}. {STORY * (1 + self.number % 5)}"
        said = [{"role": "user", "content": f"{text}{question}"}]
        return {"model": "tiny", "messages": said, "max_tokens": 12, **more}

    def send(self, method: str, path: str, **options: Any) -> httpx.Response:
        reply = self.http.request(method, path, **options)
        self.count[f"status {reply.status_code}"] += 1
        full = reply.status_code == 503 and reply.json()["error"]["code"] == "no_room"
        if reply.status_code not in EXPECTED and not full:
            self.wrong.append(f"{method} {path}: {reply.status_code} {reply.text[:200]}")
        if not reply.headers.get("x-request-id"):
            self.wrong.append(f"{method} {path}: no request id")
        return reply

    def same(self, name: str, answer: str) -> None:
        if self.expected.setdefault(name, answer) != answer:
            self.count["cross-talk"] += 1
            self.wrong.append(f"client {self.number}, {name}: {answer!r}")

    def answer(self, name: str, **more: Any) -> None:
        reply = self.send("POST", "/v1/chat/completions", json=self.body("Who?", **more))
        if reply.status_code == 200:
            self.same(name, reply.json()["choices"][0]["message"]["content"])

    # ---------------------------------------------------------------- kinds of work

    def chat(self) -> None:
        self.answer("chat")

    def stream(self) -> None:
        text = ""
        body = self.body("Who?", stream=True)
        with self.http.stream("POST", "/v1/chat/completions", json=body) as reply:
            for line in reply.iter_lines():
                if line.startswith("data: {"):
                    event = json.loads(line[6:])
                    if "error" in event:
                        self.count[f"stream {event['error']['code']}"] += 1
                        return
                    text += event["choices"][0]["delta"].get("content", "")
        if reply.status_code == 200:
            self.same("chat", text)

    def stream_and_leave(self) -> None:
        body = self.body("Why?", stream=True, max_tokens=200)
        with self.http.stream("POST", "/v1/chat/completions", json=body) as reply:
            for line in reply.iter_lines():
                if line.startswith("data: {"):
                    return

    def upload_and_leave(self) -> None:
        head = f"PUT /v1/pots/left{self.number} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900000\r\n\r\n"
        with self.connected() as connection:
            connection.sendall(head.encode() + STORY.encode() * self.chance.randrange(1, 400))
            time.sleep(self.chance.random())

    def ask_and_leave(self) -> None:
        body = json.dumps(self.body("Long?", max_tokens=500)).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        with self.connected() as connection:
            connection.sendall(head.encode() + body)
            time.sleep(self.chance.random())

    def own_pot(self) -> None:
        name = f"own{self.number}"
        text = f"The code is {self.number * 31337 % 9973}. {STORY * 4}"
        made = self.send("POST", "/v1/pots", json={"name": name, "text": text, "replace": True})
        if made.status_code == 201:
            said = [{"role": "user", "content": "What is the code?"}]
            body = {"model": "tiny", "messages": said, "max_tokens": 8, "pot": name}
            reply = self.send("POST", "/v1/chat/completions", json=body)
            if reply.status_code == 200:
                self.same("pot", reply.json()["choices"][0]["message"]["content"])
            self.send("POST", f"/v1/pots/{name}/save")
        self.send("DELETE", f"/v1/pots/{name}")

    def fork(self) -> None:
        label = f"talk{self.number}"
        self.answer("labelled", session=label)
        body = {"name": f"fork{self.number}", "session": label, "replace": True}
        self.send("POST", "/v1/pots", json=body)
        self.send("DELETE", f"/v1/pots/fork{self.number}")

    def shared_pot(self) -> None:
        """Several clients do all of this to one pot."""
        deeds = [
            lambda: self.send("POST", f"/v1/pots/{SHARED}/save"),
            lambda: self.send("POST", f"/v1/pots/{SHARED}/restore"),
            lambda: self.send("DELETE", f"/v1/pots/{SHARED}"),
            lambda: self.send("GET", f"/v1/pots/{SHARED}?places=true"),
            lambda: self.send("GET", "/v1/pots"),
            lambda: self.send("PUT", f"/v1/pots/{SHARED}?replace=true", content=STORY.encode() * 5),
        ]
        for _ in range(3):
            self.chance.choice(deeds)()

    def bad_request(self) -> None:
        kind = {"content-type": "application/json"}
        content = self.chance.choice([b"{", b"[" * 5000, b"null", b"\xff", b'{"model": 1}'])
        self.send("POST", "/v1/chat/completions", content=content, headers=kind)
        self.send("GET", "/v1/nothing%0a")
        self.send("GET", "/v1/models", headers={"Host": "evil.example"})

    def slow(self) -> None:
        """A head or a body, byte by byte, until the server has enough."""
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n{'' if self.chance.random() < 0.5 else chr(13) + chr(10)}"
        with self.connected() as connection:
            connection.sendall(head.encode())
            for _ in range(120):
                connection.sendall(b"x")
                time.sleep(0.1)

    def connected(self) -> socket.socket:
        return socket.create_connection((self.place.hostname, self.place.port), timeout=600)

    def work(self, until: float) -> None:
        deeds = [
            self.chat,
            self.stream,
            self.stream_and_leave,
            self.upload_and_leave,
            self.ask_and_leave,
            self.own_pot,
            self.fork,
            self.shared_pot,
            self.bad_request,
            self.slow,
        ]
        while time.monotonic() < until:
            deed = self.chance.choice(deeds)
            time.sleep(2 * self.pause * self.chance.random())
            try:
                deed()
                self.count[deed.__name__] += 1
            except OSError:
                self.count[f"{deed.__name__} cut off"] += 1
            except httpx.HTTPError as problem:
                self.count[f"{deed.__name__} failed"] += 1
                self.wrong.append(f"{deed.__name__}: {problem!r}")


def sample(process: psutil.Process) -> dict[str, float]:
    return {
        "rss_mb": round(process.memory_info().rss / 1e6, 1),
        "handles": process.num_fds(),
        "threads": process.num_threads(),
    }


def log_counts(text: str) -> dict[str, int]:
    return {
        "lines": text.count("\n"),
        "tracebacks": text.count("Traceback (most recent call last)"),
        "never_retrieved": text.count("never retrieved"),
    }


def quarters(samples: list[dict[str, float]], name: str) -> list[float]:
    """The mean of each quarter of the time."""
    size = max(1, len(samples) // 4)
    return [
        round(statistics.fmean(one[name] for one in samples[start : start + size]), 1)
        for start in range(0, 4 * size, size)
        if samples[start : start + size]
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument(
        "--pause", type=float, default=0, help="mean rest of a client between deeds, in seconds"
    )
    parser.add_argument("--log", type=Path, help="where the server's log goes, to be looked at")
    args = parser.parse_args()
    count: Counter[str] = Counter()
    samples = []
    with tempfile.TemporaryDirectory() as folder:
        model = tiny(Path(folder) / "tiny")
        log = args.log or Path(folder) / "log"
        options = ["--pot-size", "256", "--max-sessions", "12", "--queue", "256"]
        options += ["--pot-dir", f"{folder}/pots", "--client-timeout", "5"]
        with served(model, log, *options) as (address, process):
            clients = [Client(number, address, count, args.pause) for number in range(args.clients)]
            for client in clients:  # alone: these answers are the right ones
                client.chat()
                client.own_pot()
                client.fork()
            until = time.monotonic() + 60 * args.minutes
            threads = [threading.Thread(target=client.work, args=(until,)) for client in clients]
            for thread in threads:
                thread.start()
            while time.monotonic() < until:
                time.sleep(SAMPLE_S)
                samples.append(sample(process))
            for thread in threads:
                thread.join()
            for client in clients:
                client.http.close()
            time.sleep(25)  # what is idle is closed
            rest = sample(process)
        text = log.read_text()
    wrong = [line for client in clients for line in client.wrong]
    counts = log_counts(text)
    keep(
        "server_soak",
        {
            "clients": args.clients,
            "minutes": args.minutes,
            "pause_s": args.pause,
            "work": dict(sorted(count.items())),
            "cross_talk": count["cross-talk"],
            "wrong": len(wrong),
            "log": counts,
            **{f"{name}_by_quarter": quarters(samples, name) for name in rest},
            "afterwards": rest,
        },
    )
    for line in wrong[:20]:
        print(line, file=sys.stderr)
    return int(bool(wrong or counts["tracebacks"] or counts["never_retrieved"]))


if __name__ == "__main__":
    sys.exit(main())
