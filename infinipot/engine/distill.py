"""CCD: read until the pot is full, distil it, read on (paper, section 3.2)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from infinipot.cache.layer import PotLayer
from infinipot.cache.pot import Pot
from infinipot.engine.cuda_graphs import graph_cache
from infinipot.engine.observe import ByLayer, Watcher, watching
from infinipot.engine.plan import Plan
from infinipot.model.runner import ModelRunner, Observer
from infinipot.scoring.novelty import predicted


def take(
    runner: ModelRunner,
    pots: Sequence[Pot],
    ids: Tensor,
    score_novelty: Sequence[bool],
    suffix: Tensor | None = None,
    watch: Observer | None = None,
) -> None:
    """Read ids [B, T], a row into each pot, which must have room. Note the novelty of the rows in
    `score_novelty`.

    The hidden state before a chunk predicts its first token. The first token of a text has novelty
    0. suffix: ids [1, |P|] of the catalyst, read in the same forward pass behind the ids of a single
    pot, observed by `watch`, and removed again.
    """
    before = [pot.mark() for pot in pots]
    try:
        if suffix is None:
            hidden = runner.read(ids, pots, watch)
        else:
            hidden = runner.read(torch.cat((ids, suffix), dim=1), pots, watch)[:, : ids.shape[1]]
            pots[0].advance(-suffix.shape[1])
        losses = novelty_of(runner, pots, ids, hidden, score_novelty)
    except BaseException:
        for pot, mark in zip(pots, before, strict=True):
            # interrupted, or out of memory: all layers must have the same entries
            pot.rollback(mark)
        raise
    for pot, row, state, loss in zip(
        pots, ids.split(1), hidden.split(1), losses.split(1), strict=True
    ):
        pot.follow(row, state[:, -1:].clone(), loss)


def novelty_of(
    runner: ModelRunner, pots: Sequence[Pot], ids: Tensor, hidden: Tensor, score: Sequence[bool]
) -> Tensor:
    """NuC [B, T] of ids that the pots have just read, from hidden states [B, T, hidden], in one pass
    of the head. Rows without `score` are zero."""
    losses = torch.zeros(ids.shape, device=hidden.device)
    rows = [row for row, scored in enumerate(score) if scored]
    if rows:  # slices, because a CUDA graph cannot record an index from the runner
        targets = torch.cat([ids[row : row + 1] for row in rows])
        nats = predicted([pots[row].logits for row in rows], targets)
        if nats is None:
            states = [_predicting(pots[row], hidden[row : row + 1]) for row in rows]
            nats = runner.novelty(torch.cat(states), targets)
        for row, loss in zip(rows, nats, strict=True):
            losses[row] = loss
            if pots[row].hidden is None:  # the first token of a text
                losses[row, 0] = 0
    return losses


def _predicting(pot: Pot, hidden: Tensor) -> Tensor:
    """The hidden states [1, T, hidden] that predict a row's tokens: the last state before them, then
    their own without the last. A new pot has none before, and repeats the first."""
    before = pot.hidden
    if before is None:
        before = hidden[:, :1]
    return torch.cat((before, hidden[:, :-1]), dim=1)


class Distiller:
    """Reads into pots of one model, and distils them by one plan."""

    def __init__(self, runner: ModelRunner, plan: Plan) -> None:
        self.runner = runner
        self.plan = plan
        self.watcher = Watcher(runner, plan)

    @torch.no_grad()
    def distill(self, pot: Pot, catalyst: Tensor | None, prescored: ByLayer | None = None) -> None:
        """One distillation: observe, select, compact. Afterwards every bounded layer has its pinned
        entries and its budget.

        catalyst: token ids [1, |P|], or [2, |P|] with a contrast, for which the pot must have room;
        None for policies that need none. prescored: by layer, the attention that entries received
        from the first row, if it was read behind the last chunk.
        """
        numbers = [number for number, layer in enumerate(pot.layers) if isinstance(layer, PotLayer)]
        layers = zip(pot.bounded, self.plan.layers, strict=True)
        if all(layer.length - pot.pinned <= plan.budget for layer, plan in layers):
            return
        started = time.perf_counter()
        prompted = self.watcher.prompted(pot, catalyst, prescored)
        choices = [
            self._choose(pot, number, place, prompted) for place, number in enumerate(numbers)
        ]
        # evict nothing before every layer has chosen: a failure leaves the pot whole
        for number, choice in zip(numbers, choices, strict=True):
            slots, index, novelty, past = choice
            pot.layers[number].keep(slots, index, novelty, pot.pinned, past)
        pot.distilled(time.perf_counter() - started)

    def _choose(
        self, pot: Pot, number: int, place: int, prompted: dict[str, ByLayer]
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """The slots [B, K, C] that a layer keeps; place in the text, NuC and score of all its
        entries. place: as for `Watcher.layer`."""
        observation, index, novelty = self.watcher.layer(pot, number, place, prompted)
        policy = self.plan.policy
        budget = min(self.plan.layers[place].budget, observation.index.shape[-1])
        scores = policy.judge(observation)
        if scores is not None and scores.shape != observation.index.shape:
            raise ValueError(
                f"policy {policy.name!r} gave scores of shape {tuple(scores.shape)}: "
                f"they must be [B, K, P] = {tuple(observation.index.shape)}"
            )
        indices = policy.choose(observation, scores, budget)
        head = torch.arange(pot.pinned, device=indices.device).expand(*indices.shape[:2], -1)
        past = None
        if scores is not None and self.plan.remembers:
            past = F.pad(scores, (pot.pinned, 0))
        return torch.cat((head, indices + pot.pinned), dim=-1), index, novelty, past

    def make_room(self, pot: Pot, catalyst: Tensor | None, prescored: ByLayer | None = None) -> int:
        """Distil if the next token would leave no room for the catalyst. Returns the length of the
        next chunk."""
        room = pot.room - self.plan.reserve(catalyst)
        if room <= 0:
            self.distill(pot, catalyst, prescored)
            room = pot.room - self.plan.reserve(catalyst)
        return int(min(room, self.plan.chunk_tokens))

    def can_append_catalyst(self, pot: Pot, catalyst: Tensor | None) -> bool:
        """Whether the catalyst can be read behind a chunk and removed without a trace.

        Not if the chunk is part of the catalyst (`plain`), if the policy needs other attention, or
        with sliding windows and state-space layers.
        """
        needs = self.plan.needs
        alone = "catalyst" in needs and not {"replay", "newest", "received"} & needs
        return (
            alone
            and catalyst is not pot.newest
            and all(type(layer) is PotLayer for layer in pot.layers)
        )

    def read(
        self,
        pot: Pot,
        ids: Tensor,
        catalyst: Tensor | None,
        score_novelty: bool,
        progress: Callable[[], None] | None = None,
        more: bool = False,
    ) -> None:
        """Read ids [B, T] of any length, and distil whenever the pot is full and more follows.

        If a chunk fills the pot and more follows, the catalyst is read in the same forward pass.
        more: the caller will read more than ids. progress: called after every chunk, when the pot is
        consistent; an exception from it ends the reading.
        """
        prescored: ByLayer | None = None
        while ids.shape[1]:
            count = self.make_room(pot, catalyst, prescored)
            full = pot.room - self.plan.reserve(catalyst)
            follows = ids.shape[1] > full or (more and ids.shape[1] == full)
            if follows and self.recorded(pot, ids[:, : int(full)], catalyst, score_novelty):
                count = int(full)
                prescored = None
            else:
                prescored = self.read_chunk(
                    pot, ids[:, :count], catalyst, score_novelty, more=more or count < ids.shape[1]
                )
            ids = ids[:, count:]
            if progress is not None:
                progress()
        if more:
            self.make_room(pot, catalyst, prescored)

    def read_chunk(
        self, pot: Pot, ids: Tensor, catalyst: Tensor | None, score_novelty: bool, more: bool
    ) -> ByLayer | None:
        """Read ids [1, T], with the catalyst behind them if they fill the pot and more follows.
        Returns the attention from the catalyst by layer, if it was read."""
        fills = more and catalyst is not None and ids.shape[1] == pot.room - catalyst.shape[1]
        if catalyst is None or not fills or not self.can_append_catalyst(pot, catalyst):
            take(self.runner, [pot], ids, [score_novelty])
            return None
        prescored: ByLayer = {}
        watch = watching(prescored, *self.watcher.look(catalyst))
        take(self.runner, [pot], ids, [score_novelty], catalyst[:1], watch)
        return prescored

    def recorded(self, pot: Pot, ids: Tensor, catalyst: Tensor | None, score_novelty: bool) -> bool:
        """Replay a recorded cycle: read ids [1, T] that fill the pot, and distil it. False, and
        nothing is done, if there is no recording."""

        def run(ids: Tensor, catalyst: Tensor | None) -> None:
            prescored = None
            for piece in ids.split(self.plan.chunk_tokens, dim=1):
                prescored = self.read_chunk(pot, piece, catalyst, score_novelty, more=True)
            self.distill(pot, catalyst, prescored)

        length = 0
        if catalyst is not None:
            length = catalyst.shape[1]
        if pot.by_chunk or (length and not self.can_append_catalyst(pot, catalyst)):
            return False
        key = (self.plan, ids.shape[1], length, score_novelty)
        return graph_cache(self.runner).cycle(pot, key, ids, catalyst, run)
