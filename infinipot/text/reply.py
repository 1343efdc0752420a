"""A reply as it arrives: its reasoning, its text, its calls."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from infinipot.text.calls.base import CallReader, Part, Steps, joined

MARKS = (("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("<|channel>thought", "<channel|>"))
"""What stands around reasoning, in several families."""


@dataclass(frozen=True)
class Marks:
    """What stands around a model's reasoning."""

    start: str
    close: str
    begun: bool
    """Whether the chat template itself writes the start, so that an answer begins inside."""

    @property
    def texts(self) -> tuple[str, str]:
        return self.start, self.close


def reasoning_marks(template: str, ask: str) -> Marks | None:
    """The marks that a chat template knows; None if its models do not reason. ask: what the template
    writes before an answer."""
    for start, close in MARKS:
        if close in template:
            before = ask.rstrip()
            return Marks(start, close, before.endswith(start))
    return None


class ReasoningReader(CallReader):
    """The reasoning at the start of a reply, and the text behind it as it is."""

    def __init__(self, marks: Marks) -> None:
        super().__init__()
        self.marks = marks

    def call(self, opening: str) -> Steps[None]:
        raise AssertionError("calls are read behind the reasoning")

    def run(self) -> Steps[None]:
        begun = self.marks.begun or (yield from self.skip(self.marks.start))
        if begun:
            yield from self.blank()
            closed = yield from self.stream((self.marks.close,), lambda text: Part(reasoning=text))
            if closed is None:
                return
            yield from self.blank()
        while True:
            yield Part(content=self.take(len(self.rest)))
            if self.ended:
                return
            yield None


@dataclass
class Call:
    """A call, as far as it has arrived."""

    id: str
    name: str
    arguments: str = ""

    def message(self) -> dict[str, Any]:
        """In OpenAI's form."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


@dataclass
class Reply:
    """What a reply holds so far."""

    content: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)

    @property
    def is_text(self) -> bool:
        """Whether it holds nothing but text."""
        return not (self.reasoning or self.calls)

    def add(self, part: Part) -> None:
        self.content += part.content
        self.reasoning += part.reasoning
        if part.call is None:
            return
        if part.name is not None:
            self.calls.append(Call(part.id, part.name))
        self.calls[part.call].arguments += part.arguments


class ReplyReader:
    """Splits a reply into parts. marks, calls: None if it holds no reasoning, or no calls."""

    def __init__(self, marks: Marks | None, calls: CallReader | None) -> None:
        self._reasoning = ReasoningReader(marks) if marks else None
        self._calls = calls

    @property
    def complete(self) -> int:
        """Calls that have ended."""
        return self._calls.complete if self._calls else 0

    def push(self, text: str, last: bool = False) -> list[Part]:
        """The parts that are certain after `text`. last: nothing follows."""
        parts = [Part(content=text)]
        if self._reasoning is not None:
            parts = self._reasoning.push(text, last)
        if self._calls is None:
            return joined(parts)
        out = [part for part in parts if part.reasoning]
        behind = "".join(part.content for part in parts)
        if behind or last:
            out += self._calls.push(behind, last)
        return joined(out)
