"""How fast a server answers many clients: times to the first token, between tokens, tokens/s, memory.

    python benchmarks/serving.py MODEL_OR_URL [--clients 1,8,32,64] [--prompt-tokens 4500]
        [--output-tokens 128] [--turns 2] [--request-rate R] [--upload-words N] [--check] [--out FILE]

A URL is that of any OpenAI-compatible server (give `--model` if it has several). A model is served
by `infinipot serve`, with --serve-options; `tiny` has random weights, and `fake` is no model at all:
it shows what this client can take. Each client has a conversation of its own. All begin at once, or
at random times, R a second on average. A turn sends the whole conversation and a new message. Texts
are random words, so no two clients share any. Each holds a code that no other client may be told.
--upload-words: a text of so many words is read into a named pot of `infinipot serve` meanwhile; the
same without it says how long answers wait for it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import shlex
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chat_stream import Answer, Server
from server_process import served, tiny

SYLLABLES = [a + b for a in "bdfgklmnprstvz" for b in ("a", "e", "i", "o", "u", "an", "el", "or")]
SAMPLE_S = 1.0
"""How often memory is looked at."""
SHORT = 50
LONG = 450
"""Words of the two requests that measure tokens per word."""


# ---------------------------------------------------------------- what the clients say


def words(count: int, chance: random.Random) -> str:
    return " ".join("".join(chance.choices(SYLLABLES, k=2)) for _ in range(count))


class Client:
    """A conversation, and its answers so far. What it says is made before anything is measured."""

    def __init__(self, number: int, plan: Plan, seed: str) -> None:
        self.number = number
        self.chance = random.Random(f"{seed} {number}")
        self.code = str(self.chance.randrange(10**7, 10**8))
        self.texts = [self._text(turn, plan) for turn in range(plan.turns)]
        self.answers: list[Answer] = []

    async def talk(self, server: Server, plan: Plan) -> None:
        """All turns, one after the other. An error ends the conversation."""
        messages: list[dict[str, str]] = []
        for text in self.texts:
            messages.append({"role": "user", "content": text})
            answer = await server.chat(plan.body(messages))
            self.answers.append(answer)
            if answer.error is not None:
                return
            messages.append({"role": "assistant", "content": answer.text})

    def _text(self, turn: int, plan: Plan) -> str:
        if turn == 0:
            text = f"The code of client {self.number} is {self.code}. " + words(
                plan.words(plan.prompt_tokens), self.chance
            )
        else:
            text = words(plan.words(plan.turn_tokens), self.chance)
        if plan.check and turn == plan.turns - 1:
            text += f". What is the code of client {self.number}?"
        return text


@dataclass
class Plan:
    """What all clients do. template, per_word: the tokens of a message are template + words *
    per_word."""

    model: str
    prompt_tokens: int
    turn_tokens: int
    output_tokens: int
    turns: int
    check: bool
    more: dict[str, Any]
    template: float = 0.0
    per_word: float = 1.0

    def words(self, tokens: int) -> int:
        return max(1, round((tokens - self.template) / self.per_word))

    def body(self, messages: list[dict[str, str]]) -> dict[str, Any]:
        about = {"model": self.model, "messages": messages, "max_tokens": self.output_tokens}
        return {"temperature": 0, **about, **self.more}

    async def calibrate(self, server: Server, seed: str) -> None:
        """Measure how many tokens a word has, by two short requests."""
        chance = random.Random(seed)
        tokens = []
        for count in (SHORT, LONG):
            message = {"role": "user", "content": words(count, chance)}
            answer = await server.chat({**self.body([message]), "max_tokens": 1})
            if answer.error is not None or "prompt_tokens" not in answer.usage:
                raise SystemExit(f"the server does not answer: {answer.error or 'no usage'}")
            tokens.append(answer.usage["prompt_tokens"])
        self.per_word = (tokens[1] - tokens[0]) / (LONG - SHORT)
        self.template = tokens[0] - SHORT * self.per_word


async def load(server: Server, plan: Plan, clients: list[Client], rate: float | None) -> None:
    """All conversations. rate: how many begin in a second, on average; None: all at once."""
    chance = random.Random(len(clients))
    tasks = []
    for client in clients:
        tasks.append(asyncio.create_task(client.talk(server, plan)))
        if rate is not None:
            await asyncio.sleep(chance.expovariate(rate))
    await asyncio.gather(*tasks)


# ---------------------------------------------------------------- figures


def percentile(values: list[float], percent: float) -> float | None:
    """The nearest of the values; None if there are none."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def covered_s(spans: list[tuple[float, float]]) -> float:
    """Seconds that are in at least one of the spans."""
    total = 0.0
    reached = float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def turn_figures(answers: list[Answer]) -> dict[str, Any]:
    """The figures of one turn of all clients, or of all turns. Seconds, tokens/s."""
    whole = [one for one in answers if one.error is None and one.times]
    first = [one.times[0] - one.asked for one in whole]
    gaps = [b - a for one in whole for a, b in zip(one.times, one.times[1:], strict=False)]
    spans = [(one.times[0], one.times[-1]) for one in whole]
    spent = covered_s(spans)
    speeds = [
        (one.tokens - 1) / (one.times[-1] - one.times[0])
        for one in whole
        if one.times[-1] > one.times[0]
    ]
    together = sum(one.tokens - 1 for one in whole) / spent if spent else None
    return {
        "answers": len(whole),
        "prompt_tokens": statistics.mean(one.usage.get("prompt_tokens", 0) for one in whole)
        if whole
        else None,
        "cached_tokens": sum(one.cached_tokens for one in whole),
        "output_tokens": sum(one.tokens for one in whole),
        "ttft_s": {"median": percentile(first, 50), "p99": percentile(first, 99)},
        "inter_token_s": {"median": percentile(gaps, 50), "p99": percentile(gaps, 99)},
        "client_tps": percentile(speeds, 50),
        "together_tps": together,
    }


