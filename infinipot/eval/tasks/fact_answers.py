"""Whether an answer names the value of a fact, in any usual spelling."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from infinipot.eval.tasks.fact_names import FIRST_NAMES

_ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen"
)
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_ORDINALS = (
    "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth "
    "fourteenth fifteenth sixteenth seventeenth eighteenth nineteenth"
)
ONES = _ONES.split()
TENS = _TENS.split()
ORDINALS = _ORDINALS.split()
NUMBERS = {
    **{word: number for number, word in enumerate(ONES)},
    **{word: 10 * number for number, word in enumerate(TENS, 2)},
    **{word: number for number, word in enumerate(ORDINALS, 1)},
    "twentieth": 20,
    "thirtieth": 30,
}
_MONTHS = "january february march april may june july august september october november december"
MONTHS = _MONTHS.split()
MORNING = re.compile(r"\b(am|(in|of) the morning)\b")
EVENING = re.compile(r"\b(pm|(in|of) the (afternoon|evening)|at night)\b")
CLOCK = re.compile(r"(?<!\S)(\d{1,2})(?::| 0 | )(\d{1,2})(?!\S)(?! past| to)")
"""4:07, 4 0 7, 4 07"""
PAST = re.compile(r"(?<!\S)(\d{1,2}) (past|to) (\d{1,2})(?!\S)")
SAME = {
    "quarter": "15",
    "half": "30",
    "oh": "0",
    "after": "past",
    "before": "to",
    "till": "to",
}
UNSAID = {"minutes", "minute", "a"}
ARTICLES = {"a", "an", "the"}


def words(text: str) -> list[str]:
    """The words in lower case, numbers in digits: "Thirty-seven, at 4.07 p.m." -> 37, at, 4:07, pm."""
    text = re.sub(r"'s\b", "", text.lower().replace("’", "'")).replace("'", "")
    text = re.sub(r"\b([ap])\.\s?m\b\.?", r"\1m", text)
    text = re.sub(r"(?<=\d)[, \u00a0\u202f](?=\d{3}(?!\d))", "", text)
    text = re.sub(r"(?<=\d)(st|nd|rd|th)\b", "", text)
    text = re.sub(r"(?<=\d)[.:h](?=\d\d(?!\d))", ":", text)
    return spelled_out(re.findall(r"\d+(?:[.:]\d+)*|[^\W\d_]+", text))


def spelled_out(parts: Sequence[str]) -> list[str]:
    """Numbers in words become digits: two hundred and forty -> 240."""
    found: list[str] = []
    place = 0
    while place < len(parts):
        number, stop = _number(parts, place)
        if number is None:
            found.append(parts[place])
            place += 1
        else:
            found.append(str(number))
            place = stop
    return found


def _number(parts: Sequence[str], place: int) -> tuple[int | None, int]:
    """The number that begins at a place, and where it ends; None if none begins there."""
    number, stop = _below_thousand(parts, place)
    if number is not None and parts[stop : stop + 1] == ["thousand"]:
        rest, end = _below_thousand(parts, _after_and(parts, stop + 1))
        if rest is None:
            return number * 1000, stop + 1
        return number * 1000 + rest, end
    return number, stop


def _below_thousand(parts: Sequence[str], place: int) -> tuple[int | None, int]:
    number, stop = _below_hundred(parts, place)
    if parts[place : place + 1] == ["a"] and parts[place + 1 : place + 2] in (
        ["hundred"],
        ["thousand"],
    ):
        number, stop = 1, place + 1
    if number is not None and parts[stop : stop + 1] == ["hundred"]:
        rest, end = _below_hundred(parts, _after_and(parts, stop + 1))
        if rest is None:
            return number * 100, stop + 1
        return number * 100 + rest, end
    return number, stop


def _below_hundred(parts: Sequence[str], place: int) -> tuple[int | None, int]:
    if place >= len(parts):
        return None, place
    word = parts[place]
    number = NUMBERS.get(word)
    if number is None:
        following = parts[place + 1 : place + 2]
        if word.isdigit() and following in (["hundred"], ["thousand"]):
            return int(word), place + 1
        return None, place
    if word in TENS:
        unit = NUMBERS.get("".join(parts[place + 1 : place + 2]), 0)
        if 0 < unit < 10:
            return number + unit, place + 2
    return number, place + 1


def _after_and(parts: Sequence[str], place: int) -> int:
    """The place behind an `and` that stands inside a number."""
    if parts[place : place + 1] == ["and"]:
        return place + 1
    return place


def within(part: Sequence[str], whole: Sequence[str]) -> bool:
    """Whether the words of `part` stand in `whole`, one behind the other."""
    return any(
        list(whole[place : place + len(part)]) == list(part)
        for place in range(len(whole) - len(part) + 1)
    )


def says_name(value: str, answer: str) -> bool:
    """A person: the surname, with the right first name or with none. "Dr. Lindqvist" is right."""
    first, last = words(value)
    others = {name.lower() for name in FIRST_NAMES} - {first}
    said = words(answer)
    return any(
        word == last and (place == 0 or said[place - 1] not in others)
        for place, word in enumerate(said)
    )


def says_words(value: str, answer: str) -> bool:
    """A place or a thing: its words, without the article."""
    return within([word for word in words(value) if word not in ARTICLES], words(answer))


def says_number(value: str, answer: str) -> bool:
    """An amount, in digits or in words."""
    number = value.replace(",", "")
    return bool({number, f"{number}:00"} & set(words(answer)))


def says_year(value: str, answer: str) -> bool:
    """1984, also as nineteen eighty-four."""
    century = str(int(value[:2]))
    rest = str(int(value[2:]))
    said = words(answer)
    return value in said or any(within([century, *zero, rest], said) for zero in ([], ["oh"]))


def says_date(value: str, answer: str) -> bool:
    """14 March, in either order, and with a short name of the month."""
    day, month = words(value)
    said = [word for word in words(answer) if word not in {"of", "the", "on"}]
    names = [month, month[:3], month[:4]]
    return any(within(order, said) for name in names for order in ([day, name], [name, day]))


def says_code(value: str, answer: str) -> bool:
    """A code: its letters and digits, with any blanks and dashes between them."""
    signs = [re.escape(sign) for sign in value if sign.isalnum()]
    pattern = r"[\s\-–./_]*".join(signs)
    return re.search(rf"(?<![^\W_]){pattern}(?![^\W_])", answer, re.IGNORECASE) is not None


def says_cause(value: str, answer: str) -> bool:
    """A cause: it holds every stem, each of which may have alternatives, "burst pipe|plumb"."""
    said = words(answer)
    return all(
        any(word.startswith(stem) for word in said for stem in stems.split("|"))
        for stems in value.split()
    )


def says_clock(value: str, answer: str) -> bool:
    """A time of day, as in 16:07: also 4:07, 4.07 pm, seven minutes past four. A time with the
    other half of the day is wrong."""
    hour, minute = map(int, value.split(":"))
    said = words(answer)
    return any(
        minute == found_minute and _same_hour(hour, found_hour, " ".join(said))
        for found_hour, found_minute in times(said)
    )


def _same_hour(hour: int, found: int, said: str) -> bool:
    """Whether an hour of an answer is this one, unless the answer says the other half of the day."""
    other = MORNING
    if hour < 12:
        other = EVENING
    if other.search(said):
        return False
    return found == hour or (0 < found <= 12 and found % 12 == hour % 12)


def times(said: Sequence[str]) -> list[tuple[int, int]]:
    """The times of day among words, as (hour, minute). Full hours are not among them."""
    text = " ".join(SAME.get(word, word) for word in said if word not in UNSAID)
    found = [(int(hour), int(minute)) for hour, minute in CLOCK.findall(text)]
    for minute, link, hour in PAST.findall(text):
        if link == "past":
            found.append((int(hour), int(minute)))
        else:
            found.append(((int(hour) - 1) or 12, 60 - int(minute)))
    return found


CHECKS: dict[str, Callable[[str, str], bool]] = {
    "person": says_name,
    "town": says_words,
    "spot": says_cause,
    "amount": says_number,
    "clock": says_clock,
    "date": says_date,
    "year": says_year,
    "cause": says_cause,
    "code": says_code,
}
"""By type of the value: (value, answer) -> whether the answer names it."""


@dataclass(frozen=True)
class Value:
    """The value of a fact. text: as the statement has it. check: what its check looks for."""

    type: str
    text: str
    check: str

    def named_in(self, answer: str) -> bool:
        return CHECKS[self.type](self.check, answer)
