"""Long dependencies: a chain of statements, far apart in a long text, each of which leads to the
one before (the paper's open question 2)."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from infinipot.eval import charts
from infinipot.eval.methods import Method
from infinipot.eval.results import Record
from infinipot.eval.runner import Model, Replica
from infinipot.eval.tables import markdown, name_key, names, tokens
from infinipot.eval.tasks.haystack import NAMES, hide
from infinipot.eval.tasks.needle import found
from infinipot.eval.teacher_forcing import force, open_session, question_ids
from infinipot.text.tokens import fragment

NAME = "hops"
KEY = (
    "model",
    "dtype",
    "method",
    "question",
    "options",
    "haystack",
    "length",
    "hops",
    "trial",
    "seed",
)
LONGEST = len(NAMES) // 2 - 1


@dataclass(frozen=True)
class Chain:
    """statements: the first holds the number, each other one names the one before."""

    number: str
    statements: list[str]
    last: str


def chain(people: Sequence[str], number: str) -> Chain:
    links = [
        f"The code of {other} is the same as the code of {one}." for one, other in pairwise(people)
    ]
    return Chain(number, [f"The code of {people[0]} is {number}.", *links], people[-1])


@dataclass(frozen=True, kw_only=True)
class Tracking:
    """One text with a chain and a second one that leads elsewhere, read by one method, asked for
    the code at the chain's end.

    hops: links from the person asked for to the one whose code is given; 0 is a needle. The
    statements are spread evenly over the text.
    """

    model: Model
    method: Method
    haystack: str
    length: int
    hops: int
    trial: int
    seed: int = 0
    max_tokens: int = 32

    @property
    def title(self) -> str:
        return f"{self.method.label} · {self.hops} hops in {self.length:,} tokens, trial {self.trial + 1}"

    def keys(self) -> list[Record]:
        return [
            {
                **self.model.about,
                "method": self.method.label,
                "question": self.method.question,
                "options": self.method.options,
                "haystack": self.haystack.rstrip("/").rsplit("/", 1)[-1],
                "length": self.length,
                "hops": self.hops,
                "trial": self.trial,
                "seed": self.seed,
            }
        ]

    def chains(self) -> tuple[Chain, Chain, random.Random]:
        chance = random.Random(
            f"hops {self.seed} {Path(self.haystack).name} {self.length} {self.hops} {self.trial}"
        )
        people = chance.sample(NAMES, 2 * (self.hops + 1))
        first, second = (str(number) for number in chance.sample(range(10000, 100000), 2))
        return chain(people[: self.hops + 1], first), chain(people[self.hops + 1 :], second), chance

    def run(self, replica: Replica) -> list[Record]:
        right, other, chance = self.chains()
        step = 1 / (self.hops + 1)
        placed = [((n + 0.4) * step, text) for n, text in enumerate(right.statements)]
        placed += [((n + 0.6) * step, text) for n, text in enumerate(other.statements)]
        stack = hide(replica, self.haystack, self.length, placed, chance)
        asked = f"What is the code of {right.last}?"
        session = open_session(replica, self.method.config)
        session.append(stack.ids, question=asked if self.method.aware else None)
        answer = session.ask(asked, max_tokens=self.max_tokens)
        forced = force(
            session,
            question_ids(replica, asked, f"The code of {right.last} is"),
            fragment(replica.tokenizer, " " + right.number),
        )
        stats = session.stats
        outcome: dict[str, Any] = {
            "number": right.number,
            "answer": answer,
            "right": found(right.number, answer),
            "other": found(other.number, answer),
            "forced": all(forced.first),
            "loss": round(forced.loss, 4),
            "between": round(stats.distillations * step, 2),
            "distillations": stats.distillations,
            "peak_entries": stats.peak_entries,
        }
        return [{**self.keys()[0], **outcome}]


def plan(
    model: Model,
    methods: Iterable[Method],
    *,
    haystack: str,
    lengths: Sequence[int],
    hops: Sequence[int],
    trials: int,
    **more: Any,
) -> list[Tracking]:
    too_many = [count for count in hops if not 0 <= count <= LONGEST]
    if too_many:
        raise ValueError(f"hops={too_many[0]} is not allowed: it must be between 0 and {LONGEST}")
    return [
        Tracking(
            model=model,
            method=method,
            haystack=haystack,
            length=length,
            hops=count,
            trial=trial,
            **more,
        )
        for length in sorted(lengths)
        for trial in range(trials)
        for count in sorted(hops)
        for method in methods
    ]


def table(records: Sequence[Record]) -> str:
    """Methods and hops down, lengths across: right answers in %, with the distillations between two
    statements."""
    named = names(records)
    lengths = sorted({record["length"] for record in records})
    cells: dict[tuple[str, int], dict[int, list[Record]]] = {}
    for record in records:
        cells.setdefault((named[name_key(record)], record["hops"]), {}).setdefault(
            record["length"], []
        ).append(record)
    rows = [
        [
            f"{name}, {hops} hop{'s' * (hops != 1)}",
            *[_cell(some.get(length, [])) for length in lengths],
        ]
        for (name, hops), some in cells.items()
    ]
    return markdown(["right, % (cycles between)", *[tokens(length) for length in lengths]], rows)


def _cell(records: list[Record]) -> str:
    if not records:
        return "–"
    share = sum(record["right"] for record in records) / len(records)
    return f"{100 * share:.0f} ({sum(record['between'] for record in records) / len(records):.1f})"


def write(records: Sequence[Record], folder: Path) -> tuple[str, list[Path]]:
    """The table, and right answers over the cycles between two statements."""
    named = names(records)
    points: dict[str, dict[tuple[int, int], list[Record]]] = {}
    for record in records:
        name = f"{named[name_key(record)]}, {record['hops']} hop{'s' * (record['hops'] != 1)}"
        points.setdefault(name, {}).setdefault((record["length"], record["hops"]), []).append(
            record
        )
    series = {
        name: sorted(
            (
                sum(r["between"] for r in some) / len(some),
                100 * sum(r["right"] for r in some) / len(some),
            )
            for some in cells.values()
        )
        for name, cells in points.items()
    }
    text = f"codes along a chain · {', '.join(sorted({record['model'] for record in records}))}"
    files = charts.curves(
        series,
        title=text,
        across="distillations between two statements",
        up="right, %",
        path=folder / "hops",
        floor=0,
    )
    whole = f"{text}\n\n{table(records)}"
    (folder / "hops.md").write_text(whole, "utf-8")
    return whole, [*files, folder / "hops.md"]