def cross_talk(clients: list[Client]) -> dict[str, int]:
    """Answers that contain another client's code, and last answers that contain the client's own."""
    codes = {client.code for client in clients}
    foreign = sum(
        any(code in answer.text for code in codes - {client.code})
        for client in clients
        for answer in client.answers
    )
    own = sum(client.code in client.answers[-1].text for client in clients if client.answers)
    return {"foreign_codes": foreign, "own_codes": own}


# ---------------------------------------------------------------- the server's memory


class Memory:
    """The most memory of a server while it is watched. pid: None if it is not known."""

    def __init__(self, pid: int | None) -> None:
        self.pid = pid
        self.rss_bytes: int | None = None
        self.device_mib: int | None = None
        self._has_gpu = True
        self._ended = threading.Event()

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        thread = threading.Thread(target=self._watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()

    def _watch(self) -> None:
        while True:
            with contextlib.suppress(OSError):
                self._look()
            if self._ended.wait(SAMPLE_S):
                return

    def _look(self) -> None:
        if self.pid is not None:
            status = Path(f"/proc/{self.pid}/status").read_text()
            line = next(one for one in status.splitlines() if one.startswith("VmRSS:"))
            self.rss_bytes = max(self.rss_bytes or 0, int(line.split()[1]) * 1024)
        if self._has_gpu:
            self._has_gpu = False  # unless nvidia-smi answers
            command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
            said = subprocess.run(command, capture_output=True, text=True)
            if said.returncode == 0:
                used = sum(int(line) for line in said.stdout.split() if line.isdigit())
                self.device_mib = max(self.device_mib or 0, used)
                self._has_gpu = True


# ---------------------------------------------------------------- one run


class Upload:
    """A text that the server reads into a named pot while the clients talk. seconds: how long that
    took; None without one."""

    POT = "serving-benchmark"
    LEAD_S = 1.0
    """Seconds of reading before the clients begin."""

    def __init__(self, server: Server, text: str) -> None:
        self.server = server
        self.text = text
        self.seconds: float | None = None

    def _request(self, method: str, body: bytes | None = None) -> None:
        headers = {"Content-Type": "text/plain"}
        if self.server.key:
            headers["Authorization"] = f"Bearer {self.server.key}"
        url = f"{self.server.url}/v1/pots/{self.POT}"
        request = urllib.request.Request(url, body, headers, method=method)
        with urllib.request.urlopen(request, timeout=self.server.timeout_s) as reply:
            reply.read()

    def _send(self) -> None:
        started = time.perf_counter()
        self._request("PUT", self.text.encode())
        self.seconds = time.perf_counter() - started

    @contextlib.contextmanager
    def going_on(self) -> Iterator[None]:
        if not self.text:
            yield
            return
        thread = threading.Thread(target=self._send, daemon=True)
        thread.start()
        time.sleep(self.LEAD_S)
        yield
        thread.join()
        self._request("DELETE")


def measure(server: Server, plan: Plan, count: int, args: argparse.Namespace) -> dict[str, Any]:
    """One run with `count` clients."""
    clients = [Client(number, plan, f"{args.seed} {count}") for number in range(1, count + 1)]
    memory = Memory(args.pid)
    upload = Upload(server, words(args.upload_words, random.Random(f"{args.seed} {count} upload")))
    cpu = time.process_time()
    with memory.watched(), upload.going_on():
        started = time.perf_counter()
        asyncio.run(load(server, plan, clients, args.request_rate))
        seconds = time.perf_counter() - started
    cpu = time.process_time() - cpu
    turns = [
        [client.answers[turn] for client in clients if len(client.answers) > turn]
        for turn in range(plan.turns)
    ]
    answers = [answer for turn in turns for answer in turn]
    return {
        "clients": count,
        "seconds": seconds,
        "turns": [turn_figures(turn) for turn in turns],
        "all": turn_figures(answers),
        "errors": dict(Counter(one.error for one in answers if one.error is not None)),
        "cross_talk": cross_talk(clients),
        "rss_bytes": memory.rss_bytes,
        "device_mib": memory.device_mib,
        "upload_s": upload.seconds,
        "benchmark_cpu": cpu / seconds,
        "events_per_cpu_s": sum(len(one.times) for one in answers) / cpu,
    }


# ---------------------------------------------------------------- the table


def shown(value: float | None, scale: float = 1, digits: int = 2) -> str:
    return "-" if value is None else f"{value * scale:,.{digits}f}"


def shown_pair(pair: dict[str, float | None], scale: float, digits: int) -> str:
    return " / ".join(shown(pair[name], scale, digits) for name in ("median", "p99"))


COLUMNS: dict[str, Callable[[dict[str, Any]], str]] = {
    "prompt": lambda x: shown(x["prompt_tokens"], digits=0),
    "cached": lambda x: shown(x["cached_tokens"], digits=0),
    "TTFT s, median / p99": lambda x: shown_pair(x["ttft_s"], 1, 2),
    "between tokens ms": lambda x: shown_pair(x["inter_token_s"], 1000, 1),
    "tok/s, one": lambda x: shown(x["client_tps"], digits=1),
    "together": lambda x: shown(x["together_tps"], digits=0),
}


def rows_of(run: dict[str, Any]) -> list[list[str]]:
    """A line for each turn. The first also has what belongs to the whole run."""
    rows = []
    for number, figures in enumerate(run["turns"], 1):
        rest = ["", "", "", ""]
        if number == 1:
            errors = ", ".join(f"{count} x {kind}" for kind, count in run["errors"].items())
            memory = [run["rss_bytes"] and run["rss_bytes"] / 2**20, run["device_mib"]]
            rest = [
                shown(run["seconds"], digits=1),
                " / ".join(shown(one, digits=0) for one in memory),
                str(run["cross_talk"]["foreign_codes"]),
                errors or "none",
            ]
        cells = [column(figures) for column in COLUMNS.values()]
        rows.append([str(run["clients"]), str(number), *cells, *rest])
    return rows


def show(runs: list[dict[str, Any]]) -> None:
    heads = ["clients", "turn", *COLUMNS, "run s", "RSS / device MiB", "foreign codes", "errors"]
    rows = [row for run in runs for row in rows_of(run)]
    try:
        from rich.console import Console
        from rich.table import Table
    except ModuleNotFoundError:
        for row in (heads, *rows):
            print("\t".join(row))
        return
    table = Table(*heads)
    for row in rows:
        table.add_row(*row)
    console = Console()
    Console(width=console.width if console.is_terminal else 180).print(table)


# ---------------------------------------------------------------- which server


@contextlib.contextmanager
def fake() -> Iterator[tuple[str, int]]:
    """Address and process id of a server that streams as fast as it can."""
    script = Path(__file__).with_name("fake_server.py")
    child = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    try:
        yield child.stdout.readline().strip(), child.pid
    finally:
        child.terminate()
        child.wait(30)


@contextlib.contextmanager
def target(args: argparse.Namespace) -> Iterator[tuple[str, int | None]]:
    """Address of the server, and its process id if it is known."""
    options = shlex.split(args.serve_options)
    if args.url or args.target.startswith("http"):
        yield (args.url or args.target).rstrip("/").removesuffix("/v1"), args.pid
    elif args.target == "fake":
        with fake() as place:
            yield place
    elif args.target == "tiny":
        with (
            tempfile.TemporaryDirectory() as folder,
            served(tiny(Path(folder) / "tiny"), *options) as place,
        ):
            yield place
    else:
        with served(args.target, *options) as place:
            yield place


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("target", nargs="?", default="tiny", help="a model, a URL, tiny, or fake")
    add("--url", help="the address of a server, as http://host:port")
    add("--model", help="the model's name at the server; the first one by default")
    add("--clients", default="1,8,32,64", help="one run for each of these numbers")
    add("--prompt-tokens", type=int, default=4500, help="of the first message")
    add("--turn-tokens", type=int, default=100, help="of each further message")
    add("--output-tokens", type=int, default=128, help="of each answer, unless it ends by itself")
    add("--turns", type=int, default=2)
    add("--request-rate", type=float, metavar="R", help="conversations that begin in a second")
    add("--upload-words", type=int, default=0, help="words of a text that is read meanwhile")
    add("--check", action="store_true", help="the last message asks for the client's own code")
    add("--body", type=json.loads, default={}, help="more fields, as '{\"ignore_eos\": true}'")
    add("--serve-options", default="", help="options of `infinipot serve`, as one text")
    add("--api-key")
    add("--timeout", type=float, default=600, help="seconds that an answer may take")
    add("--pid", type=int, help="the server's process, to measure its memory")
    add("--seed", help="of the texts; by default, other texts in each run")
    add("--out", type=Path, help="add a JSON line for each run to this file")
    args = parser.parse_args()
    args.seed = args.seed or str(time.time_ns())
    return args


def keep(run: dict[str, Any], plan: Plan, args: argparse.Namespace) -> None:
    from infinipot.machine import machine

    about = {name: value for name, value in vars(args).items() if name not in ("api_key", "out")}
    line = json.dumps({**run, "model": plan.model, "arguments": about, "machine": machine()})
    with args.out.open("a") as file:
        file.write(line + "\n")


def main() -> int:
    args = arguments()
    runs = []
    with target(args) as (url, pid):
        args.pid = pid
        server = Server(url, args.api_key, args.timeout)
        plan = Plan(
            model=args.model or asyncio.run(server.model()),
            prompt_tokens=args.prompt_tokens,
            turn_tokens=args.turn_tokens,
            output_tokens=args.output_tokens,
            turns=args.turns,
            check=args.check,
            more=args.body,
        )
        asyncio.run(plan.calibrate(server, args.seed))
        for count in map(int, args.clients.split(",")):
            run = measure(server, plan, count, args)
            runs.append(run)
            if args.out is not None:
                keep(run, plan, args)
    show(runs)
    share = max(run["benchmark_cpu"] for run in runs)
    print(f"This benchmark itself took at most {share:.0%} of a core.")
    return int(any(run["errors"] or run["cross_talk"]["foreign_codes"] for run in runs))


if __name__ == "__main__":
    sys.exit(main())
