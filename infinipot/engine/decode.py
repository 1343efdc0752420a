"""Answering from a pot: one answer after another, or several together."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from infinipot.cache.pot import Mark, Pot
from infinipot.engine.cuda_graphs import graph_cache
from infinipot.engine.distill import take
from infinipot.engine.reader import LATE, Reader
from infinipot.engine.sampling import Sampler, sample
from infinipot.machine import on_device

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
    settled: Callable[[], None] = lambda: None
    """Called at the end, if the pot has changed."""


class Generation:
    """One answer: it reads its prompt, then generates token by token.

    options: the fields of `GenerationOptions`. If prompt and answer do not fit, the pot is distilled
    first, and again whenever it is full; without `keep` this happens to a copy. Call `end` last,
    also after an error.
    """

    def __init__(self, reader: Reader, prompt: list[int], **options: Any) -> None:
        reader.check_idle()
        self.options = GenerationOptions(**options)
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
        self.unread = reader.unread(self.length)
        if self.catalyst is reader.pot.newest:
            self.catalyst = self.pot.newest
        self.tokens: list[int] = []
        self.prompt_is_read = False
        reader.busy = True
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
        if self.plan.whole:
            self._distil_whole()
        elif not self.fits:
            self._distil_to_fit()
        self._read(self.unread + self.prompt)
        self.prompt_is_read = True

    def _distil_whole(self) -> None:
        """The one distillation of prefill="whole": before the question, or after it if the policy
        uses the question's own attention."""
        if LATE & self.plan.needs:
            self._read(self.prompt)
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

    def _read(self, ids: list[int]) -> None:
        if not self.fits:
            self.reader._read(self.pot, ids, self.catalyst)
        elif ids:
            for chunk in self.reader.tensor(ids).split(self.plan.chunk_tokens, dim=1):
                take(self.runner, [self.pot], chunk)

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
        return token

    def make_room(self) -> None:
        """Distil if the pot is full, so that one more token can be read."""
        if not self.fits:
            self.distiller.make_room(self.pot, self.catalyst)

    def end(self) -> None:
        """Restore the pot, or keep the answer in it, and release the reader."""
        reader = self.reader
        if self.before is not None:
            self.pot.rollback(self.before)
        self.pot.forget_logits()
        reader.pot.note_peaks(self.pot)
        if self.grows and self.prompt_is_read:
            reader.last_catalyst = self.catalyst
        elif self.keep and not self.grows and self.prompt_is_read:
            reader.read(self.prompt + self.tokens, None)
        if self.keep and reader.progress != self.progress_before:
            self.options.settled()
        reader.answer_s += time.perf_counter() - self.start_time
        reader.busy = False


def predict(generations: Sequence[Generation]) -> Tensor:
    """Next-token logits [B, V] float32 of each generation."""
    pots = [generation.pot for generation in generations]
    known = [pot.predicted for pot in pots if pot.predicted is not None]
    if len(known) < len(pots):
        hidden = torch.cat([pot.hidden for pot in pots if pot.hidden is not None])
        logits = generations[0].runner.head(hidden)[:, -1].float()
        for row, pot in enumerate(pots):
            pot.note_logits((logits, row))
        return logits
    last = known[0][0]
    if len(last) == len(pots) and all(
        logits is last and row == place for place, (logits, row) in enumerate(known)
    ):
        return last  # of one step of just these pots
    return torch.cat([pot.logits for pot in pots if pot.logits is not None])


class InvalidLogits(ValueError):
    """Logits that are not numbers."""

    def __init__(self) -> None:
        super().__init__(
            "the model's logits are not numbers: its weights are damaged, or its dtype cannot hold "
            "its activations (load it in bfloat16 or float32)"
        )


def pick(generations: Sequence[Generation], logits: Tensor) -> list[int | InvalidLogits]:
    """The next token of each generation, from logits [B, V] float32: one operation on the device and
    one copy if all use a `Sampler`. A row of logits that are not numbers has an error instead."""
    picks = [generation.options.pick for generation in generations]
    samplers = [one for one in picks if isinstance(one, Sampler)]
    invalid = ~logits.amax(dim=-1).isfinite()
    if len(samplers) < len(picks):
        rows = zip(picks, logits.split(1), invalid.tolist(), strict=True)
        return [InvalidLogits() if wrong else int(one(row)) for one, row, wrong in rows]
    tokens = torch.where(invalid, -1, sample(samplers, logits)).tolist()
    return [InvalidLogits() if token < 0 else token for token in tokens]


def advance(generations: Sequence[Generation]) -> None:
    """Read the newest token of each generation into its own pot, in one forward pass. Full pots are
    distilled first."""
    if not generations:
        return
    for generation in generations:
        generation.make_room()
    runner = generations[0].runner
    pots = [generation.pot for generation in generations]
    ids = on_device([[generation.tokens[-1]] for generation in generations], runner.device)
    watched = any(generation.grows or not generation.fits for generation in generations)
    output = graph_cache(runner).step(pots, [1] * len(pots), ids, watched=watched)
    if output is None:
        take(runner, pots, ids)
        return
    hidden, logits = output
    for row, (pot, own, state) in enumerate(zip(pots, ids.split(1), hidden.split(1), strict=True)):
        pot.follow(own, state, (logits, row))


def together(
    generations: Sequence[Generation],
) -> Generator[list[tuple[int, int]], None, None]:
    """Run generations of one model in steps, one token of each at a time.

    Each step yields (number of the generation, token id) for those that are still running. They do
    not influence each other. A generation ends as soon as it is done; closing the iterator ends all.
    """
    live = dict(enumerate(generations))
    try:
        for generation in generations:
            generation.begin()
        while live:
            tokens = []
            running = list(live.values())
            picked = pick(running, predict(running))
            for (number, generation), choice in zip([*live.items()], picked, strict=True):
                if isinstance(choice, InvalidLogits):
                    raise choice
                token = generation.accept(choice)
                if token is None:
                    live.pop(number).end()
                else:
                    tokens.append((number, token))
            advance([generations[number] for number, _ in tokens if generations[number].reads])
            yield tokens
            for number in [number for number, generation in live.items() if generation.complete]:
                live.pop(number).end()
    finally:
        for generation in live.values():
            generation.end()


def answer(
    reader: Reader,
    prompt: list[int],
    *,
    expected_progress: tuple[int, int] | None = None,
    **options: Any,
) -> Generator[int, None, None]:
    """Run one generation. Yields its token ids, without the id that ends it. Nothing happens before
    the first.

    options: the fields of `GenerationOptions`. expected_progress: `reader.progress` when the answer
    was requested. Raises RuntimeError if the reader has read on since.
    """
    reader.check_idle()
    if expected_progress is not None and expected_progress != reader.progress:
        raise RuntimeError("the session has read on since this answer was asked for: ask again")
    with closing(together([Generation(reader, prompt, **options)])) as steps:
        for step in steps:
            for _, token in step:
                yield token
