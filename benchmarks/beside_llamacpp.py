"""The same GGUF file read and answered from by llama.cpp and here, on the same cores.

    python benchmarks/beside_llamacpp.py MODEL.gguf [--lengths 512,1024] [--answer 16] [--threads 1]
    [--rounds 2] [--pot-size 1024]
    python benchmarks/beside_llamacpp.py MODEL.gguf --past-window

llama-cpp-python has to be importable; LLAMA_CPP_LIB_PATH names the folder of libllama, if it is built
apart. Each length is read and so many tokens are answered in turns, by llama.cpp and by a pot with
weights in the file's own bits and in float32. Times are those of the processor, so that other programs
disturb them less: with several threads they are the sum over all cores. --past-window: what both do
with a text that is longer than a window of 256, and with an answer that reaches its end.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llama_cpp
import torch
from machine import keep

import infinipot

WINDOW = 256
LONGER = 300
"""Tokens of a text that does not fit into the window."""
NEAR = 240
"""Tokens of a text behind which an answer of ANSWER tokens reaches the window's end."""
ANSWER = 64
Times = tuple[float, float]
"""Seconds of reading, and of a token of the answer."""


def seconds(work: Callable[[], Any]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def by_llamacpp(model: Any, ids: list[int], answer: int) -> Times:
    def answered() -> None:
        for token in ids[:answer]:
            model.eval([token])

    model.reset()
    return seconds(lambda: model.eval(ids)), seconds(answered) / answer


def in_a_pot(loaded: Any, ids: list[int], answer: int, pot_size: int) -> Times:
    session = infinipot.Session(*loaded, infinipot.PotConfig(pot_size=pot_size))

    def answered() -> None:
        for token in ids[:answer]:
            hidden = session.runner.read(torch.tensor([[token]]), [session.pot])
            session.runner.head(hidden)

    read = seconds(lambda: (session.append(ids), session.logits))
    if session.pot.length + answer > pot_size:
        session.append(ids[:answer])  # a full pot makes room only when it reads
    return read, seconds(answered) / answer


def llamacpp_past_window(args: argparse.Namespace, ids: list[int]) -> dict[str, Any]:
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
    answer = session.stream_ids(
        max_tokens=ANSWER, pick=lambda logits: int(logits.argmax()), stop_ids=set()
    )
    answered = sum(1 for _ in answer)
    return {"who": "pot", "longer_text": longer, "answered": answered}


def past_window(args: argparse.Namespace) -> dict[str, Any]:
    """What becomes of a text that is longer than the window, and the tokens of an answer."""
    ids = [7919 * number % 40_000 for number in range(LONGER)]
    sizes = {"window": WINDOW, "longer": LONGER, "near": NEAR, "asked": ANSWER}
    return {
        "past_window": [llamacpp_past_window(args, ids), pot_past_window(args, ids)],
        **sizes,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("model")
    parser.add_argument("--lengths", default="512,1024")
    parser.add_argument("--answer", type=int, default=16)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--pot-size", type=int, default=1024)
    parser.add_argument("--past-window", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    about = {
        "benchmark": "beside_llamacpp",
        "model": Path(args.model).name,
        "llama_cpp_python": llama_cpp.__version__,
    }
    if args.past_window:
        keep("beside_llamacpp", {**about, **past_window(args)})
        return
    lengths = [int(length) for length in args.lengths.split(",")]
    other = llama_cpp.Llama(
        args.model,
        n_ctx=max(lengths) + args.answer,
        n_threads=args.threads,
        n_threads_batch=args.threads,
        verbose=False,
    )
    own = {
        f"pot, {weights or 'float32'}": infinipot.load(
            args.model, device="cpu", dtype="float32", weights=weights
        )
        for weights in ("auto", None)
    }
    ids = [7919 * number % 40_000 for number in range(max(lengths))]
    rows = []
    for length in lengths:
        times: dict[str, list[Times]] = {}
        for _ in range(args.rounds):
            one = by_llamacpp(other, ids[:length], args.answer)
            times.setdefault("llama.cpp", []).append(one)
            for name, loaded in own.items():
                one = in_a_pot(loaded, ids[:length], args.answer, args.pot_size)
                times.setdefault(name, []).append(one)
        for name, values in times.items():
            read, token = (statistics.median(column) for column in zip(*values, strict=True))
            rows.append(
                {"tokens": length, "who": name, "read_tps": length / read, "answer_tps": 1 / token}
            )
            print(rows[-1], file=sys.stderr)
    keep(
        "beside_llamacpp",
        {
            **about,
            "pot_size": args.pot_size,
            "answer": args.answer,
            "rounds": args.rounds,
            "rows": rows,
        },
    )


if __name__ == "__main__":
    main()
