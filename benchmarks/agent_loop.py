"""An agent that never stops: a loop of tool calls in a pot of fixed size, with system prompt and tool
descriptions pinned.

    python benchmarks/agent_loop.py [MODEL] [--calls 100] [--pot-size 4096] [--result-words 90]

Each turn sends the whole conversation to a server in this process, as an agent does, and demands a
call (`tool_choice` required); the form of a call is kept by a grammar. The result of each call is
random words with a number. After every call the pot of the conversation is looked at: which positions
of the text its layers and heads still hold. The head, up to the first user's message, must be whole.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from machine import keep

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from live import Live, live

from infinipot import PotConfig, load
from infinipot.text.templates import source_of

SYLLABLES = [a + b for a in "bdfgklmnprstvz" for b in ("a", "e", "i", "o", "u", "an", "el", "or")]
SYSTEM = (
    "You are the keeper of a lighthouse. You look up ships by their number, and you never leave the "
    "tower. Answer each question by a call, one after the other."
)
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": about,
            "parameters": {
                "type": "object",
                "properties": {"number": {"type": "integer", "minimum": 1, "maximum": 999}},
                "required": ["number"],
                "additionalProperties": False,
            },
        },
    }
    for name, about in (
        ("look_up_ship", "Tell the name, the flag and the cargo of a ship by its number."),
        ("read_log", "Read a page of the log of the lighthouse by its number."),
        ("light_lamp", "Light the lamp for a number of minutes."),
    )
]


def result(chance: random.Random, words: int, number: int) -> str:
    text = " ".join("".join(chance.choices(SYLLABLES, k=2)) for _ in range(words))
    return f"Number {number}: {text}."


def checked(call: Any) -> int:
    """The number in a call. Raises AssertionError for a call that is not well-formed."""
    arguments = json.loads(call.function.arguments)
    assert call.function.name in {tool["function"]["name"] for tool in TOOLS}
    assert list(arguments) == ["number"] and 1 <= arguments["number"] <= 999
    return int(arguments["number"])


def looked_at(server: Live) -> dict[str, Any]:
    """The conversation's newest pot: its size, its head, and whether all of the head is there."""
    engine = server.service.engine

    def look() -> dict[str, Any]:
        session = max(
            (pot.session for pot in engine.store.pots), key=lambda one: one.stats.tokens_read
        )
        pot = session.pot
        whole = True
        for layer in pot.bounded:
            places = pot.described([layer])[0][0]
            head = set(range(pot.pinned))
            whole = whole and all(head <= set(row) for row in places.tolist())
        stats = session.stats
        return {
            "pinned": pot.pinned,
            "head_whole": whole,
            "peak": stats.peak_entries,
            "tokens_read": stats.tokens_read,
            "distillations": stats.distillations,
            "bytes": stats.pot_bytes,
            "full_cache_bytes": stats.full_cache_bytes,
        }

    return engine.call(look).result()


def loop(server: Live, args: Any) -> dict[str, Any]:
    chance = random.Random(0)
    messages: list[Any] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": "Look up all ships, one after the other."},
    ]
    seconds: list[float] = []
    reread: list[int] = []
    memory: list[int] = []
    states = []
    for number in range(args.calls):
        started = time.perf_counter()
        reply = server.openai.chat.completions.create(
            model="tiny",
            messages=messages,
            tools=TOOLS,
            tool_choice="required",
            parallel_tool_calls=False,
            max_tokens=60,
            temperature=0.7,
            seed=number,
        )
        seconds.append(time.perf_counter() - started)
        (call,) = reply.choices[0].message.tool_calls
        assert reply.choices[0].finish_reason == "tool_calls"
        text = result(chance, args.result_words, checked(call))
        messages += [
            reply.choices[0].message,
            {"role": "tool", "tool_call_id": call.id, "content": text},
        ]
        reread.append(reply.usage.prompt_tokens - reply.usage.prompt_tokens_details.cached_tokens)
        states.append(looked_at(server))
        assert states[-1]["head_whole"], f"the head has holes after call {number}"
        assert states[-1]["peak"] <= args.pot_size
        memory.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    half = args.calls // 2
    return {
        "calls": args.calls,
        "well_formed": args.calls,
        "prompt_tokens": reply.usage.prompt_tokens,
        "most_read_for_a_call": max(reread[1:]),
        "last": states[-1],
        "head_whole_after_every_call": all(state["head_whole"] for state in states),
        "call_s": {
            "first_half": statistics.median(seconds[:half]),
            "second_half": statistics.median(seconds[half:]),
        },
        "peak_memory_mb": {"after_half": memory[half] >> 10, "at_the_end": memory[-1] >> 10},
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--calls", type=int, default=100)
    parser.add_argument("--pot-size", type=int, default=4096)
    parser.add_argument("--distill-to", type=int, default=2048)
    parser.add_argument("--result-words", type=int, default=90)
    args = parser.parse_args()
    config = PotConfig(pot_size=args.pot_size, distill_to=args.distill_to)
    settings = {"config": config, "max_sessions": 3, "tool_template": source_of("chatml")}
    with live(settings, load=lambda: load(args.model)) as server:
        keep("agent_loop", {"arguments": vars(args), **loop(server, args)})


if __name__ == "__main__":
    main()
