"""Distil a pot when it is full, not when it might become so."""

from __future__ import annotations

from torch import Tensor

from infinipot.cache.pot import Mark, Pot
from infinipot.engine.reader import Reader


class LateDistillation:
    """Lets an answer use the room that is kept for reading the catalyst.

    The pot is marked where the catalyst still has room. Only if the pot gets full, it goes back
    there and is distilled, and what came since is read again.
    """

    def __init__(self, reader: Reader, pot: Pot, catalyst: Tensor | None) -> None:
        """catalyst: for the distillations of the answer."""
        self.reader = reader
        self.pot = pot
        self.catalyst = catalyst
        self.own_catalyst = catalyst
        """That of the first distillation."""
        self.reserve = reader.plan.reserve(catalyst)
        self.mark: Mark | None = None
        self.since: list[int] = []
        """Ids of the prompt that were read after the mark."""
        self.tokens_before = 0
        """Tokens of the answer that were read before the mark."""

    def split(self, prompt: list[int]) -> tuple[list[int], list[int]]:
        """Split a prompt, which has room, where the mark has to be set: before the second part."""
        if self.pot.room < self.reserve:  # a catalyst longer than the latest
            self.own_catalyst = self.reader.last_catalyst
        place = len(prompt)
        if self.pot.room - len(prompt) < self.reserve:
            place = max(0, int(self.pot.room) - self.reserve)
        return prompt[:place], prompt[place:]

    def set_mark(self, since: list[int], tokens: int) -> None:
        """since: ids of the prompt that follow. tokens: of the answer that were read."""
        self.mark = self.pot.mark()
        self.since = since
        self.tokens_before = tokens

    def full(self, tokens: int) -> bool:
        """Whether the pot has no room for one more token. tokens: of the answer that were read."""
        if self.mark is None and self.pot.room <= self.reserve:
            self.set_mark([], tokens)
        return self.pot.room <= 0

    @property
    def tight(self) -> bool:
        """Whether the catalyst has no room now."""
        return self.mark is not None and self.pot.room < self.reserve

    def distill(self, tokens: list[int]) -> None:
        """Go back, distil, and read again. tokens: of the answer."""
        assert self.mark is not None
        count = self.pot.tokens_read - self.mark.books.tokens_read
        ids = [*self.since, *tokens[self.tokens_before :]][:count]
        self.pot.rollback(self.mark)
        self.reader.distiller.distill(self.pot, self.own_catalyst)
        self.reader.read_into(self.pot, ids, self.catalyst)
