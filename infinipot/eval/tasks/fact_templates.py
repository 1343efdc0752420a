"""Generated facts: statements as people write them, their questions, and the values of both."""

from __future__ import annotations

import functools
import importlib.resources
import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from infinipot.checks import known
from infinipot.eval.tasks.fact_answers import MONTHS, Value
from infinipot.eval.tasks.fact_names import (
    CAUSES,
    FIRMS,
    FIRST_NAMES,
    SHIPS,
    SPOTS,
    STREETS,
    SURNAMES,
    TOWNS,
)

HALVES = ("all", "even", "odd")
LETTERS = "ABCDEFGHJKLMNPRSTUVWXYZ"
"""Letters of codes, without those that look like digits."""


@dataclass(frozen=True)
class Template:
    """A kind of fact: person, place, amount, time, cause or code. number: its place among the
    templates of its kind. type: what its value is. statement, question: texts with slots."""

    name: str
    kind: str
    number: int
    type: str
    statement: str
    question: str


@functools.cache
def templates() -> tuple[Template, ...]:
    """All templates, by kind."""
    folder = importlib.resources.files("infinipot.eval.tasks")
    rows = json.loads(folder.joinpath("facts.json").read_text("utf-8"))
    counts: dict[str, int] = {}
    found = []
    for row in rows:
        number = counts.get(row["kind"], 0)
        counts[row["kind"]] = number + 1
        found.append(Template(number=number, **row))
    return tuple(found)


def templates_of(half: str) -> list[Template]:
    """The templates with `even` or `odd` numbers in their kind, or `all`."""
    known("half of templates", half, HALVES)
    return [one for one in templates() if half in ("all", ("even", "odd")[one.number % 2])]


@dataclass(frozen=True)
class Fact:
    """A statement, and its question. other, distractor: the value and the statement of another fact
    from the same template, with other names, which stands in the same text."""

    template: Template
    statement: str
    question: str
    value: Value
    distractor: str
    other: Value

    def right(self, answer: str) -> bool:
        """Whether an answer names the value, and not the distractor's."""
        return self.value.named_in(answer) and not self.other.named_in(answer)


class Deck:
    """Names in random order. None is drawn twice, as far as there are enough."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.left: dict[str, list[tuple[str, str]]] = {}

    def draw(self, what: str) -> tuple[str, str]:
        """A name, and what its check looks for."""
        if not self.left.get(what):
            cards = [card if isinstance(card, tuple) else (card, card) for card in CARDS[what]]
            self.left[what] = self.chance.sample(cards, len(cards))
        return self.left[what].pop()

    def name(self, what: str) -> str:
        text, _ = self.draw(what)
        if what == "person":
            return f"{self.chance.choice(FIRST_NAMES)} {text}"
        return text

    def value(self, type: str) -> Value:
        """A value of a type."""
        if type == "person":
            name = self.name("person")
            return Value(type, name, name)
        if type in CARDS:
            return Value(type, *self.draw(type))
        text, check = MAKERS[type](self.chance)
        return Value(type, text, check)


CARDS: dict[str, Sequence[str | tuple[str, str]]] = {
    "person": SURNAMES,
    "town": TOWNS,
    "street": STREETS,
    "ship": SHIPS,
    "firm": FIRMS,
    "cause": CAUSES,
    "spot": SPOTS,
}


def amount(chance: random.Random) -> tuple[str, str]:
    number = f"{chance.randint(23, 4999):,}"
    return number, number


def clock(chance: random.Random) -> tuple[str, str]:
    """A time from 5:01 to 22:59, said with the part of the day."""
    hour = chance.randint(5, 22)
    minute = chance.randint(1, 59)
    if hour < 12:
        part = "in the morning"
    elif hour < 18:
        part = "in the afternoon"
    else:
        part = "in the evening"
    return f"{(hour - 1) % 12 + 1}:{minute:02} {part}", f"{hour}:{minute:02}"


def date(chance: random.Random) -> tuple[str, str]:
    text = f"{chance.randint(1, 28)} {chance.choice(MONTHS).capitalize()}"
    return text, text


def year(chance: random.Random) -> tuple[str, str]:
    text = str(chance.randint(1811, 1998))
    return text, text


def code(chance: random.Random) -> tuple[str, str]:
    text = "".join(chance.choices(LETTERS, k=2)) + f"-{chance.randint(1000, 9999)}"
    return text, text


MAKERS = {"amount": amount, "clock": clock, "date": date, "year": year, "code": code}
SLOT = re.compile(r"\{(\w+)\}")


def facts(chosen: Sequence[Template], chance: random.Random) -> list[Fact]:
    """A fact of each of these templates, for one text: no name is in two of its statements."""
    deck = Deck(chance)
    found = []
    for template in chosen:
        statement, question, value = _filled(template, deck)
        distractor, _, other = _filled(template, deck)
        while other.check == value.check:
            distractor, _, other = _filled(template, deck)
        found.append(Fact(template, statement, question, value, distractor, other))
    return found


def _filled(template: Template, deck: Deck) -> tuple[str, str, Value]:
    """Statement, question and value, with names from the deck."""
    value = deck.value(template.type)
    names = {"value": value.text}
    for what in SLOT.findall(template.statement):
        if what not in names:
            names[what] = deck.name(what)
    return template.statement.format(**names), template.question.format(**names), value


def chosen_for(text: int, count: int, half: str, seed: int) -> list[Template]:
    """The templates of the facts of a text. Texts take them in turn, so that all occur equally
    often."""
    order = templates_of(half)
    if not 1 <= count <= len(order):
        raise ValueError(
            f"{count} facts in a text are not possible: there are {len(order)} templates; give "
            f"a number from 1 to {len(order)}"
        )
    random.Random(f"templates {seed}").shuffle(order)
    return [order[(text * count + number) % len(order)] for number in range(count)]
