"""The same GGUF file read and answered from by llama.cpp, by stock transformers, and here, on the same
cores.

    python benchmarks/beside_llamacpp.py MODEL.gguf [--lengths 1024,8192] [--answer 16] [--threads 1]
    [--rounds 2] [--pot-size 2048] [--by llama.cpp]
    python benchmarks/beside_llamacpp.py MODEL.gguf --past-window

llama-cpp-python has to be importable; LLAMA_CPP_LIB_PATH names the folder of libllama, if it is built
apart. Each length is read and so many tokens are answered in turns, by llama.cpp, by stock transformers
in float32, and by a pot with weights in float32 and in the file's own bits. Each time is that of a
process of its own, after a few tokens to warm up. Times are those of the processor, so that other
programs disturb them less: with several threads they are the sum over all cores. Memory is the peak of
the process, with the libraries, and with llama.cpp's pages of the file. --past-window: what both do
with a text that is longer than a window of 256, and with an answer that reaches its end.
"""

from __future__ import annotations

import argparse
import functools
import importlib.metadata
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from machine import keep

import infinipot
from infinipot.compat import cache_argument

WARM_UP = 32
"""Tokens read before the time counts."""
WINDOW = 256
LONGER = 300
"""Tokens of a text that does not fit into the window."""
NEAR = 240
"""Tokens of a text behind which an answer of ANSWER tokens reaches the window's end."""
ANSWER = 64
Times = tuple[float, float]
"""Seconds of reading, and of a token of the answer."""


def text(tokens: int) -> list[int]:
    return [7919 * number % 40_000 for number in range(tokens)]


