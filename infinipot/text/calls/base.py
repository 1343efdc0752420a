"""What the readers of calls share: parts of a reply, and a reader that finds calls in a stream."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar


@dataclass(frozen=True)
class Part:
    """A piece of a reply: of its text, of its reasoning, or of the call with the number `call`."""

    content: str = ""
    reasoning: str = ""
    call: int | None = None
    name: str | None = None
    """The function; in the first part of a call only."""
    arguments: str = ""
    """A piece of the arguments, which are JSON."""
    id: str = ""
    """Of the call; in its first part only."""


@dataclass(frozen=True)
class Function:
    """A function that may be called."""

    name: str
    schema: dict[str, Any]
    """JSON schema of its arguments, an object."""


T = TypeVar("T")
Quote = Callable[[str], str]
"""A text as a grammar spells it, whether its special tokens are tokens or letters."""


Steps = Generator[Part | None, None, T]
"""Yields parts, and None where more text is needed."""


class CallReader(ABC):
    """Splits a reply, piece by piece, into text and calls. Nothing of the text is lost: what begins
    like a call and is none is text."""

    openings: tuple[str, ...] = ()
    """Texts with which a call begins."""

    def __init__(self) -> None:
        self.rest = ""
        """What has not been read yet."""
        self.ended = False
        """Whether nothing follows."""
        self.count = 0
        """Calls so far."""
        self.complete = 0
        """Calls that have ended."""
        self._steps = self.run()

    def push(self, text: str, last: bool = False) -> list[Part]:
        """The parts that are certain after `text`. last: nothing follows."""
        self.rest += text
        self.ended = last
        parts: list[Part] = []
        for part in self._steps:
            if part is None:
                break
            parts.append(part)
        return joined(parts)

    def run(self) -> Steps[None]:
        """Read a whole reply."""
        while True:
            opening = yield from self.text()
            if opening is None:
                return
            yield from self.call(opening)

    @abstractmethod
    def call(self, opening: str) -> Steps[None]:
        """Read what follows an opening: one call, or several."""

    def text(self) -> Steps[str | None]:
        """Text up to the next opening, which is returned with the white space before it: before a
        call it belongs to no text. None at the end."""
        while True:
            found = [
                (self.rest.index(one), -len(one), one) for one in self.openings if one in self.rest
            ]
            if found:
                place, _, opening = min(found)
                text = self.rest[:place].rstrip()
                yield Part(content=self.take(len(text)))
                return self.take(place - len(text) + len(opening))
            cut = len(self.rest)
            if not self.ended:
                cut -= waiting(self.rest, self.openings)
                cut = len(self.rest[:cut].rstrip())
            yield Part(content=self.take(cut))
            if self.ended:
                return None
            yield None

    def take(self, count: int) -> str:
        """The next characters, which are read now."""
        text = self.rest[:count]
        self.rest = self.rest[count:]
        return text

    def until(self, marker: str) -> Steps[str]:
        """The text up to a marker, or to the end. The marker is read, too."""
        while marker not in self.rest and not self.ended:
            yield None
        text, _, self.rest = self.rest.partition(marker)
        return text

    def stream(self, markers: Sequence[str], part: Callable[[str], Part]) -> Steps[str | None]:
        """Yield the text up to the first marker as it arrives. Returns the marker, which is read,
        too; None at the end."""
        while True:
            found = [(self.rest.index(one), one) for one in markers if one in self.rest]
            if found:
                place, marker = min(found)
                yield part(self.take(place))
                self.take(len(marker))
                return marker
            held = 0 if self.ended else waiting(self.rest, markers)
            yield part(self.take(len(self.rest) - held))
            if self.ended:
                return None
            yield None

    def skip(self, marker: str) -> Steps[bool]:
        """Skip white space and a marker, if they follow. Returns whether they did."""
        while not self.ended and marker.startswith(self.rest.lstrip()[: len(marker)]):
            if len(self.rest.lstrip()) >= len(marker):
                break
            yield None
        found = self.rest.lstrip().startswith(marker)
        if found:
            self.rest = self.rest.lstrip()[len(marker) :]
        return found

    def blank(self) -> Steps[None]:
        """Skip empty lines."""
        while not (self.rest.strip() or self.ended):
            yield None
        self.rest = self.rest.lstrip("\n")

    def begin(self, name: str) -> Part:
        """The first part of the next call."""
        self.count += 1
        return Part(call=self.count - 1, name=name)

    def argument(self, text: str) -> Part:
        return Part(call=self.count - 1, arguments=text)


class Family(ABC):
    """How the models of a family write calls."""

    name: str
    signs: tuple[str, ...]
    """Texts of which a chat template of the family has at least one."""
    closing: str | None = None
    """What ends the last call of an answer, as part of it; None: the end of the answer itself does."""
    ends: tuple[str, ...] = ()
    """Tokens that end an answer with calls, beside those of other answers."""
    goes_on: tuple[str, ...] = ()
    """Tokens that end a message within an answer, not the answer."""
    bans: tuple[str, ...] = ()
    """Tokens without which no call can begin."""
    spells_reasoning: bool = False
    """Whether its reader finds reasoning, too, so that it reads every answer."""
    tokens: tuple[str, ...] = ()
    """Special tokens that are part of what its reader reads."""

    def writes(self, template: str) -> bool:
        """Whether a chat template is one of this family."""
        return any(sign in template for sign in self.signs)

    def of_functions(self, functions: Sequence[Function]) -> Family:
        """The family for an answer that may call these functions."""
        return self

    @abstractmethod
    def reader(self) -> CallReader:
        """A reader for one reply."""

    @abstractmethod
    def grammar(self, functions: Sequence[Function], several: bool, quote: Quote) -> str:
        """Lark rules whose rule `calls` is one call, or several."""


def waiting(text: str, markers: Sequence[str]) -> int:
    """Length of the end of a text that may be the beginning of a marker."""
    longest = 0
    for marker in markers:
        for length in range(min(len(marker) - 1, len(text)), longest, -1):
            if text.endswith(marker[:length]):
                longest = length
                break
    return longest


def joined(parts: Sequence[Part]) -> list[Part]:
    """The parts without empty ones, and neighbours of one kind as one."""
    out: list[Part] = []
    for part in parts:
        if part == Part(call=part.call):
            continue
        if out and part.name is None and kind(out[-1]) == kind(part):
            last = out.pop()
            part = Part(
                content=last.content + part.content,
                reasoning=last.reasoning + part.reasoning,
                call=last.call,
                name=last.name,
                arguments=last.arguments + part.arguments,
                id=last.id,
            )
        out.append(part)
    return out


def kind(part: Part) -> tuple[int | None, bool]:
    return part.call, bool(part.reasoning)


def compact(value: Any) -> str:
    """A value as JSON."""
    return json.dumps(value, ensure_ascii=False)


def alternatives(functions: Sequence[Function]) -> str:
    """`call_0 | call_1 | ...`: one rule for each function."""
    return " | ".join(f"call_{number}" for number in range(len(functions)))
