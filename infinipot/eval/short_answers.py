"""Metrics for short answers, from 0 to 1, beside those of LongBench.

A prediction that names a wrong choice beside the right one scores 0.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from infinipot.eval.metrics import METRICS, Metric, words

LETTER = re.compile(r"(?<![\w'])\(?([A-Z])\)?(?![\w'])")
LOWER = re.compile(r"^\W*([a-z])\W*$")
"""An answer that is one letter in lower case."""
ARTICLE = re.compile(r"A [a-z]")
LETTERS = 8
"""Letters of a question whose options are not listed: A to H."""


def _position(part: Sequence[str], whole: Sequence[str]) -> int | None:
    """Where the words of `part` stand in `whole`, one behind the other; None if nowhere."""
    for place in range(len(whole) - len(part) + 1):
        if list(whole[place : place + len(part)]) == list(part):
            return place
    return None


def contains(prediction: str, answer: str, classes: Sequence[str] = ()) -> float:
    """Whether the answer's words stand in the prediction, one behind the other. Case, punctuation
    and articles do not count."""
    wanted = words(answer)
    if not wanted:
        return float(answer.strip() in prediction)
    return float(_position(wanted, words(prediction)) is not None)


def exact(prediction: str, answer: str, classes: Sequence[str] = ()) -> float:
    """Whether the prediction is the answer, without case, punctuation and articles."""
    wanted = words(answer)
    if not wanted:
        return float(answer.strip() == prediction.strip())
    return float(words(prediction) == wanted)


def choice(prediction: str, answer: str, classes: Sequence[str] = ()) -> float:
    """Multiple choice. answer: the letter of the right option. classes: the options in the order of
    their letters.

    The first letter of an option in the prediction counts. Without a letter, the prediction must
    name the text of the right option and of no other one.
    """
    text = prediction.strip()
    if lower := LOWER.match(text):
        text = lower[1].upper()
    letters = letters_of(len(classes) or LETTERS)
    named = [letter for letter in LETTER.findall(text) if letter in letters]
    by_text = [letters[number] for number in _named(text, classes)]
    if len(by_text) == 1 and (not named or ARTICLE.match(text)):
        named = by_text
    return float(named[:1] == [answer])


def letters_of(count: int) -> list[str]:
    """The letters of so many options: A, B, C ..."""
    return [chr(ord("A") + number) for number in range(count)]


def _named(text: str, classes: Sequence[str]) -> list[int]:
    """The numbers of the classes that a text names. A class inside a longer named one is not
    named."""
    said = words(text)
    found = [
        number
        for number, name in enumerate(classes)
        if words(name) and _position(words(name), said) is not None
    ]
    return [
        number
        for number in found
        if not any(
            other != number and _position(words(classes[number]), words(classes[other])) is not None
            for other in found
        )
    ]


def place(prediction: str, answer: str, classes: Sequence[str] = ()) -> float:
    """One of a few choices. The first line must name the right one and no other one."""
    lines = prediction.strip().splitlines() or [""]
    named = [classes[number] for number in _named(lines[0], classes)]
    return float([words(name) for name in named] == [words(answer)])


def parts(prediction: str, answer: str, classes: Sequence[str] = ()) -> float:
    """The share of the answer's parts, which stand between semicolons, that the prediction holds. Case
    does not count (RULER's string_match_all)."""
    wanted = [part.strip().lower() for part in answer.split(";") if part.strip()]
    said = prediction.lower()
    return sum(part in said for part in wanted) / max(1, len(wanted))


ALL_METRICS: dict[str, Metric] = {
    **METRICS,
    **{metric.__name__: metric for metric in (contains, exact, choice, place, parts)},
}
