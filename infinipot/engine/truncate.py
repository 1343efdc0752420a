"""Cut the middle out of a text before reading (policy truncate)."""

from __future__ import annotations

import copy
import dataclasses
from collections import deque

from torch import Tensor

from infinipot.cache.pot import Layout
from infinipot.config import PotConfig
from infinipot.engine.reader import NoRoom, Progress, Reader, Stats
from infinipot.model.runner import ModelRunner


class CuttingReader(Reader):
    """Reads the start of a text into the first half of the pot. Its end is read before an answer, as
    far as there is room.

    tail: the newest ids, not read yet. skipped: the number of ids that are never read.
    """

    keeps_answers = False

    def __init__(self, runner: ModelRunner, config: PotConfig) -> None:
        super().__init__(runner, config)
        self.tail: deque[int] = deque(maxlen=config.pot_size)
        self.skipped = 0

    def _layout(self) -> Layout:
        return Layout(self.config.pot_size, None, self.config.context_reset, self.config.pot_dtype)

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
        self.skipped += max(0, len(self.tail) + len(ids[here:]) - self.config.pot_size)
        self.tail.extend(ids[here:])
        super().read(ids[:here], catalyst, progress, more)

    def fits(self, count: int, catalyst: Tensor | None = None) -> bool:
        if self.pot.length + count > self.plan.pot_size:
            raise NoRoom(
                f"pot_size={self.plan.pot_size} leaves no room: "
                f"the text's head {self.pot.length} + question and answer {count} is more"
            )
        return True

    def unread(self, count: int) -> list[int]:
        room = self.plan.pot_size - self.pot.length - count
        return list(self.tail)[max(0, len(self.tail) - room) :]

    def waiting(self) -> tuple[list[int], int]:
        return list(self.tail), self.skipped

    def restore_waiting(self, ids: list[int], skipped: int) -> None:
        self.tail.extend(ids)
        self.skipped = skipped

    @property
    def stats(self) -> Stats:
        stats = super().stats
        return dataclasses.replace(
            stats, tokens_read=stats.tokens_read + len(self.tail), tokens_skipped=self.skipped
        )

    def copy(self) -> Reader:
        twin = super().copy()
        assert isinstance(twin, CuttingReader)
        twin.tail = copy.copy(self.tail)
        return twin


def reader_for(runner: ModelRunner, config: PotConfig) -> Reader:
    """A reader for an empty pot."""
    if config.policy.cuts:
        return CuttingReader(runner, config)
    return Reader(runner, config)
