"""How long clients wait for the first token of a short prompt if all ask at once: prompts read in joint
forward passes, and one by one.

    python benchmarks/short_prompts.py [MODEL] [--clients 8] [--rounds 5] [--output-tokens 8]

MODEL: `tiny` (random weights) or whatever `infinipot` takes. Half of the rounds ask a named pot, the
other half begin a chat. The server runs in this process. Each round is measured both ways, in turn.
Medians in seconds, and ratios: one by one over joint.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time
from typing import Any

from machine import keep
from server_process import TESTS

from infinipot import PotConfig, load

QUESTION = (
    "Question {} of round {}: who hid the letter in the house, under which step was it, did anybody "
    "see it being hidden there at night, and what did the dog do about it afterwards?"
)
TEXT = "The keeper hid the letter under the third step. Nobody saw it, but the dog did. "


def ask(here: Any, message: str, tokens: int, into: list[tuple[float, float]], **pot: str) -> None:
    """Ask, and note the seconds until the first and until the last token."""
    started = time.perf_counter()
    reply = here.chat(message, stream=True, max_tokens=tokens, **pot)
    first = 0.0
    for event in reply:
        if not first and event.choices and event.choices[0].delta.content:
            first = time.perf_counter() - started
    into.append((first, time.perf_counter() - started))


def wave(here: Any, args: argparse.Namespace, number: int, pot: dict[str, str]) -> dict[str, float]:
    """All clients at once."""
    waited: list[tuple[float, float]] = []
    clients = [
        threading.Thread(
            target=ask,
            args=(here, QUESTION.format(client, number), args.output_tokens, waited),
            kwargs=pot,
        )
        for client in range(args.clients)
    ]
    started = time.perf_counter()
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    return {
        "first_s": statistics.median(first for first, _ in waited),
        "last_first_s": max(first for first, _ in waited),
        "whole_s": time.perf_counter() - started,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="tiny")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output-tokens", type=int, default=8)
    args = parser.parse_args()
    sys.path.insert(0, str(TESTS))
    from live import live, tiny

    loaded = tiny() if args.model == "tiny" else load(args.model)
    results: dict[str, list[dict[str, float]]] = {}
    number = 0
    settings = {"max_sessions": 4 * args.clients, "config": PotConfig(pot_size=2048)}
    with live(settings, load=lambda: loaded) as here:
        timer = here.service.engine.timer
        joint = timer.joint_tokens
        here.http.post("/v1/pots", json={"name": "book", "text": TEXT * 60}).raise_for_status()
        for round_number in range(args.rounds + 1):
            for kind, pot in (("pot", {"pot": "book"}), ("chat", {})):
                for way, tokens in (("joint", joint), ("one by one", 0)):
                    timer.joint_tokens = tokens
                    number += 1
                    waited = wave(here, args, number, pot)
                    if round_number:  # the first one warms up
                        results.setdefault(f"{kind}, {way}", []).append(waited)
    medians = {
        case: {name: round(statistics.median(x[name] for x in rounds), 3) for name in rounds[0]}
        for case, rounds in results.items()
    }
    ratios = {
        kind: {
            name: round(slow / medians[f"{kind}, joint"][name], 2)
            for name, slow in medians[f"{kind}, one by one"].items()
        }
        for kind in ("pot", "chat")
    }
    options = {name: getattr(args, name) for name in ("model", "clients", "output_tokens")}
    keep("short_prompts", {**options, "seconds": medians, "ratios": ratios})


if __name__ == "__main__":
    main()
