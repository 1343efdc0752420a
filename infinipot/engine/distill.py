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
    host: ModelRunner,
    pots: Sequence[Pot],
    ids: Tensor,
    score_novelty: Sequence[bool],
    suffix: Tensor | None = None,
    watch: Observer | None = None,
) -> None:
    """Read ids [B, T], a row into each pot, which must have room for them, and note their novelty
    where it is needed.

    The first token is predicted by the last hidden state of the chunk before; the very first of a
    text by nothing: novelty 0. suffix: ids [1, |P|] read behind those of a single pot, watched, and
    forgotten: the catalyst, without a forward pass of its own.
    """
    before = [pot.mark() for pot in pots]
    try:
        hidden = host.read(ids if suffix is None else torch.cat((ids, suffix), dim=1), pots, watch)[
            :, : ids.shape[1]
        ]
        if suffix is not None:
            pots[0].advance(-suffix.shape[1])
        losses = novelty_of(host, pots, ids, hidden, score_novelty)
    except BaseException:
        for pot, mark in zip(pots, before, strict=True):
            # interrupted half-way, or out of memory: no layer keeps what others lack
            pot.rollback(mark)
        raise
    for pot, row, state, loss in zip(
        pots, ids.split(1), hidden.split(1), losses.split(1), strict=True
    ):
        pot.follow(row, state[:, -1:].clone(), loss)


def novelty_of(
    host: ModelRunner, pots: Sequence[Pot], ids: Tensor, hidden: Tensor, score: Sequence[bool]
) -> Tensor:
    """NuC [B, T] of ids that pots have just read, from their hidden states [B, T, hidden], in one
    pass of the head; zeros where it is not to be scored."""
    losses = torch.zeros(ids.shape, device=hidden.device)
    rows = [row for row, scored in enumerate(score) if scored]
    if rows:  # by slices: an index on the host could not be recorded
        targets = torch.cat([ids[row : row + 1] for row in rows])
        nats = predicted([pots[row].logits for row in rows], targets)
        if nats is None:
            before = [
                hidden[row : row + 1, :1] if (last := pots[row].hidden) is None else last
                for row in rows
            ]
            predicting = torch.cat(
                [
                    torch.cat((one, hidden[row : row + 1, :-1]), dim=1)
                    for row, one in zip(rows, before, strict=True)
                ]
            )
            nats = host.novelty(predicting, targets)
        for row, loss in zip(rows, nats, strict=True):
            losses[row] = loss
            if pots[row].hidden is None:  # predicted by nothing
                losses[row, 0] = 0
    return losses


class Distiller:
    """Reads into pots of one model, and distils them as one plan says."""

    def __init__(self, host: ModelRunner, plan: Plan) -> None:
        self.host = host
        self.plan = plan
        self.watcher = Watcher(host, plan)

    @torch.no_grad()
    def distill(self, pot: Pot, catalyst: Tensor | None, prescored: ByLayer | None = None) -> None:
        """One distillation: observe, select, compact. Afterwards every bounded layer holds the
        pinned entries and its budget.

        catalyst: token ids [1, |P|], or [2, |P|] with a contrast, for which the pot must have room;
        None for policies that need none. prescored: what each entry received from the first of
        them, by layer, if it was read behind the last chunk.
        """
        numbers = [number for number, layer in enumerate(pot.layers) if isinstance(layer, PotLayer)]
        budgets = [layer.budget for layer in self.plan.layers]
        if all(
            pot.layers[number].length - pot.pinned <= budget
            for number, budget in zip(numbers, budgets, strict=True)
        ):
            return
        started = time.perf_counter()
        prompted = self.watcher.prompted(pot, catalyst, prescored)
        choices = [
            self._choose(pot, number, place, prompted) for place, number in enumerate(numbers)
        ]
        # all or nothing: nothing is evicted before every layer has chosen
        for number, choice in zip(numbers, choices, strict=True):
            slots, index, novelty, past = choice
            pot.layers[number].keep(slots, index, novelty, pot.pinned, past)
        pot.distilled(time.perf_counter() - started)

    def _choose(
        self, pot: Pot, number: int, place: int, prompted: dict[str, ByLayer]
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """The slots [B, K, kept] that a layer keeps; place, NuC and lasting scores of all its
        entries. place: as for `Watcher.layer`."""
        observation, index, novelty = self.watcher.layer(pot, number, place, prompted)
        policy = self.plan.policy
        budget = min(self.plan.layers[place].budget, observation.index.shape[-1])
        scores = policy.judge(observation)
        indices = policy.choose(observation, scores, budget)
        head = torch.arange(pot.pinned, device=indices.device).expand(*indices.shape[:2], -1)
        if scores is None or not self.plan.remembers:
            past = None
        else:
            past = F.pad(scores, (pot.pinned, 0))
        return torch.cat((head, indices + pot.pinned), dim=-1), index, novelty, past

    def make_room(self, pot: Pot, catalyst: Tensor | None, prescored: ByLayer | None = None) -> int:
        """Distil if the next token would leave the catalyst no room. Returns how many tokens can be
        read at once then."""
        room = pot.room - self.plan.reserve(catalyst)
        if room <= 0:
            self.distill(pot, catalyst, prescored)
            room = pot.room - self.plan.reserve(catalyst)
        return int(min(room, self.plan.chunk_tokens))

    def can_append_catalyst(self, pot: Pot, catalyst: Tensor | None) -> bool:
        """Whether the catalyst can be read behind a chunk and forgotten without a trace: not where
        the chunk is part of it (`plain`), where attention is remembered, where windows let entries
        go, or where a layer carries a state."""
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
        """Read ids [B, T] of any length, distilling whenever the pot is full.

        A distillation happens only when there is something more to read: a text that fits is never
        distilled. So where a chunk fills the pot and is not the last, the catalyst is read behind
        it. more: more than ids is to be read. progress: called after every chunk, at a moment when
        the pot is whole; what it raises ends the reading there.
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
        """Read ids [1, T], with the catalyst behind them if they fill the pot and more is to come.
        Returns what that showed, if it was."""
        fills = more and catalyst is not None and ids.shape[1] == pot.room - catalyst.shape[1]
        if catalyst is None or not fills or not self.can_append_catalyst(pot, catalyst):
            take(self.host, [pot], ids, [score_novelty])
            return None
        prescored: ByLayer = {}
        take(
            self.host,
            [pot],
            ids,
            [score_novelty],
            catalyst[:1],
            watching(prescored, *self.watcher.look(catalyst)),
        )
        return prescored

    def recorded(self, pot: Pot, ids: Tensor, catalyst: Tensor | None, score_novelty: bool) -> bool:
        """Run a whole cycle, from a distilled pot to a distilled pot, as a recording; False where
        there is none.

        ids: [1, T], as many as fill the pot; more are to come.
        """

        def run(ids: Tensor, catalyst: Tensor | None) -> None:
            prescored = None
            for piece in ids.split(self.plan.chunk_tokens, dim=1):
                prescored = self.read_chunk(pot, piece, catalyst, score_novelty, more=True)
            self.distill(pot, catalyst, prescored)

        sizes = (
            self.plan,
            ids.shape[1],
            0 if catalyst is None else catalyst.shape[1],
            score_novelty,
        )
        able = not pot.by_chunk and (catalyst is None or self.can_append_catalyst(pot, catalyst))
        return able and graph_cache(self.host).cycle(pot, sizes, ids, catalyst, run)
