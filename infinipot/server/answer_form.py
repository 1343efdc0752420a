"""The form of one answer: which tokens may come, and how its text is read."""

from __future__ import annotations

from dataclasses import dataclass

from infinipot.engine.penalties import Constraint
from infinipot.engine.structured import TokenRules
from infinipot.text.calls.base import Family
from infinipot.text.reply import Marks, ReplyReader


@dataclass(frozen=True)
class AnswerForm:
    """How the tokens of an answer are chosen, and how its text is read."""

    family: Family | None = None
    """None: calls are not read."""
    marks: Marks | None = None
    """None: reasoning is part of the text."""
    hides_reasoning: bool = False
    single_call: bool = False
    """The answer ends with its first call."""
    rules: TokenRules | None = None
    grammar: str | None = None
    wakes: int | None = None
    """The token after which the grammar begins."""
    spelled: frozenset[int] = frozenset()
    """Special tokens that are part of what is read."""

    def reader(self) -> ReplyReader | None:
        """A reader for one answer; None if it is only text."""
        if self.family is None and self.marks is None:
            return None
        return ReplyReader(self.marks, self.family.reader() if self.family else None)

    def constraint(self) -> Constraint | None:
        if self.rules is None or self.grammar is None:
            return None
        return self.rules.constraint(self.grammar, self.wakes)


PLAIN = AnswerForm()