def seconds(work: Callable[[], Any]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def times(read: Callable[[list[int]], Any], ids: list[int], answer: int) -> Times:
    """Of a text that is read at once, and of tokens one after the other, which stand for an answer."""
    return seconds(lambda: read(ids)), seconds(lambda: [read([i]) for i in ids[:answer]]) / answer


def by_llamacpp(args: argparse.Namespace, ids: list[int]) -> Times:
    import llama_cpp

    model = llama_cpp.Llama(
        args.model,
        n_ctx=len(ids) + args.answer,
        n_threads=args.threads,
        n_threads_batch=args.threads,
        verbose=False,
    )
    model.eval(ids[:WARM_UP])
    model.reset()
    return times(model.eval, ids, args.answer)


@torch.no_grad()
def by_stock(args: argparse.Namespace, ids: list[int]) -> Times:
    """The same weights, unpacked, without a pot."""
    model, _ = infinipot.load(args.model, device="cpu", dtype="float32")

    def reading() -> Callable[[list[int]], Any]:
        cache = {cache_argument(model): transformers.DynamicCache(config=model.config)}
        return lambda some: model(torch.tensor([some]), logits_to_keep=1, **cache)

    reading()(ids[:WARM_UP])
    return times(reading(), ids, args.answer)


def in_a_pot(args: argparse.Namespace, ids: list[int], weights: str | None = None) -> Times:
    loaded = infinipot.load(args.model, device="cpu", dtype="float32", weights=weights)

    def read(some: list[int]) -> infinipot.Session:
        session = infinipot.Session(*loaded, infinipot.PotConfig(pot_size=args.pot_size))
        session.append(some)
        session.logits  # noqa: B018
        return session

    def answer(session: infinipot.Session, steps: int) -> None:
        # the first token needs no step
        for _ in session.stream_ids(max_tokens=steps + 1, pick=likeliest, stop_ids=set()):
            pass

    answer(read(ids[:WARM_UP]), 1)
    started = time.process_time()
    session = read(ids)
    read_s = time.process_time() - started
    if session.pot.length + args.answer > args.pot_size:
        session.append(ids[: args.answer])  # a full pot makes room only when it reads
    return read_s, seconds(lambda: answer(session, args.answer)) / args.answer


def likeliest(logits: torch.Tensor) -> int:
    return int(logits.argmax())


WAYS: dict[str, Callable[[argparse.Namespace, list[int]], Times]] = {
    "llama.cpp": by_llamacpp,
    "stock, float32": by_stock,
    "pot, float32": in_a_pot,
    "pot, auto": functools.partial(in_a_pot, weights="auto"),
}


def measure(args: argparse.Namespace, who: str, tokens: int) -> dict[str, float]:
    """In a process of its own."""
    options = ["--answer", args.answer, "--threads", args.threads, "--pot-size", args.pot_size]
    command = [sys.executable, __file__, args.model, *map(str, options)]
    said = subprocess.run(
        [*command, "--lengths", str(tokens), "--one", who],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    result: dict[str, float] = json.loads(said)
    return result


def compare(args: argparse.Namespace, tokens: int) -> list[dict[str, Any]]:
    """Medians of the ways with a text of this length, in turns; of memory the most."""
    found: dict[str, list[dict[str, float]]] = {who: [] for who in args.by or WAYS}
    for _ in range(args.rounds):
        for who, some in found.items():
            some.append(measure(args, who, tokens))
    rows = []
    for who, some in found.items():
        row = {
            "tokens": tokens,
            "who": who,
            "read_tps": tokens / statistics.median(one["read_s"] for one in some),
            "answer_tps": 1 / statistics.median(one["token_s"] for one in some),
            "peak_bytes": max(one["peak_bytes"] for one in some),
        }
        print(row, file=sys.stderr)
        rows.append(row)
    return rows


def llamacpp_past_window(args: argparse.Namespace, ids: list[int]) -> dict[str, Any]:
    import llama_cpp

    model = llama_cpp.Llama(args.model, n_ctx=WINDOW, n_threads=args.threads, verbose=False)
    try:
        model.create_completion(ids[:LONGER], max_tokens=1)
        longer = "read"
    except ValueError as problem:
        longer = str(problem)
    reply: Any = model.create_completion(ids[:NEAR], max_tokens=ANSWER, temperature=0.0)
    answered = reply["usage"]["completion_tokens"]
    return {"who": "llama.cpp", "longer_text": longer, "answered": answered}


def pot_past_window(args: argparse.Namespace, ids: list[int]) -> dict[str, Any]:
    loaded = infinipot.load(args.model, device="cpu", dtype="float32", weights="auto")
    config = infinipot.PotConfig(pot_size=WINDOW)
    session = infinipot.Session(*loaded, config)
    session.append(ids[:LONGER])
    longer = f"read, {session.stats.tokens_read} tokens"
    session = infinipot.Session(*loaded, config)
    session.append(ids[:NEAR])
    answer = session.stream_ids(max_tokens=ANSWER, pick=likeliest, stop_ids=set())
    answered = sum(1 for _ in answer)
    return {"who": "pot", "longer_text": longer, "answered": answered}


def past_window(args: argparse.Namespace) -> dict[str, Any]:
    """What becomes of a text that is longer than the window, and the tokens of an answer."""
    ids = text(LONGER)
    sizes = {"window": WINDOW, "longer": LONGER, "near": NEAR, "asked": ANSWER}
    return {
        "past_window": [llamacpp_past_window(args, ids), pot_past_window(args, ids)],
        **sizes,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("model")
    parser.add_argument("--lengths", default="1024,8192")
    parser.add_argument("--answer", type=int, default=16)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--pot-size", type=int, default=2048)
    parser.add_argument("--by", action="append", choices=WAYS, help="only these; may be repeated")
    parser.add_argument("--past-window", action="store_true")
    parser.add_argument("--one", choices=WAYS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    lengths = [int(length) for length in args.lengths.split(",")]
    if args.one:
        read_s, token_s = WAYS[args.one](args, text(lengths[0]))
        peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(json.dumps({"read_s": read_s, "token_s": token_s, "peak_bytes": peak}))
        return
    about = {
        "benchmark": "beside_llamacpp",
        "model": Path(args.model).name,
        "llama_cpp_python": importlib.metadata.version("llama-cpp-python"),
    }
    if args.past_window:
        keep("beside_llamacpp", {**about, **past_window(args)})
        return
    rows = [row for tokens in lengths for row in compare(args, tokens)]
    sizes = {name: getattr(args, name) for name in ("pot_size", "answer", "rounds", "threads")}
    keep("beside_llamacpp", {**about, **sizes, "rows": rows})


if __name__ == "__main__":
    main()
