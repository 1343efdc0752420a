"""Eleven tasks of RULER (arXiv 2404.06654) as documents. Their texts are made here, without the
network: essays and words come from a haystack of this package's needle test.

Prompts, sizes and the metric are RULER's. Three things differ: words are those of the haystack, the
answer's first words are not given, and the two tasks of question answering, which need other
projects' rows, are left out. So scores are not RULER's published ones.
"""

from __future__ import annotations

import math
import random
import re
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from infinipot.eval.tasks.haystack import FILLER, WORDS, documents

DEPTHS = 40
"""Places in an essay, from its start to its end, at which needles may stand."""
HOPS = 4
MOST_COMMON = 10
LONG = 4096
"""Tokens from which on the words of `cwe` are repeated more often."""


class Source(NamedTuple):
    """What texts are made of: sentences in their order, and different words."""

    sentences: list[str]
    words: list[str]


class Text(NamedTuple):
    """A text, its question, and all answers. intro: the instruction before the text."""

    intro: str
    context: str
    question: str
    answers: list[str]


class Size(NamedTuple):
    """units: lines, sentences or words of a text. length: tokens that it is made for."""

    units: int
    length: int


Make = Callable[[Source, random.Random, Size], Text]


def source_of(haystack: str) -> Source:
    """Raises ValueError for a haystack of too few words, such as `filler`."""
    text = re.sub(r"\s+", " ", " ".join(documents(haystack)))
    words = sorted(set(re.findall(r"(?<![\w'])[a-z]{4,10}(?![\w'])", text)))
    if len(words) < 200:
        raise ValueError(
            f"the haystack {haystack} has {len(words)} different words, and RULER's texts need 200: "
            "give essays, a text file or a folder"
        )
    return Source(re.split(r"(?<=[.!?]) ", text), words)


