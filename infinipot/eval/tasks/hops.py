"""Long dependencies: a chain of statements, far apart in a long text. Each statement refers to the
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
from infinipot.eval.stats import share_interval
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
    """A chain of people. The first statement has the number; every other one names two neighbours.

    last: the person at the end.
    """

    number: str
    statements: list[str]
    last: str


def chain(people: Sequence[str], number: str) -> Chain:
    """The first person has the number. Every other person has the code of the one before."""
    links = [
        f"The code of {other} is the same as the code of {one}." for one, other in pairwise(people)
    ]
    return Chain(number, [f"The code of {people[0]} is {number}.", *links], people[-1])


@dataclass(frozen=True, kw_only=True)
class Tracking:
    """One text with two chains, read by one method, and a question about the end of the first.

    The second chain has another number. hops: links between the person in the question and the
    person with the number; with 0 hops it is a needle test. The statements have equal distances.
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
        text = f"{self.hops} hops in {self.length:,} tokens"
        return f"{self.method.label} · {text}, trial {self.trial + 1}"

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
        """The two chains, and the random numbers for the text around them."""
        chance = random.Random(
            f"hops {self.seed} {Path(self.haystack).name} {self.length} {self.hops} {self.trial}"
        )
        people = chance.sample(NAMES, 2 * (self.hops + 1))
        first, second = chance.sample(range(10000, 100000), 2)
        right = chain(people[: self.hops + 1], str(first))
        other = chain(people[self.hops + 1 :], str(second))
        return right, other, chance

    def run(self, replica: Replica) -> list[Record]:
        right, other, chance = self.chains()
        step = 1 / (self.hops + 1)
        depths = [((n + 0.4) * step, text) for n, text in enumerate(right.statements)]
        depths += [((n + 0.6) * step, text) for n, text in enumerate(other.statements)]
        stack = hide(replica, self.haystack, self.length, depths, chance)
        question = f"What is the code of {right.last}?"
        session = open_session(replica, self.method.config)
        session.append(stack.ids, question=question if self.method.aware else None)
        answer = session.ask(question, max_tokens=self.max_tokens)
        forced = force(
            session,
            question_ids(replica, question, f"The code of {right.last} is"),
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
    lengths: Sequence[int],
    hops: Sequence[int],
    trials: int,
    **more: Any,
) -> list[Tracking]:
    """Every text for every method, short texts first. more: other fields of `Tracking`."""
    too_many = [count for count in hops if not 0 <= count <= LONGEST]
    if too_many:
        raise ValueError(f"hops={too_many[0]} is not allowed: it must be between 0 and {LONGEST}")
    return [
        Tracking(
            model=model,
            method=method,
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
    """Methods and hops down, lengths across.

    A cell has the right answers in %, and the mean count of distillations between two statements.
    """
    lengths = sorted({record["length"] for record in records})
    rows = []
    for name, some in _by_name(records).items():
        cells = [[record for record in some if record["length"] == length] for length in lengths]
        rows.append([name, *[_cell(cell) for cell in cells]])
    return markdown(["right, % (cycles between)", *[tokens(length) for length in lengths]], rows)


def _by_name(records: Sequence[Record]) -> dict[str, list[Record]]:
    """The records by method and count of hops."""
    name_of = names(records)
    grouped: dict[str, list[Record]] = {}
    for record in records:
        plural = "s" * (record["hops"] != 1)
        name = f"{name_of[name_key(record)]}, {record['hops']} hop{plural}"
        grouped.setdefault(name, []).append(record)
    return grouped


def _cell(records: Sequence[Record]) -> str:
    if not records:
        return "–"
    return f"{100 * _mean(records, 'right'):.0f} ({_mean(records, 'between'):.1f})"


def _interval(records: Sequence[Record]) -> charts.Interval:
    """Of the right answers, in %."""
    low, high = share_interval(sum(record["right"] for record in records), len(records))
    return 100 * low, 100 * high


def _mean(records: Sequence[Record], name: str) -> float:
    return sum(record[name] for record in records) / len(records)


def write(records: Sequence[Record], folder: Path) -> tuple[str, list[Path]]:
    """Write the table, and a figure of right answers over the cycles between two statements.

    Returns the text and the paths of the files.
    """
    series = {}
    intervals: dict[str, list[charts.Interval | None]] = {}
    for name, some in _by_name(records).items():
        lengths = dict.fromkeys(record["length"] for record in some)
        cells = [[record for record in some if record["length"] == length] for length in lengths]
        cells.sort(key=lambda cell: _mean(cell, "between"))
        series[name] = [(_mean(cell, "between"), 100 * _mean(cell, "right")) for cell in cells]
        intervals[name] = [_interval(cell) for cell in cells]
    text = f"codes along a chain · {', '.join(sorted({record['model'] for record in records}))}"
    files = charts.curves(
        series,
        title=text,
        across="distillations between two statements",
        up="right and 95 % interval, %",
        path=folder / "hops",
        intervals=intervals,
        floor=0,
    )
    whole = f"{text}\n\n{table(records)}"
    (folder / "hops.md").write_text(whole, "utf-8")
    return whole, [*files, folder / "hops.md"]
