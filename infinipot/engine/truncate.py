"""Cut the middle out of a text before reading (policy truncate)."""

from __future__ import annotations

import copy
import dataclasses
from collections import deque

from torch import Tensor
from transformers import PreTrainedTokenizerBase as Tokenizer

from infinipot.config import PotConfig
from infinipot.engine.reader import NoRoom, Progress, Reader, Stats
from infinipot.model.runner import ModelRunner


class CuttingReader(Reader):
    """Reads the start of a text into the first half of the pot. Its end is read before an answer, as
    far as there is room.

    tail: the newest ids, which wait for an answer. skipped: the number of ids between the start and
    the tail. left_out: how many ids of the tail the latest answer had no room for.
    """

    keeps_answers = False

    def __init__(
        self, runner: ModelRunner, config: PotConfig, tokenizer: Tokenizer | None = None
    ) -> None:
        super().__init__(runner, config, tokenizer)
        self.tail: deque[int] = deque(maxlen=config.pot_size - config.pot_size // 2)
        self.skipped = 0
        self.left_out = 0

    def check_room(self, catalyst: Tensor | None, pinned: int) -> None:
        if 2 * pinned >= self.plan.pot_size:
            raise NoRoom(
                f"pot_size={self.plan.pot_size} leaves no room: pinned {pinned} takes half of it or more. "
                "Use a larger pot, or a shorter system prompt"
            )

    @property
    def progress(self) -> tuple[int, int]:
        return self.pot.tokens_read + len(self.tail) + self.skipped, self.pot.distillations

    def read(
        self,
        ids: list[int],
        catalyst: Tensor | None,
        progress: Progress | None = None,
        more: bool = False,
    ) -> None:
        here = max(0, self.config.pot_size // 2 - self.pot.length)
        self._wait(ids[here:])
        super().read(ids[:here], catalyst, progress, more)

    def _wait(self, ids: list[int]) -> None:
        """Add ids to the tail. The oldest ones then leave it and are skipped."""
        before = len(self.tail)
        self.tail.extend(ids)
        dropped = before + len(ids) - len(self.tail)
        self.skipped += dropped
        self.left_out = max(0, self.left_out - dropped)

    def fits(self, count: int, catalyst: Tensor | None = None) -> bool:
        if self.pot.length + count > self.plan.pot_size:
            raise NoRoom(
                f"pot_size={self.plan.pot_size} leaves no room: "
                f"the text's head {self.pot.length} + question and answer {count} is more"
            )
        return True

    def unread(self, count: int) -> list[int]:
        room = self.plan.pot_size - self.pot.length - count
        self.left_out = max(0, len(self.tail) - room)
        return list(self.tail)[self.left_out :]

    def waiting(self) -> tuple[list[int], int]:
        return list(self.tail), self.skipped

    def restore_waiting(self, ids: list[int], skipped: int) -> None:
        self.skipped = skipped
        self._wait(ids)

    @property
    def stats(self) -> Stats:
        total = self.progress[0]
        skipped = self.skipped + self.left_out
        return dataclasses.replace(
            super().stats, tokens_read=total - skipped, tokens_skipped=skipped
        )

    def copy(self) -> Reader:
        twin = super().copy()
        assert isinstance(twin, CuttingReader)
        twin.tail = copy.copy(self.tail)
        return twin


def reader_for(
    runner: ModelRunner, config: PotConfig, tokenizer: Tokenizer | None = None
) -> Reader:
    """A reader for an empty pot."""
    if config.policy.cuts:
        return CuttingReader(runner, config, tokenizer)
    return Reader(runner, config, tokenizer)
