"""One answer from a pot: its prompt, its tokens, and when the pot is distilled."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from infinipot.cache.pot import Mark, Pot
from infinipot.engine.joint import alone
from infinipot.engine.late import LateDistillation
from infinipot.engine.passes import Pass, Passes
from infinipot.engine.plan import LATE
from infinipot.engine.reader import Reader
from infinipot.engine.sampling import PickedTokens, Sampler
from infinipot.engine.truncate import LateCut

Pick = Callable[[Tensor], int]
"""Next-token logits [1, V] float32 -> token id. A `Sampler` picks for many generations at once."""


@dataclass(frozen=True, kw_only=True)
class GenerationOptions:
    """How an answer is generated."""

    max_tokens: int
    pick: Pick
    stop_ids: set[int]
    keep: bool = False
    """Prompt and answer become part of the pot. Otherwise the pot is restored at the end."""
    catalyst: Tensor | None = None
    """Token ids for distillations during the generation. Needed with `keep`, and if prompt and
    answer do not fit."""
    sampler: Sampler | None = None
    """The sampler within `pick`, which must know the answer's tokens; None: `pick` itself, if it is
    one."""
    settled: Callable[[], None] = lambda: None
    """Called at the end, if the pot has changed."""


class Generation:
    """One answer: it reads its prompt, then generates token by token.

    options: the fields of `GenerationOptions`. The pot is distilled when it is full; before the
    prompt, if that does not fit. Without `keep` this happens to a copy. Call `end` last, also after
    an error.
    """

    def __init__(self, reader: Reader, prompt: list[int], **options: Any) -> None:
        self.options = GenerationOptions(**options)
        reader.occupy()
        try:
            self._prepare(reader, prompt)
        except BaseException:
            reader.busy = False
            raise

    def _prepare(self, reader: Reader, prompt: list[int]) -> None:
        self.reader = reader
        self.runner = reader.runner
        self.plan = reader.plan
        self.distiller = reader.distiller
        self.prompt = prompt
        self.keep = self.options.keep
        self.catalyst = self.options.catalyst
        self.progress_before = reader.progress
        if self.plan.whole and self.keep:
            raise ValueError(
                "prefill='whole' reads everything and distils it once for each answer, "
                "so a chat has no pot to go on with: ask"
            )
        self.fits = reader.fits(self.length, self.catalyst if self.keep else None)
        self.grows = self.keep and reader.keeps_answers
        self.pot = self._own_pot()
        self.before: Mark | None = None
        if not self.grows and self.pot is reader.pot:
            self.before = self.pot.mark()
        self.unread = reader.unread(len(prompt), self.options.max_tokens)
        if self.catalyst is reader.pot.newest:
            self.catalyst = self.pot.newest
        self.tokens: list[int] = []
        self.sampler = self.options.sampler
        if isinstance(self.options.pick, Sampler):
            self.sampler = self.options.pick
        if self.sampler is not None:
            self.sampler.answer.begin(prompt, self.options.stop_ids)
        self.picked: tuple[PickedTokens, int] | None = None
        """The next token if it is picked already: those of several answers, and its place there."""
        self.prompt_is_read = False
        self.late: LateDistillation | LateCut | None = None
        """Until the first distillation or cut for an answer that may not fit."""
        self.start_time = time.perf_counter()

    @property
    def length(self) -> int:
        """Most entries that prompt and answer take."""
        return len(self.prompt) + self.options.max_tokens

    def _own_pot(self) -> Pot:
        """The reader's pot, or a copy if a distillation must leave the reader's pot unchanged."""
        if self.grows or (self.fits and not self.plan.whole):
            return self.reader.pot
        return self.reader.pot.copy()

    def begin(self) -> None:
        """Read the prompt, after the ids that the reader has not read yet."""
        alone(self.runner, self.passes())

    def passes(self) -> Passes[None]:
        """`begin` as passes."""
        ids = self.unread + self.prompt
        if self.plan.whole:
            yield from self._distil_whole()
            yield from self._read(self.unread + self.prompt)
        elif self.fits:
            self.late = self.reader.late_cut(self.prompt, self.options.max_tokens)
            yield from self._read(ids)
        elif len(ids) <= self.pot.room:
            yield from self._read_late(ids)
        else:
            self._distil_to_fit()
            yield from self._read(ids)
        self.prompt_is_read = True

    def _read_late(self, ids: list[int]) -> Passes[None]:
        """Read a prompt for which the pot has room."""
        late = LateDistillation(self.reader, self.pot, self.catalyst)
        first, rest = late.split(ids)
        yield from self._read_whole(first)
        if rest:
            late.set_mark(rest, 0)
            yield from self._read_whole(rest)
        self.late = late

    def _distil_whole(self) -> Passes[None]:
        """The one distillation of prefill="whole": before the question, or after it if the policy
        uses the question's own attention."""
        if LATE & self.plan.needs:
            yield from self._read(self.prompt)
            self.prompt = []
        self.distiller.distill(self.pot, self.catalyst)

    def _distil_to_fit(self) -> None:
        """Distil if prompt and answer fit afterwards, or if the catalyst has no room now."""
        reserve = 0
        if self.keep:
            reserve = self.plan.reserve(self.catalyst)
        entries = self.pot.pinned + self.plan.distill_to + self.length + reserve
        self.fits = entries <= self.plan.pot_size
        room = self.reader.has_room_for(self.pot, self.catalyst)
        if not room:
            self.distiller.distill(self.pot, self.reader.last_catalyst)
        elif self.fits:
            self.distiller.distill(self.pot, self.catalyst)

    def _read(self, ids: list[int]) -> Passes[None]:
        if self.fits:
            yield from self._read_whole(ids)
        else:
            yield from self.reader.passes(self.pot, ids, self.catalyst)

    def _read_whole(self, ids: list[int]) -> Passes[None]:
        """Read ids that fit."""
        if ids:
            for chunk in self.reader.tensor(ids).split(self.plan.chunk_tokens, dim=1):
                yield Pass(self.pot, chunk)

    @property
    def reads(self) -> bool:
        """Whether the newest token must be read. The last token is read only if it stays."""
        return self.grows or len(self.tokens) < self.options.max_tokens

    @property
    def complete(self) -> bool:
        """Whether it has all its tokens."""
        return len(self.tokens) == self.options.max_tokens

    def accept(self, token: int) -> int | None:
        """Take the token that was picked. Returns None if the answer ends before it."""
        if self.complete or token in self.options.stop_ids:
            return None
        self.tokens.append(token)
        if self.sampler is not None:
            self.sampler.answer.accept(token)
        return token

    def make_room(self) -> None:
        """Distil if the pot is full, so that one more token can be read."""
        if self.late is not None:
            if not self.late.full(len(self.tokens) - 1):
                return
            self._distil_late()
        if not self.fits:
            self.distiller.make_room(self.pot, self.catalyst)

    def _distil_late(self) -> None:
        late = self.late
        self.late = None
        if late is not None:
            late.distill(self.tokens)

    def end(self) -> None:
        """Restore the pot, or keep the answer in it, and release the reader."""
        try:
            self._leave()
        finally:
            self.reader.busy = False
            if self.sampler is not None:
                self.sampler.answer.end()

    def _leave(self) -> None:
        reader = self.reader
        if self.grows and self.late is not None and self.late.tight:
            self._distil_late()  # the next catalyst needs room
        if self.before is not None:
            self.pot.rollback(self.before)
        self.pot.forget_logits()
        reader.pot.note_peaks(self.pot)
        if self.grows and self.prompt_is_read:
            reader.last_catalyst = self.catalyst
        elif self.keep and not self.grows and self.prompt_is_read:
            reader.keep(self.prompt + self.tokens)
        if self.keep and reader.progress != self.progress_before:
            self.options.settled()
        reader.answer_s += time.perf_counter() - self.start_time
