"""CCD: read until the pot is full, distil it, read on (paper, section 3.2)."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from infinipot.cache.choice import Choice
from infinipot.cache.layer import PotLayer
from infinipot.cache.pot import Pot
from infinipot.engine.cuda_graphs import graph_cache
from infinipot.engine.observe import ByLayer, Suffix, Watcher
from infinipot.engine.passes import Pass, Passes, read
from infinipot.engine.plan import LATE, Plan
from infinipot.model.runner import ModelRunner
from infinipot.parallel.ranks import on_all_ranks
from infinipot.policies import Observation, Policy

STACKED = frozenset({"catalyst", "novelty", "sentences"})
"""Needs of policies that may see several layers at once."""
MOST_KEYS = {"cpu": 1 << 21}
"""Numbers in the keys of the layers that are seen at once, by kind of device: 8 MiB in float32. On a CPU
more at once are not faster."""
OTHER_MOST_KEYS = 1 << 26
MOST_UNSCORED = 1 << 14
"""Tokens whose hidden states wait for their NuC. More are scored before the distillation."""


@on_all_ranks
def take(
    runner: ModelRunner,
    pots: Sequence[Pot],
    ids: Tensor,
    suffix: Suffix | None = None,
    counts: Sequence[int] | None = None,
) -> ByLayer | None:
    """Read ids [1, N], the next `counts[b]` of them into pot b, which must have room. counts: None
    for a single pot.

    suffix: the catalyst, read in the same forward pass behind the ids of a single pot, and removed
    again. Returns the attention that entries received from it, by layer.
    """
    before = [pot.mark() for pot in pots]
    counts = counts or [ids.shape[1]]
    try:
        hidden, scores = read(runner, pots, ids, counts, suffix)
    except BaseException:
        for pot, mark in zip(pots, before, strict=True):
            # interrupted, or out of memory: all layers must have the same entries
            pot.rollback(mark)
        raise
    parts = (x.split(list(counts), dim=1) for x in (ids, hidden))
    for pot, own, states in zip(pots, *parts, strict=True):
        if len(pots) > 1 and states.shape[1] > 1:  # a view would keep those of all pots in memory
            states = states.clone()
        pot.follow(own, states)
        count = sum(part.shape[1] for part, _ in pot.unscored)
        if pot.scores_at_once or count > MOST_UNSCORED:
            score_novelty(runner, pot)
    return scores


@on_all_ranks
def step(runner: ModelRunner, pots: Sequence[Pot], ids: Tensor, watched: bool) -> Tensor | None:
    """Read ids [N, 1], a token into each pot, by a recorded step. Returns next-token logits [N, V]
    float32. None, and nothing is read, if there is none. watched: as for `GraphCache.step`."""
    output = graph_cache(runner).step(pots, [1] * len(pots), ids, watched=watched)
    if output is None:
        return None
    hidden, logits = output
    for row, (pot, own, state) in enumerate(zip(pots, ids.split(1), hidden.split(1), strict=True)):
        pot.follow(own, state, (logits, row))
    return logits


@on_all_ranks
def score_novelty(runner: ModelRunner, pot: Pot) -> None:
    """Compute the NuC of the tokens that have none yet, from their hidden states, in one pass of the
    head.

    The hidden state before a token predicts it. The first token of a text has novelty 0.
    """
    if not pot.unscored:
        return
    ids = torch.cat([part for part, _ in pot.unscored], dim=1)
    hidden = torch.cat([states for _, states in pot.unscored], dim=1)
    before = pot.before
    if before is None:
        before = hidden[:, :1]
    nats = runner.novelty(torch.cat((before, hidden[:, :-1]), dim=1), ids)
    if pot.before is None:
        nats[:, 0] = 0
    pot.note_novelty(nats)


@on_all_ranks
def new_distiller(runner: ModelRunner, plan: Plan, ends: Tensor | None = None) -> Distiller:
    """The arguments are those of `Distiller`."""
    return Distiller(runner, plan, ends)


def check_choice(policy: Policy, indices: Any, shape: tuple[int, ...]) -> None:
    """Raise ValueError for a choice of another form: slots exist for all heads of a layer alike."""
    if isinstance(indices, Tensor) and tuple(indices.shape) == shape:
        return
    given = f"a {type(indices).__name__}"
    if isinstance(indices, Tensor):
        given = f"shape {list(indices.shape)}"
    raise ValueError(
        f"policy {policy.name!r} chose indices of {given}: they must be a tensor "
        f"[B, K, {shape[-1]}] = {list(shape)}, as all heads of a layer keep equally many entries; "
        "layers may keep different numbers (layer_budget)"
    )


class Distiller:
    """Reads into pots of one model, and distils them by one plan."""

    def __init__(self, runner: ModelRunner, plan: Plan, ends: Tensor | None = None) -> None:
        """ends: for each token id, whether it ends a sentence, [V] bool, if the plan needs that."""
        self.runner = runner
        self.plan = plan
        self.watcher = Watcher(runner, plan, ends)

    @property
    def followers(self) -> Any:
        return self.runner.followers

    @on_all_ranks
    @torch.no_grad()
    def distill(self, pot: Pot, catalyst: Tensor | None, prescored: ByLayer | None = None) -> None:
        """One distillation: observe, select, compact. Afterwards every bounded layer has its pinned
        entries and its budget.

        catalyst: token ids [1, |P|], or [2, |P|] with a contrast, for which the pot must have room;
        None for policies that need none. prescored: by layer, the attention that entries received
        from the first row, if it was read behind the last chunk.
        """
        layers = zip(pot.bounded, self.plan.layers, strict=True)
        if all(layer.length - pot.pinned <= plan.budget for layer, plan in layers):
            return
        started = time.perf_counter()
        score_novelty(self.runner, pot)
        if catalyst is pot.last_ids:
            catalyst = pot.newest  # with the ids since the last distillation
        if prescored is None and self.reads_catalyst_alone(pot):
            prescored = self._see(pot, catalyst)
        prompted = self.watcher.prompted(pot, catalyst, prescored)
        # evict nothing before every layer has chosen: a failure leaves the pot whole
        choices = [self._choose(pot, places, prompted) for places in self._groups(pot)]
        for choice in choices:
            pot.keep(choice)
        pot.distilled(time.perf_counter() - started)

    def _groups(self, pot: Pot) -> list[list[int]]:
        """The places of layers, among the bounded ones, whose survivors are chosen in one
        operation: those of equal plans and shapes."""
        if self.plan.policy.chooses_by_layer:
            return [[place] for place in range(len(pot.bounded))]
        groups: dict[Any, list[int]] = {}
        for place, layer in enumerate(pot.bounded):
            key = (self.plan.layers[place], layer.length, layer.index.shape, layer.device)
            groups.setdefault(key, []).append(place)
        return list(groups.values())

    def _choose(self, pot: Pot, places: list[int], prompted: dict[str, ByLayer]) -> Choice:
        """What the layers of one group keep."""
        policy = self.plan.policy
        index, novelty = pot.described([pot.bounded[place] for place in places])
        seen = self._observed(pot, places, (index, novelty), prompted)
        budget = min(self.plan.layers[places[0]].budget, seen[0].index.shape[-1])
        scores = policy.judge_layers(seen)
        layers = seen[0]
        if len(places) > 1 and layers.novelty is not None:  # all that `Policy.choose` looks at
            free = novelty[..., pot.pinned :].contiguous()
            layers = dataclasses.replace(layers, novelty=free)
        indices = policy.choose(layers, scores, budget)
        check_choice(policy, indices, (*index.shape[:2], budget))
        head = torch.arange(pot.pinned, device=indices.device).expand(*indices.shape[:2], -1)
        past = None
        if scores is not None and self.plan.remembers:
            past = F.pad(scores, (pot.pinned, 0))
        indices = torch.cat((head, indices + pot.pinned), dim=-1)
        return Choice(places, indices, index, novelty, past)

    def _observed(
        self,
        pot: Pot,
        places: list[int],
        described: tuple[Tensor, Tensor],
        prompted: dict[str, ByLayer],
    ) -> list[Observation]:
        """What the policy sees of these layers: of several at once, if it can, else of each."""
        if len(places) > 1 and self.plan.policy.stacks and self.plan.needs <= STACKED:
            first = pot.bounded[places[0]]
            most = MOST_KEYS.get(first.device.type, OTHER_MOST_KEYS)
            count = max(1, most // first.slots[0].data.numel())
            parts = [places[start : start + count] for start in range(0, len(places), count)]
            rows = zip(*(x.split(count) for x in described), strict=True)
            return [
                self.watcher.layers(pot, part, own, prompted)
                for part, own in zip(parts, rows, strict=True)
            ]
        rows = zip(*(x.split(1) for x in described), strict=True)
        return [
            self.watcher.layer(pot, place, own, prompted)
            for place, own in zip(places, rows, strict=True)
        ]

    def can_append_catalyst(self, pot: Pot, catalyst: Tensor | None) -> bool:
        """Whether the catalyst can be read behind a chunk and removed: not if the chunk is part of it
        (`plain`)."""
        return catalyst is not pot.newest and self.reads_catalyst_alone(pot)

    def make_room(self, pot: Pot, catalyst: Tensor | None, prescored: ByLayer | None = None) -> int:
        """Distil if the next token would leave no room for the catalyst. Returns the length of the
        next chunk."""
        room = pot.room - self.plan.reserve(catalyst)
        if room <= 0:
            self.distill(pot, catalyst, prescored)
            room = pot.room - self.plan.reserve(catalyst)
        return int(min(room, self.plan.chunk_tokens))

    def _see(self, pot: Pot, catalyst: Tensor | None) -> ByLayer | None:
        """The attention that entries receive from the first row of a catalyst, which is read and
        removed again."""
        if catalyst is None:
            return None
        before = pot.mark()
        suffix = Suffix(catalyst[:1], self.watcher.look(catalyst))
        try:
            return read(self.runner, [pot], catalyst[:1, :0], [0], suffix)[1]
        finally:
            pot.rollback(before)

    def reads_catalyst_alone(self, pot: Pot) -> bool:
        """Whether the policy needs the catalyst's attention and no other, and all layers can remove
        the catalyst without a trace. Sliding windows and state-space layers cannot."""
        needs = self.plan.needs
        alone = "catalyst" in needs and not ({"replay"} | LATE) & needs
        return alone and all(type(layer) is PotLayer for layer in pot.layers)

    def passes(
        self,
        pot: Pot,
        ids: Tensor,
        catalyst: Tensor | None,
        progress: Callable[[], None] | None = None,
        more: bool = False,
    ) -> Passes[ByLayer | None]:
        """Read ids [1, T] of any length, and distil whenever the pot is full and ids follow.

        If a chunk fills the pot and more follows, the catalyst is read in the same forward pass.
        more: the caller will read more than ids. It then calls `make_room` with the result: the
        attention that entries received from the catalyst. progress: called after every chunk, when
        the pot is consistent; an exception from it ends the reading.
        """
        prescored: ByLayer | None = None
        while ids.shape[1]:
            chunk = ids[:, : self.make_room(pot, catalyst, prescored)]
            ids = ids[:, chunk.shape[1] :]
            suffix = None
            if more or ids.shape[1]:
                suffix = self.suffix(pot, chunk, catalyst)
            prescored = yield Pass(pot, chunk, suffix)
            if progress is not None:
                progress()
        return prescored

    def suffix(self, pot: Pot, ids: Tensor, catalyst: Tensor | None) -> Suffix | None:
        """The catalyst to read behind ids [1, T]: if they fill the pot, and if that is possible."""
        if catalyst is None or ids.shape[1] != pot.room - catalyst.shape[1]:
            return None
        if not self.can_append_catalyst(pot, catalyst):
            return None
        return Suffix(catalyst[:1], self.watcher.look(catalyst))
