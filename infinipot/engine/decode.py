"""Answering from a pot: one answer after another, or several together."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from typing import Any

import torch
from torch import Tensor

from infinipot.cache.pot import Mark, Pot
from infinipot.engine.cuda_graphs import graph_cache
from infinipot.engine.distill import novelty_of, take
from infinipot.engine.reader import LATE, Reader
from infinipot.text.tokens import Pieces

Pick = Callable[[Tensor], int]
"""Next-token logits [1, V] float32 -> token id."""


class Turn:
    """One answer: its prompt is read, then its tokens one by one.

    keep: prompt and answer stay in the pot; else it is afterwards as it was before. catalyst: for
    distillations made on the way, needed if keep or if prompt and answer do not fit. Then the pot
    is distilled first (a copy of it, unless keep), and again whenever it is full. settled: called
    at the end, if something of it has become part of the pot. `end` must follow, whatever happened.
    """

    def __init__(
        self,
        reader: Reader,
        prompt: list[int],
        *,
        max_tokens: int,
        pick: Pick,
        stop_ids: set[int],
        keep: bool = False,
        catalyst: Tensor | None = None,
        settled: Callable[[], None] = lambda: None,
    ) -> None:
        reader.check_idle()
        self.reader = reader
        self.host = reader.host
        self.plan = reader.plan
        self.distiller = reader.distiller
        self.prompt = prompt
        self.max_tokens = max_tokens
        self.pick = pick
        self.stop_ids = stop_ids
        self.keep = keep
        self.settled = settled
        self.came_from = reader.progress
        count = len(prompt) + max_tokens
        if self.plan.whole and keep:
            raise ValueError(
                "prefill='whole' reads everything and distils it once for each answer, so a chat has no pot to go on with: ask"
            )
        self.fits = reader.fits(count, catalyst if keep else None)
        self.grows = keep and reader.keeps_answers
        self.pot: Pot = (
            reader.pot if (self.fits and not self.plan.whole) or self.grows else reader.pot.copy()
        )
        self.before: Mark | None = None
        if not self.grows and self.pot is reader.pot:
            self.before = self.pot.mark()
        self.unread = reader.unread(count)
        self.catalyst = catalyst
        if catalyst is reader.pot.newest:
            self.catalyst = self.pot.newest
        self.said: list[int] = []
        self.asked = False
        reader.busy = True
        self.started = time.perf_counter()

    def begin(self) -> None:
        """Read what is asked; what was left unread before it, too."""
        reader = self.reader
        if self.plan.whole:
            self._distil_whole()
        elif not self.fits:
            if self.keep:
                reserve = self.plan.reserve(self.catalyst)
            else:
                reserve = 0
            count = len(self.prompt) + self.max_tokens
            self.fits = (
                self.pot.pinned + self.plan.distill_to + count + reserve <= self.plan.pot_size
            )
            if self.fits:  # after one distillation; what is longer is distilled as it is read
                room = reader.has_room_for(self.pot, self.catalyst)
                catalyst = self.catalyst if room else reader.last_catalyst
                self.distiller.distill(self.pot, catalyst)
            elif not reader.has_room_for(self.pot, self.catalyst):
                self.distiller.distill(self.pot, reader.last_catalyst)
        self._read(self.unread + self.prompt)
        self.asked = True

    def _distil_whole(self) -> None:
        """The one distillation of prefill="whole": before the question, or behind it where its own
        attention decides."""
        if LATE & self.plan.needs:
            self._read(self.prompt)
            self.prompt = []
        self.distiller.distill(self.pot, self.catalyst)

    def _read(self, ids: list[int]) -> None:
        if not self.fits:
            self.reader._read(self.pot, ids, self.catalyst)
            return
        for chunk in self.reader.tensor(ids).split(self.plan.chunk_tokens, dim=1) if ids else ():
            take(self.host, [self.pot], chunk, [self.scored])

    @property
    def scored(self) -> bool:
        """Whether what is read needs its novelty."""
        return (self.grows or not self.fits) and self.reader.score_novelty

    @property
    def reads(self) -> bool:
        """Whether the token just said must be read: not the last one, unless it stays."""
        return self.grows or len(self.said) < self.max_tokens

    def next(self, logits: Tensor) -> int | None:
        """The next token, given its logits [1, V]; None if the answer has ended."""
        if len(self.said) == self.max_tokens:
            return None
        token = self.pick(logits)
        if token in self.stop_ids:
            return None
        self.said.append(token)
        return token

    def make_room(self) -> None:
        """Distil if the pot is full, so that one more token can be read."""
        if not self.fits:
            self.distiller.make_room(self.pot, self.catalyst)

    def end(self) -> None:
        """Leave the pot as it was, or with what stays, and the reader free."""
        reader = self.reader
        if self.before is not None:
            self.pot.rollback(self.before)
        self.pot.forget_logits()
        reader.pot.note_peaks(self.pot)
        if self.grows and self.asked:
            reader.last_catalyst = self.catalyst
        elif self.keep and not self.grows and self.asked:
            reader.read(self.prompt + self.said, None)
        if self.keep and reader.progress != self.came_from:
            self.settled()
        reader.answer_s += time.perf_counter() - self.started
        reader.busy = False


def predict(turns: Sequence[Turn]) -> Tensor:
    """Logits [B, V] float32 of the next token of each turn."""
    pots = [turn.pot for turn in turns]
    if any(pot.logits is None for pot in pots):
        found = (
            turns[0]
            .host.head(torch.cat([pot.hidden for pot in pots if pot.hidden is not None]))[:, -1]
            .float()
        )
        for pot, row in zip(pots, found.split(1), strict=True):
            pot.note_logits(row)
    return torch.cat([pot.logits for pot in pots if pot.logits is not None])


def advance(turns: Sequence[Turn]) -> None:
    """Read what each turn said last, in one forward pass, each into its own pot; a pot that is full
    is distilled first."""
    if not turns:
        return
    for turn in turns:
        turn.make_room()
    host = turns[0].host
    pots = [turn.pot for turn in turns]
    ids = torch.tensor([[turn.said[-1]] for turn in turns], device=host.device)
    scored = [turn.scored for turn in turns]
    read = graph_cache(host).step(
        pots, ids, watched=any(turn.grows or not turn.fits for turn in turns)
    )
    if read is None:
        take(host, pots, ids, scored)
        return
    hidden, logits = read
    losses = novelty_of(host, pots, ids, hidden, scored)
    for pot, row, state, loss, following in zip(
        pots, ids.split(1), hidden.split(1), losses.split(1), logits.split(1), strict=True
    ):
        pot.follow(row, state, loss, following)


def together(turns: Sequence[Turn]) -> Generator[list[tuple[int, int]], None, None]:
    """Run turns of one model, a token of each at a time.

    Yields (number of the turn, token id) of those that said something. Turns do not influence each
    other; each is ended as soon as it is done, and all are when the iterator is closed.
    """
    live = dict(enumerate(turns))
    try:
        for turn in turns:
            turn.begin()
        while live:
            said = []
            for (number, turn), logits in zip(
                list(live.items()), predict(list(live.values())).split(1), strict=True
            ):
                token = turn.next(logits)
                if token is None:
                    live.pop(number).end()
                else:
                    said.append((number, token))
            advance([turns[number] for number, _ in said if turns[number].reads])
            yield said
    finally:
        for turn in live.values():
            turn.end()


def answer(
    reader: Reader, prompt: list[int], *, seen: tuple[int, int] | None = None, **options: Any
) -> Generator[int, None, None]:
    """Run one turn, with the options of `Turn`: yields its token ids, without the one that ends it.
    Nothing happens before the first.

    seen: `reader.progress` when the answer was asked for.
    """
    reader.check_idle()
    if seen is not None and seen != reader.progress:
        raise RuntimeError("the session has read on since this answer was asked for: ask again")
    with closing(together([Turn(reader, prompt, **options)])) as steps:
        for said in steps:
            for _, token in said:
                yield token


class Answer(Iterator[str]):
    """An answer in pieces of text, as they come. Dropping it, at any piece, leaves the session
    free.

    ids: its tokens so far. finish_reason: None while it runs, then `stop` (it ended, or a stop text
    came) or `length` (max_tokens).
    """

    def __init__(self, tokens: Generator[int, None, None], pieces: Pieces, max_tokens: int) -> None:
        self.ids: list[int] = []
        self._reasons: list[str] = []
        self._run = _shown(tokens, pieces, max_tokens, self.ids, self._reasons)

    @property
    def finish_reason(self) -> str | None:
        if self._reasons:
            return self._reasons[0]
        return None

    def __next__(self) -> str:
        return next(self._run)

    def close(self) -> None:
        """Stop here: the session is free again."""
        self._run.close()


def _shown(
    tokens: Generator[int, None, None],
    pieces: Pieces,
    max_tokens: int,
    ids: list[int],
    reasons: list[str],
) -> Generator[str, None, None]:
    """The pieces; ids and the reason for the end are noted. Apart from Answer, so that no cycle
    keeps a dropped answer alive."""
    with closing(tokens):
        for token in tokens:
            ids.append(token)
            if piece := pieces.push(token):
                yield piece
            if pieces.stopped:
                break
        reasons.append("length" if len(ids) == max_tokens and not pieces.stopped else "stop")
    if piece := pieces.finish():
        yield piece
