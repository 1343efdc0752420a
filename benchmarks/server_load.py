"""Many clients at one server: no errors, no cross-talk, no growth; and how much faster eight
answers are made together than one.

    python benchmarks/server_load.py [MODEL] [--clients 32] [--seconds 600]

MODEL: `tiny` (random weights, the default) or whatever `infinipot serve` takes. Every client has a
conversation of its own, again and again: some are long enough to be distilled, some answers are
streamed, and now and then a client leaves in the middle and asks again. A conversation begins with
words of its own, and its answers are first asked for with nobody else there; under load they must
be the same.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2 as httpx
import psutil
from machine import keep
from server_process import served, tiny

STORY = "The keeper hid the letter under the third step. Nobody saw it, but the dog did. "
TURNS = 3


class Clients:
    def __init__(self, address: str, name: str, pot_size: int) -> None:
        self.address = address
        self.name = name
        self.pot_size = pot_size
        self.expected: dict[int, list[str]] = {}
        self.count: Counter[str] = Counter()
        self.peak = 0
        self.wrong: list[str] = []

    def question(self, talk: int, turn: int) -> str:
        return f"My secret is {talk * 7919 % 1009}. " + (
            STORY * (talk % 7) if turn == 0 else f"Turn {turn}: what is it?"
        )

    def ask(
        self,
        http: httpx.Client,
        messages: list[dict[str, str]],
        max_tokens: int,
        stream: bool = False,
        leave: bool = False,
    ) -> str:
        body: dict[str, Any] = {
            "model": self.name,
            "messages": messages,
            "max_tokens": max_tokens,
            "stream": stream,
        }
        if not stream:
            reply = http.post("/v1/chat/completions", json=body)
            reply.raise_for_status()
            said = reply.json()
            self.peak = max(self.peak, said["usage"]["pot"]["peak"])
            return str(said["choices"][0]["message"]["content"])
        text = ""
        with http.stream("POST", "/v1/chat/completions", json=body) as reply:
            reply.raise_for_status()
            for line in reply.iter_lines():
                if line.startswith("data: {"):
                    event = json.loads(line[6:])
                    if "error" in event:
                        raise RuntimeError(event["error"]["message"])
                    text += event["choices"][0]["delta"].get("content", "")
                    if leave and text:
                        return text
        return text

    def talk(self, http: httpx.Client, talk: int, chance: random.Random | None) -> list[str]:
        messages: list[dict[str, str]] = []
        answers = []
        for turn in range(TURNS):
            messages.append({"role": "user", "content": self.question(talk, turn)})
            if chance and chance.random() < 0.1:
                self.ask(http, messages, 200, stream=True, leave=True)  # and asks again
                self.count["left"] += 1
            answer = self.ask(http, messages, 16, stream=bool(chance and chance.random() < 0.5))
            self.count["answers"] += 1
            messages.append({"role": "assistant", "content": answer})
            answers.append(answer)
        return answers

    def client(self, number: int, until: float) -> None:
        chance = random.Random(number)
        with httpx.Client(base_url=self.address, timeout=300) as http:
            while time.monotonic() < until:
                try:
                    answers = self.talk(http, number, chance)
                    self.count["conversations"] += 1
                    if answers != self.expected[number]:
                        self.count["cross-talk"] += 1
                        self.wrong.append(
                            f"conversation {number}: {answers} instead of {self.expected[number]}"
                        )
                except (httpx.HTTPError, RuntimeError) as problem:
                    self.count["errors"] += 1
                    self.wrong.append(repr(problem))


async def answer(address: str, body: dict[str, Any]) -> tuple[float, float]:
    """When the first piece of a streamed answer came, and when its end did. The bytes are only
    counted, in one thread for all clients: what a client makes of them takes cores from the server,
    and is no figure of its."""
    place = urlsplit(address)
    content = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(content)}\r\n"
    writer.write(f"{head}Content-Type: application/json\r\n\r\n".encode() + content)
    said = b""
    began = 0.0
    end = 0.0
    while block := await reader.read(1 << 16):
        said = said + block
        end = time.perf_counter()
        if not began and said.count(b"data: ") > 1:  # the first only names the role
            began = end
    writer.close()
    if b"data: [DONE]" not in said:
        raise SystemExit(f"an answer was not complete: {said[-300:]!r}")
    return began, end


def speed(address: str, name: str, clients: int, tokens: int) -> float:
    """Tokens per second of all answers together, between their first tokens and their last."""

    async def all_at_once() -> list[tuple[float, float]]:
        asked = [
            {"role": "user", "content": f"Tell me story {number}."} for number in range(clients)
        ]
        return await asyncio.gather(
            *(
                answer(
                    address,
                    {"model": name, "messages": [one], "max_tokens": tokens, "stream": True},
                )
                for one in asked
            )
        )

    times = asyncio.run(all_at_once())
    return clients * tokens / (max(end for _, end in times) - min(start for start, _ in times))


def slope(samples: list[tuple[float, float]]) -> float:
    """Bytes per second, least squares, after the first quarter."""
    late = samples[len(samples) // 4 :]
    return statistics.linear_regression([at for at, _ in late], [size for _, size in late]).slope


def growth(samples: list[tuple[float, float]]) -> float:
    """Bytes by which the last quarter is above the second, on average."""
    quarter = len(samples) // 4
    second = samples[quarter : 2 * quarter]
    last = samples[-quarter:]
    return statistics.fmean(size for _, size in last) - statistics.fmean(size for _, size in second)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="tiny")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--pot-size", type=int, default=256)
    parser.add_argument(
        "--tokens", type=int, default=128, help="tokens of each answer when speed is measured"
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=7,
        help="how often speed is measured, one client and eight in turn; medians count",
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if args.model == "tiny":
            model = tiny(Path(folder) / "tiny")
        else:
            model = args.model
        options = [
            "--pot-size",
            str(args.pot_size),
            "--max-sessions",
            "16",
            "--queue",
            "256",
            "--pot-dir",
            f"{folder}/pots",
        ]
        with served(model, *options) as (address, pid):
            clients = Clients(
                address, httpx.get(f"{address}/v1/models").json()["data"][0]["id"], args.pot_size
            )
            speed(address, clients.name, 8, 32)  # warm up
            rounds = [
                {count: speed(address, clients.name, count, args.tokens) for count in (1, 8)}
                for _ in range(args.rounds)
            ]
            speeds = {count: statistics.median(one[count] for one in rounds) for count in (1, 8)}
            print(
                f"one client {speeds[1]:,.0f} tok/s, eight {speeds[8]:,.0f} tok/s: x {speeds[8] / speeds[1]:.2f}",
                file=sys.stderr,
            )
            with httpx.Client(base_url=address, timeout=300) as http:
                clients.expected = {
                    talk: clients.talk(http, talk, None) for talk in range(args.clients)
                }
            clients.count.clear()
            until = time.monotonic() + args.seconds
            threads = [
                threading.Thread(target=clients.client, args=(number, until))
                for number in range(args.clients)
            ]
            for thread in threads:
                thread.start()
            samples = []
            process = psutil.Process(pid)
            while time.monotonic() < until:
                time.sleep(1)
                samples.append((time.monotonic(), process.memory_info().rss))
            for thread in threads:
                thread.join()
    result = {
        "model": args.model,
        "clients": args.clients,
        "seconds": args.seconds,
        "pot_size": args.pot_size,
        "peak_entries": clients.peak,
        **{
            name: clients.count[name]
            for name in ("answers", "conversations", "left", "errors", "cross-talk")
        },
        "rss_bytes_first_last": [samples[len(samples) // 4][1], samples[-1][1]],
        "rss_slope_kib_per_minute": round(slope(samples) * 60 / 1024, 1),
        "rss_growth_kib_second_to_last_quarter": round(growth(samples) / 1024, 1),
        "decode_tps": {str(count): round(tps, 1) for count, tps in speeds.items()},
        "eight_over_one": round(speeds[8] / speeds[1], 2),
        "eight_over_one_by_round": [round(one[8] / one[1], 2) for one in rounds],
    }
    keep("server_load", result)
    for line in clients.wrong[:5]:
        print(line, file=sys.stderr)
    return int(
        bool(clients.count["errors"] or clients.count["cross-talk"] or clients.peak > args.pot_size)
    )


if __name__ == "__main__":
    sys.exit(main())
