"""One pot and the ids that go through it."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from infinipot.cache.attention_stats import AttentionStats
from infinipot.cache.pot import Layout, Pot
from infinipot.config import PotConfig
from infinipot.engine.cuda_graphs import graph_cache
from infinipot.engine.distill import Distiller, take
from infinipot.engine.plan import Plan
from infinipot.model.runner import ModelRunner

Progress = Callable[[], None]
LATE = frozenset({"newest", "received"})
"""What must be remembered of attention while a text is read."""


class NoRoom(ValueError):
    """The sizes given leave no room for what is asked."""


@dataclass(frozen=True)
class Stats:
    """What a session has done and what it holds."""

    tokens_read: int
    """Tokens that became part of the pot's history: text, template, and the turns of a chat."""
    tokens_skipped: int
    """Tokens given but never shown to the model (policy `truncate`)."""
    entries: int
    """Entries per layer and KV head now."""
    peak_entries: int
    """Most entries a bounded layer held at any moment, whatever they were for."""
    distillations: int
    pot_bytes: int
    """Bytes allocated for entries: raw keys, their rotated copy, values, bookkeeping."""
    full_cache_bytes: int
    """Bytes an ordinary cache of all that was read would take."""
    timings: dict[str, float]
    """Seconds: read_s (distillations included), distill_s, answer_s."""


