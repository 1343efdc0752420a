"""Observe a full pot for a policy: what entries receive from the catalyst and from other tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from infinipot.cache.choice import rotated_keys
from infinipot.cache.layer import PotLayer
from infinipot.cache.pot import Pot
from infinipot.engine.plan import Plan
from infinipot.kernels import distill as kernels
from infinipot.model.runner import ModelRunner, Observer
from infinipot.parallel.ranks import on_all_ranks
from infinipot.policies import Observation
from infinipot.scoring.outliers import span_numbers
from infinipot.scoring.representativeness import Scoring, causal_softmax, representativeness
from infinipot.scoring.selection import reduce_groups

FLOOR = 1e-3
"""Attention, summed over a contrast's rows, below which differences are noise."""
Look = Callable[[Tensor, Tensor, Scoring], Tensor]
"""(queries [B, H, T, D], all keys [B, K, P, D], scoring) of a layer -> [B, K, P]."""
ByLayer = dict[int, Tensor]
"""A layer's number -> [B, K, P]."""


class Seen(ByLayer):
    """What one forward pass has seen. Rank 0 can name it to others."""


def watching(results: ByLayer, look: Look, alone: int = 0) -> Observer:
    """An observer that puts the results of `look` into `results`. alone: as in `Observer`."""

    def watch(number: int, query: Tensor, key: Tensor, scoring: Scoring) -> None:
        results[number] = look(query, key, scoring)

    return Observer(watch, alone)


@on_all_ranks
def observe(runner: ModelRunner, pot: Pot, ids: Tensor, look: Look, alone: int = 0) -> ByLayer:
    """Read ids [B, T] and remove them again. Returns the results of `look`. alone: as in
    `Observer`."""
    results: ByLayer = {}
    before = pot.mark()
    try:
        runner.read(ids, [pot], watching(results, look, alone))
    finally:
        pot.rollback(before)
    return results


def rotate_to(layer: Any, x: Tensor, positions: Tensor) -> Tensor:
    """x [B, heads, N, D] as this layer rotates queries and keys at positions [N]."""
    if layer.rotation is None:
        return x
    rotated: Tensor = layer.rotation.rotate_beyond(x, positions)
    return rotated


@dataclass(frozen=True)
class CatalystLook:
    """A look at the attention that entries receive from the catalyst, the last `rows` tokens. once:
    these rows do not see the survivors."""

    rows: int
    gqa: str = "mean"
    once: bool = False

    def __call__(self, query: Tensor, key: Tensor, scoring: Scoring) -> Tensor:
        query = query[:, :, -self.rows :]
        if kernels.supports_scores(query, key):
            return kernels.catalyst_scores(query, key, scoring, self.gqa)[..., : -self.rows]
        attention = causal_softmax(query, key, scoring)
        return reduce_groups(representativeness(attention), key.shape[1], self.gqa)

    def recorded(self, query: Tensor, key: Tensor, scoring: Scoring, part: kernels.Part) -> Tensor:
        """The same for a recording, in which the catalyst is a part of the rows. Returns [1, K, N], 0
        for the catalyst's own entries."""
        return kernels.catalyst_scores(query, key, scoring, self.gqa, part)

    @property
    def alone(self) -> int:
        """As in `Observer`."""
        if self.once:
            return self.rows
        return 0


class Suffix(NamedTuple):
    """A catalyst to read behind a chunk: its ids [1, |P|], and how to look at it."""

    ids: Tensor
    look: CatalystLook


