"""Read token ids into one pot."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from transformers import PreTrainedTokenizerBase as Tokenizer

from infinipot.cache.pot import Pot
from infinipot.config import PotConfig
from infinipot.engine.distill import new_distiller
from infinipot.engine.full_pot import FullPot
from infinipot.engine.joint import alone
from infinipot.engine.observe import ByLayer
from infinipot.engine.passes import Pass, Passes
from infinipot.engine.plan import Plan, chunk_tokens, layout_of
from infinipot.engine.stats import Stats
from infinipot.engine.turns import Turns
from infinipot.machine import on_device
from infinipot.model.runner import ModelRunner
from infinipot.text.sentences import sentence_ends

Progress = Callable[[], None]


class NoRoom(ValueError):
    """The sizes leave no room for the request."""


class Reader(Turns):
    """Reads token ids into a pot by a policy."""

    keeps_answers = True
    """Whether the tokens of an answer to keep stay in the pot as they are generated."""

    def __init__(
        self, runner: ModelRunner, config: PotConfig, tokenizer: Tokenizer | None = None
    ) -> None:
        """tokenizer: tells where sentences end, for policies that look at them."""
        super().__init__()
        self.policy = config.policy
        self.tokenizer = tokenizer
        self.runner = runner
        self.options = config
        self.config = config.replace(chunk_tokens=chunk_tokens(config, runner))
        self._adopt(Plan.of(self.config, runner.windows.count(None)))
        self.pot = runner.new_pot(layout_of(self.config, self.plan))
        runner.check_length(self.pot.size)
        self.last_catalyst: Tensor | None = None
        """The catalyst of the latest reading, for which the pot always has room."""
        self.full: FullPot | None = None
        """The pot when it was filled last, if more followed."""
        self.read_s = self.answer_s = 0.0
        self.tokens_given = 0
        """Tokens of texts that `cycles` has got so far: those read, and those that wait."""

    def _adopt(self, plan: Plan) -> None:
        self.plan = plan
        ends = None
        if "sentences" in plan.needs:
            ends = sentence_ends(self.tokenizer, self.runner.vocabulary).to(self.runner.device)
        self.distiller = new_distiller(self.runner, plan, ends)

    def settle(self, catalyst: str | None) -> None:
        """Use the plan for this kind of catalyst, unless the pot was distilled before: the first
        distillation fixes the plan."""
        if not self.pot.distillations and catalyst != self.plan.catalyst:
            self._adopt(Plan.of(self.config, len(self.plan.layers), catalyst))

    def restore_plan(self, catalyst: str | None, saved: dict[str, Any] | None) -> None:
        """Use the kind of catalyst and the plan from a pot file. saved: None if the plan was
        undecided, or in older formats."""
        self.settle(catalyst)
        if saved is not None:
            self._adopt(self.plan.restored(saved))

    @property
    def fixed_plan(self) -> Plan | None:
        """The plan; None while it can still change."""
        if self.plan.undecided and not self.pot.distillations:
            return None
        return self.plan

    def tensor(self, ids: list[int]) -> Tensor:
        self.runner.check_ids(ids)
        return on_device([ids], self.runner.device)

    def check_room(self, catalyst: Tensor | None, pinned: int) -> None:
        """Raise NoRoom if no token could be read after a distillation."""
        prompt = self.plan.reserve(catalyst)
        size = self.plan.pot_size
        budget = self.plan.distill_to
        if catalyst is not None and not catalyst.shape[1]:
            raise ValueError(
                "the question is empty, so there is nothing to distil by: "
                "ask something, or use catalyst='general'"
            )
        if self.policy.bounded and budget + prompt + pinned >= size:
            raise NoRoom(
                f"pot_size={size} leaves no room: distill_to {budget} + catalyst {prompt} + "
                f"pinned {pinned} needs more than {budget + prompt + pinned}. Use a larger pot, "
                "distil to fewer entries, or shorten the question or the system prompt"
            )

    def check_idle(self) -> None:
        """As `Turns.check_idle`; raises RuntimeError, too, if the model has been changed."""
        self.runner.check_unchanged()
        super().check_idle()

    @property
    def progress(self) -> tuple[int, int]:
        """Number of tokens and of distillations so far."""
        return self.pot.tokens_read, self.pot.distillations

    def pin(self, ids: list[int]) -> None:
        """Read the first ids of all. Distillations always keep them."""
        alone(self.runner, self.pin_passes(ids))

    def pin_passes(self, ids: list[int]) -> Passes[None]:
        """`pin` as passes."""
        if ids:
            yield Pass(self.pot, self.tensor(ids))
            self.pot.pin(len(ids))

    def cycles(
        self, opening: Callable[[], list[int]], lists: Iterable[list[int]], catalyst: Tensor | None
    ) -> Iterator[tuple[list[int], bool]]:
        """Regroup `opening` and lists of ids into lists that fill the pot. Yields (ids, whether
        more follows).

        The lists then have few different lengths for any stream, so that recordings are reused.
        """
        waiting: list[int] = []
        first = True
        for ids in lists:
            if first:
                waiting += opening()
                first = False
            waiting += ids
            self.tokens_given += len(ids)
            count = self.until_full(catalyst)
            while count is None or len(waiting) > count:
                yield waiting[:count], count is not None
                if count is None:
                    waiting = []
                else:
                    waiting = waiting[count:]
                if not waiting:
                    break
                count = self.until_full(catalyst)
        if waiting:
            yield waiting, False

    def until_full(self, catalyst: Tensor | None) -> int | None:
        """Number of tokens until the next distillation, or until the one after it if the pot is
        full; None if there is none."""
        if self.pot.size is None or not self.policy.bounded:
            return None
        reserve = self.plan.reserve(catalyst)
        room = int(self.pot.room) - reserve
        if room > 0:
            return room
        return max(1, self.pot.size - self.plan.distill_to - self.pot.pinned - reserve)

    def read(
        self, ids: list[int], catalyst: Tensor | None, progress: Progress | None = None
    ) -> None:
        """Read ids. catalyst: ids [1, |P|] for distillations. progress: called after every chunk."""
        alone(self.runner, self.text_passes(ids, catalyst, progress))

    def text_passes(
        self,
        ids: list[int],
        catalyst: Tensor | None,
        progress: Progress | None = None,
        more: bool = False,
    ) -> Passes[None]:
        """`read` as passes. more: the ids fill the pot, and more follow; `distil_full` then distils
        it."""
        self.runner.check_ids(ids)
        with self._timed():
            seen = yield from self.passes(self.pot, ids, catalyst, progress, more)
        if more:
            self.full = FullPot(self.progress, catalyst, seen)

    @property
    def is_full(self) -> bool:
        """Whether `distil_full` has something to do: not if the reader has read on since."""
        return self.full is not None and self.full.progress == self.progress

    def distil_full(self) -> None:
        """Distil the pot if it has been filled, and more follows."""
        full = self.full
        if full is not None and self.is_full:
            with self._timed():
                self.distiller.make_room(self.pot, full.catalyst, full.seen)
        self.full = None

    @contextmanager
    def _timed(self) -> Iterator[None]:
        """Count the seconds as reading."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.read_s += time.perf_counter() - started

    def passes(
        self,
        pot: Pot,
        ids: list[int],
        catalyst: Tensor | None,
        progress: Progress | None = None,
        more: bool = False,
    ) -> Passes[ByLayer | None]:
        """`read_into` as passes. progress, more: as for `Distiller.passes`, whose result it is."""
        if not ids:
            return None
        if not self.has_room_for(pot, catalyst):
            self.distiller.distill(pot, self.last_catalyst)
        if pot is self.pot:
            self.last_catalyst = catalyst
        tensor = self.tensor(ids)
        return (yield from self.distiller.passes(pot, tensor, catalyst, progress, more))

    def read_into(self, pot: Pot, ids: list[int], catalyst: Tensor | None) -> None:
        """Read ids into this reader's pot or a copy."""
        alone(self.runner, self.passes(pot, ids, catalyst))

    def has_room_for(self, pot: Pot, catalyst: Tensor | None) -> bool:
        """Whether the pot has room for the catalyst. A catalyst longer than the latest may have
        none, until the next distillation."""
        return self.plan.reserve(catalyst) <= pot.room

    def fits(self, count: int, catalyst: Tensor | None = None) -> bool:
        """Whether `count` more entries leave room for the catalyst without a distillation."""
        return count + self.plan.reserve(catalyst) <= self.pot.room

    def unread(self, prompt: int, answer: int) -> list[int]:
        """Ids to read before a prompt and an answer of at most these lengths."""
        return []

    def late_cut(self, prompt: list[int], answer: int) -> Any:
        """What cuts the text if the answer gets too long for it; None if that cannot be."""
        return None

    def keep(self, ids: list[int]) -> None:
        """Add a prompt and its answer after the pot has been restored."""
        self.read(ids, None)

    def waiting(self) -> tuple[list[int], int]:
        """Ids that are not read yet, and the number of ids that were skipped."""
        return [], 0

    def restore_waiting(self, ids: list[int], skipped: int) -> None:
        """Restore the result of `waiting`."""

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
        twin.thread = None
        twin.full = None
        twin.pot = self.pot.copy()
        if self.last_catalyst is self.pot.newest:
            twin.last_catalyst = twin.pot.newest
        return twin
