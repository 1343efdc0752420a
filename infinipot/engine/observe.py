"""What a policy gets to see of a full pot, and the readings it takes to see it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from infinipot.cache.pot import Pot
from infinipot.engine.plan import Plan
from infinipot.model.runner import ModelRunner, Observer
from infinipot.policies import Observation
from infinipot.scoring.representativeness import Scoring, causal_softmax, representativeness
from infinipot.scoring.selection import reduce_groups

FLOOR = 1e-3
"""Attention, summed over a contrast's rows, below which differences are chance."""
Look = Callable[[Tensor, Tensor, Scoring], Tensor]
"""What is made of a layer's queries [B, H, T, D], all its keys [B, K, P, D] and its scoring."""
ByLayer = dict[int, Tensor]
"""A layer's number -> what was made of it, [B, K, P]."""


def watching(results: ByLayer, look: Look, alone: int = 0) -> Observer:
    """An observer that notes in `results`, by layer, what `look` makes of it. alone: as in
    `Observer`."""

    def watch(number: int, query: Tensor, key: Tensor, scoring: Scoring) -> None:
        results[number] = look(query, key, scoring)

    return Observer(watch, alone)


def observe(host: ModelRunner, pot: Pot, ids: Tensor, look: Look, alone: int = 0) -> ByLayer:
    """Run ids [B, T] against the pot and forget them again. Returns by layer what `look` made of
    it. alone: as in `Observer`."""
    results: ByLayer = {}
    before = pot.mark()
    try:
        host.read(ids, [pot], watching(results, look, alone))
    finally:
        pot.rollback(before)
    return results


def catalyst_look(rows: int, gqa: str = "mean", once: bool = False) -> tuple[Look, int]:
    """What each entry receives from the catalyst, the last `rows` of those read: [B, K, P]; how
    many of them see no survivors: all where entries are scored once, while they are new."""

    def look(query: Tensor, key: Tensor, scoring: Scoring) -> Tensor:
        attention = causal_softmax(query[:, :, -rows:], key, scoring)
        return reduce_groups(representativeness(attention), key.shape[1], gqa)

    return look, rows if once else 0


class Watcher:
    """Observes full pots of one model for one plan."""

    def __init__(self, host: ModelRunner, plan: Plan) -> None:
        self.host = host
        self.plan = plan

    def look(self, catalyst: Tensor) -> tuple[Look, int]:
        """`catalyst_look` for ids [B, |P|] under this plan."""
        return catalyst_look(catalyst.shape[1], self.plan.gqa, self.plan.once)

    def prompted(
        self, pot: Pot, catalyst: Tensor | None, prescored: ByLayer | None
    ) -> dict[str, ByLayer]:
        """What readings of the catalyst show, by the observation's name. prescored: what its first
        row showed, if it was read already."""
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
        """What each entry receives from the catalyst: its ids [1, |P|], or with a contrast [2,
        |P|], by whose share the first one's is divided."""
        look = self.look(catalyst)
        first = prescored or observe(self.host, pot, catalyst[:1], *look)
        if len(catalyst) == 1:
            return first
        second = observe(self.host, pot, catalyst[1:], *look)
        return {number: scores / (second[number] + FLOOR) for number, scores in first.items()}

    def replay(self, pot: Pot, catalyst: Tensor) -> ByLayer:
        """The most each entry receives from any row while the fresh text is read again behind the
        catalyst."""

        def look(query: Tensor, key: Tensor, scoring: Scoring) -> Tensor:
            entries = key.shape[2] - query.shape[2]
            return reduce_groups(
                causal_softmax(query, key, scoring)[..., :entries].amax(dim=-2), key.shape[1], "max"
            )

        most: ByLayer = {}
        for piece in pot.fresh.split(self.plan.replay_tokens, dim=1):
            for number, scores in observe(
                self.host, pot, torch.cat((catalyst, piece), dim=1), look
            ).items():
                if number in most:
                    most[number] = torch.maximum(most[number], scores)
                else:
                    most[number] = scores
        return most

    def newest(self, pot: Pot, number: int, recent: int) -> tuple[Tensor, int]:
        """What each entry of a layer [B, K, P] receives from the newest tokens together, and how
        many those are.

        No more than stand in the last slots in all heads: those read since the last distillation,
        and the `recent` ones that it kept.
        """
        layer = pot.layers[number]
        count = min(
            layer.attention_stats.queries.shape[2],
            max(pot.fresh.shape[1], recent),
            layer.length - pot.pinned,
        )
        query = layer.rotate_queries(layer.attention_stats.queries[:, :, -count:])
        attention = causal_softmax(
            query, layer.read_keys(0, layer.length), self.host.scorings[number]
        ).sum(dim=-2)
        return reduce_groups(attention, layer.index.shape[1], self.plan.gqa), count

    def layer(
        self, pot: Pot, number: int, place: int, prompted: dict[str, ByLayer]
    ) -> tuple[Observation, Tensor, Tensor]:
        """What the policy sees of a layer; place and NuC of all its entries. place: the layer's,
        among the bounded ones. prompted: what the catalyst showed, by the observation's name."""
        layer = pot.layers[number]
        own = self.plan.layers[place]
        needs = self.plan.needs
        free = slice(pot.pinned, layer.length)
        index, novelty = pot.described(layer)
        attention: dict[str, Any] = {
            name: by_layer[number][..., free] for name, by_layer in prompted.items()
        }
        window = 0
        if "received" in needs:
            attention["received"] = reduce_groups(
                layer.attention_stats.received, layer.index.shape[1], self.plan.gqa
            )[..., free]
        if "newest" in needs:
            newest, window = self.newest(pot, number, own.recent)
            attention["newest"] = newest[..., free]
        observation = Observation(
            keys=layer.slots[0].read(pot.pinned, layer.length),
            values=layer.read_values(pot.pinned, layer.length),
            rotated=layer.read_keys(0, layer.length)[:, :, free],
            index=index[..., free],
            novelty=novelty[..., free] if "novelty" in needs else None,
            past=None if layer.past is None else layer.past[..., pot.pinned :],
            sinks=own.sinks,
            recent=own.recent,
            window=window,
            pool=own.pool,
            pool_mode=own.pool_mode,
            **attention,
        )
        return observation, index, novelty