class Reader:
    """Reads token ids into a pot as the policy says. It knows no text."""

    keeps_answers = True
    """Whether an answer that stays becomes part of the pot as it is read."""

    def __init__(self, host: ModelRunner, config: PotConfig) -> None:
        if host.sharded and config.policy.shared_heads:
            raise ValueError(
                "shared_heads looks at all heads of a layer, but this process has only some of them (tensor parallel): leave it out, or use a "
                "model in one process"
            )
        chunk = config.chunk_tokens or (512 if host.device.type == "cpu" else 2048)
        self.host = host
        self.options = config
        self.config = config.replace(chunk_tokens=chunk)
        self.policy = config.policy
        self._adopt(Plan.of(self.config, host.windows.count(None)))
        self.score_novelty = "novelty" in self.plan.needs
        self.pot = graph_cache(host).new_pot(self._layout())
        self.busy = False
        self.last_catalyst: Tensor | None = None
        """The catalyst of the latest reading: the pot always has room for it."""
        self.read_s = self.answer_s = 0.0

    def _adopt(self, plan: Plan) -> None:
        self.plan = plan
        self.distiller = Distiller(self.host, plan)

    def settle(self, catalyst: str | None) -> None:
        """Go by this kind of catalyst, unless the pot has been distilled: the first distillation
        fixes the plan for good."""
        if not self.pot.distillations and catalyst != self.plan.catalyst:
            self._adopt(Plan.of(self.config, len(self.plan.layers), catalyst))

    def restore_plan(self, catalyst: str | None, saved: dict[str, Any] | None) -> None:
        """Go by the kind of catalyst and the plan that a pot file kept; there is no plan where
        nothing was decided, or kept."""
        self.settle(catalyst)
        if saved is not None:
            self._adopt(self.plan.restored(saved))

    @property
    def fixed_plan(self) -> Plan | None:
        """The plan, once nothing can change it."""
        if self.plan.undecided and not self.pot.distillations:
            return None
        return self.plan

    def _layout(self) -> Layout:
        config = self.config
        plan = self.plan
        policy = self.policy
        if LATE & plan.needs:
            attention_stats = AttentionStats(
                "received" in plan.needs, plan.window if "newest" in plan.needs else 0
            )
        else:
            attention_stats = None
        if plan.whole or not policy.bounded:
            if policy.grouped:
                grouping = (config.group, config.neighbours)
            else:
                grouping = None
            return Layout(
                None,
                None,
                config.context_reset,
                config.pot_dtype,
                attention_stats,
                grouping,
                policy.bounded,
            )
        sizes = tuple(layer.size for layer in plan.layers if layer.size is not None)
        return Layout(
            config.pot_size, sizes, config.context_reset, config.pot_dtype, attention_stats
        )

    def tensor(self, ids: list[int]) -> Tensor:
        return torch.tensor([ids], dtype=torch.long, device=self.host.device)

    def check_room(self, catalyst: Tensor | None, pinned: int) -> None:
        """Refuse sizes that would never let a token be read after a distillation."""
        prompt = self.plan.reserve(catalyst)
        size = self.plan.pot_size
        kept = self.plan.distill_to
        if catalyst is not None and not catalyst.shape[1]:
            raise ValueError(
                "the question is empty, so there is nothing to distil by: ask something, or use catalyst='general'"
            )
        if self.policy.bounded and kept + prompt + pinned >= size:
            raise NoRoom(
                f"pot_size={size} leaves no room: distill_to {kept} + catalyst {prompt} + pinned {pinned} needs more than "
                f"{kept + prompt + pinned}. Use a larger pot, distil to fewer entries, or shorten the question or the system prompt"
            )

    def check_idle(self) -> None:
        if self.busy:
            raise RuntimeError(
                "an answer is still being streamed from this session: finish or close it first, or fork the session"
            )

    @property
    def progress(self) -> tuple[int, int]:
        """Tokens taken in and distillations so far."""
        return self.pot.tokens_read, self.pot.distillations

    def pin(self, ids: list[int]) -> None:
        """Read the first ids of all, which no distillation will touch."""
        if ids:
            take(self.host, [self.pot], self.tensor(ids), [self.score_novelty])
            self.pot.pin(len(ids))

    def cycles(
        self, opening: Callable[[], list[int]], lists: Iterable[list[int]], catalyst: Tensor | None
    ) -> Iterator[tuple[list[int], bool]]:
        """What is to be read, opening first, in lists that end where the pot is full; and whether
        more comes.

        However a stream arrives, it is then read in chunks of few lengths: what runs for one can be
        kept for the next.
        """
        waiting: list[int] = []
        first = True
        for ids in lists:
            waiting += opening() + ids if first else ids
            first = False
            count = self._until_full(catalyst)
            while count is None or len(waiting) > count:
                yield waiting[:count], count is not None
                if count is None:
                    waiting = []
                else:
                    waiting = waiting[count:]
                if not waiting:
                    break
                count = self._until_full(catalyst)
        if waiting:
            yield waiting, False

    def _until_full(self, catalyst: Tensor | None) -> int | None:
        """How many tokens there are to the next distillation, or the one after it if the pot is
        full; None if there is none."""
        if self.pot.size is None or not self.policy.bounded:
            return None
        reserve = self.plan.reserve(catalyst)
        room = int(self.pot.room) - reserve
        if room > 0:
            return room
        return max(1, self.pot.size - self.plan.distill_to - self.pot.pinned - reserve)

    def read(
        self,
        ids: list[int],
        catalyst: Tensor | None,
        progress: Progress | None = None,
        more: bool = False,
    ) -> None:
        """Read on. catalyst: ids [1, |P|] for the distillations this takes. progress: called after
        every chunk. more: more is to be read, so a pot that is then full is distilled."""
        started = time.perf_counter()
        try:
            self._read(self.pot, ids, catalyst, progress, more)
        finally:
            self.read_s += time.perf_counter() - started

    def _read(
        self,
        pot: Pot,
        ids: list[int],
        catalyst: Tensor | None,
        progress: Progress | None = None,
        more: bool = False,
    ) -> None:
        if not ids:
            return
        if not self.has_room_for(pot, catalyst):
            self.distiller.distill(pot, self.last_catalyst)
        if pot is self.pot:
            self.last_catalyst = catalyst
        self.distiller.read(pot, self.tensor(ids), catalyst, self.score_novelty, progress, more)

    def has_room_for(self, pot: Pot, catalyst: Tensor | None) -> bool:
        """Whether the catalyst has room beside what the pot holds.

        One that is longer than the last may have none; it is preceded by the distillation that
        reading on would have made.
        """
        return self.plan.reserve(catalyst) <= pot.room

    def fits(self, count: int, catalyst: Tensor | None = None) -> bool:
        """Whether so many more entries, a question and its answer, need no distillation and leave
        room for the catalyst."""
        return count + self.plan.reserve(catalyst) <= self.pot.room

    def unread(self, count: int) -> list[int]:
        """Ids that must be read before an answer that takes so many entries."""
        return []

    def waiting(self) -> tuple[list[int], int]:
        """Ids that wait to be read, and how many were let go unread."""
        return [], 0

    def restore_waiting(self, ids: list[int], skipped: int) -> None:
        """Go on from `waiting`, as a pot file kept it."""

    @property
    def stats(self) -> Stats:
        pot = self.pot
        return Stats(
            tokens_read=pot.tokens_read,
            tokens_skipped=0,
            entries=pot.entries,
            peak_entries=pot.peak,
            distillations=pot.distillations,
            pot_bytes=pot.entry_bytes,
            full_cache_bytes=pot.tokens_read * pot.bytes_per_token,
            timings={"read_s": self.read_s, "distill_s": pot.distill_s, "answer_s": self.answer_s},
        )

    def copy(self) -> Reader:
        self.check_idle()
        twin = copy.copy(self)
        twin.pot = self.pot.copy()
        if self.last_catalyst is self.pot.newest:
            twin.last_catalyst = twin.pot.newest
        return twin
