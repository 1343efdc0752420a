"""Cut the middle out of a text before reading (policy truncate)."""

from __future__ import annotations

import copy
import dataclasses
from collections import deque

from torch import Tensor
from transformers import PreTrainedTokenizerBase as Tokenizer

from infinipot.config import PotConfig
from infinipot.engine.passes import Passes
from infinipot.engine.reader import NoRoom, Progress, Reader
from infinipot.engine.stats import Stats
from infinipot.model.runner import ModelRunner


class CuttingReader(Reader):
    """Reads the start of a text into the first half of the pot. Its end is read before an answer, as
    far as there is room beside the question and the longest answer.

    What fits with the question is read whole, and cut only if the answer gets too long for it: so a
    text and an answer that fit do not depend on max_tokens.

    tail: the newest ids, which wait for an answer. skipped: the number of ids between the start and
    the tail. left_out: how many ids of the tail the latest answer had no room for. fresh: how many
    of its newest ids no answer has read.
    """

    keeps_answers = False

    def __init__(
        self, runner: ModelRunner, config: PotConfig, tokenizer: Tokenizer | None = None
    ) -> None:
        super().__init__(runner, config, tokenizer)
        self.tail: deque[int] = deque(maxlen=config.pot_size - config.pot_size // 2)
        self.skipped = 0
        self.left_out = 0
        self.fresh = 0

    def check_room(self, catalyst: Tensor | None, pinned: int) -> None:
        if 2 * pinned >= self.plan.pot_size:
            raise NoRoom(
                f"pot_size={self.plan.pot_size} leaves no room: pinned {pinned} takes half of it or more. "
                "Use a larger pot, or a shorter system prompt"
            )

    @property
    def progress(self) -> tuple[int, int]:
        return self.pot.tokens_read + len(self.tail) + self.skipped, self.pot.distillations

    def text_passes(
        self,
        ids: list[int],
        catalyst: Tensor | None,
        progress: Progress | None = None,
        more: bool = False,
    ) -> Passes[None]:
        here = max(0, self.config.pot_size // 2 - self.pot.length)
        self._wait(ids[here:])
        yield from super().text_passes(ids[:here], catalyst, progress, more)

    def _wait(self, ids: list[int]) -> None:
        """Add ids to the tail. The oldest ones then leave it and are skipped."""
        before = len(self.tail)
        self.tail.extend(ids)
        dropped = before + len(ids) - len(self.tail)
        self.skipped += dropped
        self.left_out = max(0, self.left_out - dropped)
        self.fresh = min(len(self.tail), self.fresh + len(ids))

    def fits(self, count: int, catalyst: Tensor | None = None) -> bool:
        if self.pot.length + count > self.plan.pot_size:
            raise NoRoom(
                f"pot_size={self.plan.pot_size} leaves no room: "
                f"the text's head {self.pot.length} + question and answer {count} is more"
            )
        return True

    def unread(self, prompt: int, answer: int) -> list[int]:
        self.fresh = 0
        self.left_out = 0
        if self.skipped or len(self.tail) > self._room(prompt):
            return self.cut(prompt, answer)
        return list(self.tail)

    def late_cut(self, prompt: list[int], answer: int) -> LateCut | None:
        if len(self.tail) - self.left_out + answer <= self._room(len(prompt)):
            return None
        return LateCut(self, prompt, answer)

    def cut(self, prompt: int, answer: int) -> list[int]:
        """Leave out what has no room beside a prompt and an answer of these lengths. Returns the
        rest of the tail."""
        self.left_out = max(0, len(self.tail) + answer - self._room(prompt))
        return list(self.tail)[self.left_out :]

    def _room(self, prompt: int) -> int:
        """Entries for the tail and the answer."""
        return self.plan.pot_size - self.pot.length - prompt

    def keep(self, ids: list[int]) -> None:
        fresh = self.fresh
        self.read(ids, None)
        self.fresh = fresh

    def waiting(self) -> tuple[list[int], int]:
        return list(self.tail), self.skipped

    def restore_waiting(self, ids: list[int], skipped: int) -> None:
        self.skipped = skipped
        self._wait(ids)

    @property
    def stats(self) -> Stats:
        stats = super().stats
        read = stats.tokens_read
        if not self.busy:  # the pot has only the start
            read += len(self.tail) - self.left_out - self.fresh
        return dataclasses.replace(
            stats, tokens_read=read, tokens_skipped=self.skipped + self.left_out
        )

    def copy(self) -> Reader:
        twin = super().copy()
        assert isinstance(twin, CuttingReader)
        twin.tail = copy.copy(self.tail)
        return twin


class LateCut:
    """Cuts a text that was read whole once the answer needs its room."""

    tight = False
    """The pot forgets the answer at its end, so nothing needs room then."""

    def __init__(self, reader: CuttingReader, prompt: list[int], answer: int) -> None:
        """answer: its most tokens. Nothing of the tail and the prompt may have been read."""
        self.reader = reader
        self.prompt = prompt
        self.answer = answer
        self.mark = reader.pot.mark()

    def full(self, tokens: int) -> bool:
        """Whether the pot has no room for one more token."""
        return self.reader.pot.room <= 0

    def distill(self, tokens: list[int]) -> None:
        """Go back to the start of the text. Read what stays of its end, the prompt, and the answer
        but its last token."""
        pot = self.reader.pot
        pot.rollback(self.mark)
        tail = self.reader.cut(len(self.prompt), self.answer)
        self.reader.read_into(pot, [*tail, *self.prompt, *tokens[:-1]], None)


def reader_for(
    runner: ModelRunner, config: PotConfig, tokenizer: Tokenizer | None = None
) -> Reader:
    """A reader for an empty pot."""
    if config.policy.cuts:
        return CuttingReader(runner, config, tokenizer)
    return Reader(runner, config, tokenizer)