@dataclass(frozen=True)
class Needles:
    """A task of needles. hay: `filler`, `essay`, or `needles`, which are other needles. keys:
    needles of different keys. values: needles of one key. queries: keys that are asked for."""

    hay: str
    keys: int = 1
    values: int = 1
    queries: int = 1
    key: str = "words"
    value: str = "numbers"

    def __call__(self, source: Source, chance: random.Random, size: Size) -> Text:
        keys = [drawn(self.key, chance) for _ in range(self.keys)]
        values = [[drawn(self.value, chance) for _ in range(self.values)] for _ in keys]
        lines = [
            self.line(key, value) for key, some in zip(keys, values, strict=True) for value in some
        ]
        chance.shuffle(lines)
        asked = chance.sample(range(self.keys), self.queries)
        answers = [value for number in asked for value in values[number]]
        query = ", ".join(keys[number] for number in asked[:-1])
        query = f"{query}, and {keys[asked[-1]]}" if query else keys[asked[-1]]
        context = self.context(source, chance, size.units, lines)
        if len(answers) == 1:
            what = self.value.removesuffix("s")
            start = f"A special magic {what} is hidden within the following text."
            question = (
                f"What is the special magic {what} for {query} mentioned in the provided text?"
            )
        else:
            what = self.value
            start = f"Some special magic {what} are hidden within the following text."
            question = (
                f"What are all the special magic {what} for {query} mentioned in the provided text?"
            )
        intro = f"{start} Make sure to memorize it. I will quiz you about the {what} afterwards.\n"
        return Text(intro, context, question, answers)

    def line(self, key: str, value: str) -> str:
        return f"One of the special magic {self.value} for {key} is: {value}."

    def context(
        self, source: Source, chance: random.Random, units: int, lines: Sequence[str]
    ) -> str:
        """The lines among so many units of hay."""
        if self.hay == "essay":
            hay = essay(source, chance, units)
            depths = sorted(chance.sample(range(DEPTHS), len(lines)))
            places = [depth * len(hay) // (DEPTHS - 1) for depth in depths]
        else:
            hay = [FILLER.strip()] * units
            if self.hay == "needles":
                hay = [
                    self.line(drawn(self.key, chance), drawn(self.value, chance))
                    for _ in range(units)
                ]
            places = sorted(chance.choices(range(units + 1), k=len(lines)))
        return (" " if self.hay == "essay" else "\n").join(among(hay, places, lines))


def essay(source: Source, chance: random.Random, units: int) -> list[str]:
    """So many sentences that follow each other, from any place on; the first follows the last."""
    count = len(source.sentences)
    start = chance.randrange(count)
    return [source.sentences[(start + number) % count] for number in range(units)]


def among(hay: Sequence[str], places: Sequence[int], lines: Sequence[str]) -> list[str]:
    """The lines in front of the units of hay at these places, which ascend."""
    whole = list(hay)
    for place, line in reversed(list(zip(places, lines, strict=True))):
        whole.insert(place, line)
    return whole


def drawn(kind: str, chance: random.Random) -> str:
    """A key or a value at random: a number of seven digits, a UUID, or two words."""
    if kind == "numbers":
        return str(chance.randint(10**6, 10**7 - 1))
    if kind == "uuids":
        digits = f"{chance.getrandbits(128):032x}"
        return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
    return "-".join(chance.sample(WORDS, 2))


def chain(chance: random.Random, units: int, letters: int) -> Text:
    """Variables that are assigned to each other, between lines of filler."""
    names: list[str] = []
    while len(names) <= HOPS:
        name = "".join(chance.choices(string.ascii_uppercase, k=letters))
        if name not in names:
            names.append(name)
    value = str(chance.randint(10000, 99999))
    lines = [f"VAR {names[0]} = {value}"]
    lines += [f"VAR {name} = VAR {before}" for before, name in pairwise(names)]
    places = sorted(chance.choices(range(units + 1), k=len(lines)))
    context = "\n".join(among([FILLER.strip()] * units, places, lines))
    intro = (
        "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n"
    )
    question = (
        f"Question: Find all variables that are assigned the value {value} in the text above."
    )
    return Text(intro, context, question, names)


def variable_tracking(source: Source, chance: random.Random, size: Size) -> Text:
    """With an example before it, whose names are shorter."""
    text = chain(chance, size.units, 5)
    return with_example(chain(chance, 5, 3), text, " ")


def numbered(words: Sequence[str]) -> str:
    return " ".join(f"{number}. {word}" for number, word in enumerate(words, 1))


def word_list(words: Sequence[str], chance: random.Random, common: int, other: int) -> Text:
    """A list in which the first ten of these words stand `common` times, and others `other` times."""
    listed = list(words[:MOST_COMMON]) * common + list(words[MOST_COMMON:]) * other
    chance.shuffle(listed)
    intro = (
        "Below is a numbered list of words. In these words, some appear more often than others. "
        "Memorize the ones that appear most often.\n"
    )
    question = "Question: What are the 10 most common words in the above list?"
    return Text(intro, numbered(listed), question, list(words[:MOST_COMMON]))


def common_words(source: Source, chance: random.Random, size: Size) -> Text:
    """With an example before it."""
    repeats = (30, 3)
    if size.length < LONG:
        repeats = (6, 1)
    words = chance.sample(source.words, min(size.units, len(source.words)))
    text = word_list(words, chance, *repeats)
    example = word_list(chance.sample(source.words, 20), chance, 3, 1)
    return with_example(example._replace(answers=[numbered(example.answers)]), text, " ")


def with_example(example: Text, text: Text, mark: str) -> Text:
    """The text behind an example with its answers."""
    shown = f"{example.intro}{example.context}\n{example.question} Answer: "
    shown += mark.join(example.answers)
    return text._replace(intro=f"{shown}\n\n{text.intro}")


def frequent_words(source: Source, chance: random.Random, size: Size) -> Text:
    """Coded words. The n-th stands as often as 1 / n² says; dots take the first place."""
    coded: dict[str, None] = {"....": None}
    while len(coded) < max(8, size.length // 50):
        coded["".join(chance.choices(string.ascii_lowercase, k=6))] = None
    words = list(coded)
    most = size.units * 6 / math.pi**2
    said = [word for place, word in enumerate(words, 1) for _ in range(int(most / place**2))]
    chance.shuffle(said)
    intro = (
        "Read the following coded text and track the frequency of each coded word. Find the three "
        "most frequently appeared coded words.\n"
    )
    question = (
        "Question: Do not provide any explanation. Please ignore the dots '....'. What are the three "
        "most frequently appeared words in the above coded text?"
    )
    return Text(intro, " ".join(said), question, words[1:4])


class Task(NamedTuple):
    """make: makes a text. max_tokens: of an answer. least: the fewest units of a text."""

    make: Make
    max_tokens: int
    least: int


TASKS = {
    "niah_single_1": Task(Needles("filler"), 128, 1),
    "niah_single_2": Task(Needles("essay"), 128, 2),
    "niah_single_3": Task(Needles("essay", value="uuids"), 128, 2),
    "niah_multikey_1": Task(Needles("essay", keys=4), 128, 2),
    "niah_multikey_2": Task(Needles("needles"), 128, 1),
    "niah_multikey_3": Task(Needles("needles", key="uuids", value="uuids"), 128, 1),
    "niah_multivalue": Task(Needles("essay", values=4), 128, 2),
    "niah_multiquery": Task(Needles("essay", keys=4, queries=4), 128, 2),
    "vt": Task(variable_tracking, 30, 5),
    "cwe": Task(common_words, 120, 11),
    "fwe": Task(frequent_words, 50, 60),
}