class Watcher:
    """Observes full pots of one model for one plan."""

    def __init__(self, runner: ModelRunner, plan: Plan, ends: Tensor | None = None) -> None:
        """ends: for each token id, whether it ends a sentence, [V] bool."""
        self.runner = runner
        self.plan = plan
        self.ends = ends

    def look(self, catalyst: Tensor) -> CatalystLook:
        """How to look at a catalyst of ids [B, |P|] under this plan."""
        return CatalystLook(catalyst.shape[1], self.plan.gqa, self.plan.once)

    def prompted(
        self, pot: Pot, catalyst: Tensor | None, prescored: ByLayer | None
    ) -> dict[str, ByLayer]:
        """Attention from the catalyst, by the name in `Observation`. prescored: that of its first
        row, if already computed."""
        if "catalyst" not in self.plan.needs:
            return {}
        if catalyst is None:
            raise AssertionError(
                f"policy {self.plan.policy.name!r} was to distil without its catalyst"
            )
        if "replay" in self.plan.needs:
            return {"replay": self.replay(pot, catalyst)}
        return {"catalyst": self.catalyst(pot, catalyst, prescored)}

    def catalyst(self, pot: Pot, catalyst: Tensor, prescored: ByLayer | None = None) -> ByLayer:
        """Attention that entries receive from a catalyst [1, |P|]. With a contrast [2, |P|] it is
        divided by the attention from the second row."""
        look = self.look(catalyst)
        first = prescored or observe(self.runner, pot, catalyst[:1], look, look.alone)
        if len(catalyst) == 1:
            return first
        second = observe(self.runner, pot, catalyst[1:], look, look.alone)
        return {number: scores / (second[number] + FLOOR) for number, scores in first.items()}

    def replay(self, pot: Pot, catalyst: Tensor) -> ByLayer:
        """The most attention that an entry receives from any row, while the tokens since the last
        distillation are read again behind the catalyst."""

        def look(query: Tensor, key: Tensor, scoring: Scoring) -> Tensor:
            entries = key.shape[2] - query.shape[2]
            attention = causal_softmax(query, key, scoring)[..., :entries]
            return reduce_groups(attention.amax(dim=-2), key.shape[1], "max")

        most: ByLayer = {}
        for piece in pot.fresh.split(self.plan.replay_tokens, dim=1):
            results = observe(self.runner, pot, torch.cat((catalyst, piece), dim=1), look)
            for number, scores in results.items():
                most[number] = torch.maximum(most.get(number, scores), scores)
        return most

    def newest(self, pot: Pot, number: int, recent: int) -> tuple[Tensor, int]:
        """Attention that entries of a layer [B, K, P] receive from the newest tokens together, and
        the number of these tokens.

        Only tokens in the last slots of all heads count: those since the last distillation, and the
        `recent` ones that it kept.
        """
        layer = pot.layers[number]
        count = min(
            layer.attention_stats.queries.shape[2],
            max(pot.fresh.shape[1], recent),
            layer.length - pot.pinned,
        )
        query = layer.rotate_queries(layer.attention_stats.queries[:, :, -count:])
        attention = causal_softmax(
            query, layer.read_keys(0, layer.length), self.runner.scorings[number]
        ).sum(dim=-2)
        return reduce_groups(attention, layer.index.shape[1], self.plan.gqa), count

    def sentences(self, pot: Pot) -> Tensor:
        """The number of the sentence of each token since the last distillation, [F] int64."""
        assert self.ends is not None, "sentences need a table of the tokens that end one"
        return span_numbers(self.ends.to(pot.fresh.device)[pot.fresh[0]])

    def received(self, layer: Any) -> Tensor:
        """Attention that entries of a layer received from all tokens read since, [B, K, P]."""
        stats = layer.attention_stats
        return reduce_groups(stats.received, layer.index.shape[1], self.plan.gqa)

    def layers(
        self,
        pot: Pot,
        places: Sequence[int],
        described: tuple[Tensor, Tensor],
        prompted: dict[str, ByLayer],
    ) -> Observation:
        """The policy's observation of several layers of one plan and shape at once, [L, K, P], without
        raw keys and values. Arguments as for `layer`; described: of these layers."""
        numbers = [n for n, layer in enumerate(pot.layers) if isinstance(layer, PotLayer)]
        own = self.plan.layers[places[0]]
        free = slice(pot.pinned, described[0].shape[-1])
        observed: dict[str, Any] = {
            name: torch.cat([by_layer[numbers[place]] for place in places])[..., free]
            for name, by_layer in prompted.items()
        }
        index, novelty = described
        if "novelty" in self.plan.needs:
            observed["novelty"] = novelty[..., free]
        if "sentences" in self.plan.needs:
            observed["sentences"] = self.sentences(pot)
        layers: list[Any] = [pot.bounded[place] for place in places]
        past = [layer.past for layer in layers]
        if past[0] is not None:
            observed["past"] = torch.cat([x for x in past if x is not None])[..., pot.pinned :]
        nothing = novelty.new_empty(0)
        return Observation(
            keys=nothing,
            values=nothing,
            rotate=lambda: rotated_keys(layers, pot.pinned),
            budget=own.budget,
            index=index[..., free],
            sinks=own.sinks,
            recent=own.recent,
            pool=own.pool,
            pool_mode=own.pool_mode,
            mean_of_ranks=self.runner.shards.mean,
            **observed,
        )

    def layer(
        self, pot: Pot, place: int, described: tuple[Tensor, Tensor], prompted: dict[str, ByLayer]
    ) -> Observation:
        """The policy's observation of a layer.

        place: the layer's number among the bounded ones. described: place in the text and NuC of
        all its entries, [B, K, P] each. prompted: as from `prompted`.
        """
        layer: Any = pot.bounded[place]
        number = pot.layers.index(layer)
        own = self.plan.layers[place]
        free = slice(pot.pinned, layer.length)
        index, novelty = described
        observed: dict[str, Any] = {
            name: by_layer[number][..., free] for name, by_layer in prompted.items()
        }
        if "novelty" in self.plan.needs:
            observed["novelty"] = novelty[..., free]
        observed |= self.attending(pot, number, own.recent)
        return Observation(
            keys=layer.slots[0].read(pot.pinned, layer.length),
            values=layer.read_values(pot.pinned, layer.length),
            rotate=lambda: layer.read_keys(0, layer.length)[:, :, free],
            rotate_to=partial(rotate_to, layer),
            position=layer.position,
            budget=own.budget,
            index=index[..., free],
            sinks=own.sinks,
            recent=own.recent,
            pool=own.pool,
            pool_mode=own.pool_mode,
            mean_of_ranks=self.runner.shards.mean,
            **observed,
        )

    def attending(self, pot: Pot, number: int, recent: int) -> dict[str, Any]:
        """Fields of an observation that stay with a layer while it reads: earlier scores, attention,
        queries, and its module."""
        layer: Any = pot.layers[number]
        needs = self.plan.needs
        free = slice(pot.pinned, layer.length)
        observed: dict[str, Any] = {}
        if layer.past is not None:
            observed["past"] = layer.past[..., pot.pinned :]
        if "received" in needs:
            observed["received"] = self.received(layer)[..., free]
        if "newest" in needs:
            newest, observed["window"] = self.newest(pot, number, recent)
            observed["newest"] = newest[..., free]
        if "sentences" in needs:
            observed["sentences"] = self.sentences(pot)
        if "queries" in needs:
            observed["queries"] = layer.attention_stats.queries
        if "hidden_states" in needs:
            observed["hidden_states"] = layer.attention_stats.hidden_states
        if "module" in needs:
            observed["module"] = self.runner.attention_modules[number]
        return observed
