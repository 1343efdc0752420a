"""What a policy gets to see of a full pot, and the readings it takes to see it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from infinipot.cache.pot import Pot
from infinipot.config import PotConfig
from infinipot.model.runner import ModelRunner, Observer
from infinipot.policies import POLICIES, Observation
from infinipot.scoring.representativeness import Scoring, causal_softmax, representativeness
from infinipot.scoring.selection import reduce_groups


def replay_tokens(config: PotConfig) -> int:
    """How many tokens are read again at a time behind the catalyst by a policy that needs it: at most 64, and an eighth of what is free."""
    return min(64, max(1, (config.pot_size - config.survivors) // 8)) if "replay" in POLICIES[config.policy]().needs(config.novelty) else 0


def reserve(config: PotConfig, catalyst: Tensor | None) -> int:
    """Entries that a distillation needs for its own reading."""
    return 0 if catalyst is None else catalyst.shape[1] + replay_tokens(config)


FLOOR = 1e-3
"""Attention, summed over a contrast's rows, below which differences are chance."""
Look = Callable[[Tensor, Tensor, Scoring], Tensor]
"""What is made of a layer's queries [B, H, T, D], all its keys [B, K, P, D] and its scoring."""


def watching(seen: dict[int, Tensor], look: Look, alone: int = 0) -> Observer:
    """An observer that notes in `seen`, by layer, what `look` makes of it. alone: as in `Observer`."""

    def watch(number: int, query: Tensor, key: Tensor, scoring: Scoring) -> None:
        seen[number] = look(query, key, scoring)

    return Observer(watch, alone)


def observe(host: ModelRunner, pot: Pot, ids: Tensor, look: Look, alone: int = 0) -> dict[int, Tensor]:
    """Run ids [B, T] against the pot and forget them again. Returns by layer what `look` saw. alone: as in `Observer`."""
    seen: dict[int, Tensor] = {}
    before = pot.mark()
    try:
        host.read(ids, [pot], watching(seen, look, alone))
    finally:
        pot.rollback(before)
    return seen


def catalyst_look(config: PotConfig, rows: int) -> tuple[Look, int]:
    """What each entry receives from the catalyst, the last `rows` of those read: [B, K, P]; how many of them see no survivors: all where
    entries are judged once, while they are new."""

    def look(query: Tensor, key: Tensor, scoring: Scoring) -> Tensor:
        attention = causal_softmax(query[:, :, -rows:], key, scoring)
        return reduce_groups(representativeness(attention), key.shape[1], config.gqa)

    return look, rows if config.persist == "once" else 0


def observe_catalyst(host: ModelRunner, pot: Pot, config: PotConfig, catalyst: Tensor, ridden: dict[int, Tensor] | None) -> dict[int, Tensor]:
    """What each entry receives from the catalyst, by layer [B, K, P]: its ids [1, |P|], or with a contrast [2, |P|], by whose share the first
    one's is divided. ridden: the first one's, if it rode behind the last chunk."""
    look = catalyst_look(config, catalyst.shape[1])
    seen = ridden or observe(host, pot, catalyst[:1], *look)
    usual = observe(host, pot, catalyst[1:], *look) if len(catalyst) > 1 else None
    return seen if usual is None else {number: found / (usual[number] + FLOOR) for number, found in seen.items()}


def observe_replay(host: ModelRunner, pot: Pot, config: PotConfig, catalyst: Tensor) -> dict[int, Tensor]:
    """The most each entry receives from any row while the fresh text is read again behind the catalyst, by layer [B, K, P]."""

    def look(query: Tensor, key: Tensor, scoring: Scoring) -> Tensor:
        entries = key.shape[2] - query.shape[2]
        return reduce_groups(causal_softmax(query, key, scoring)[..., :entries].amax(dim=-2), key.shape[1], "max")

    most: dict[int, Tensor] = {}
    for piece in pot.fresh.split(replay_tokens(config), dim=1):
        for number, found in observe(host, pot, torch.cat((catalyst, piece), dim=1), look).items():
            most[number] = torch.maximum(most[number], found) if number in most else found
    return most


def observe_newest(host: ModelRunner, pot: Pot, config: PotConfig, number: int, least: int) -> tuple[Tensor, int]:
    """What each entry of a layer [B, K, P] receives from the newest tokens together, and how many those are.

    No more than stand in the last slots in all heads: those read since the last distillation, and the recent ones that it kept.
    """
    layer = pot.layers[number]
    count = min(layer.attention_stats.queries.shape[2], max(pot.fresh.shape[1], config.own("recent", least)), layer.length - pot.pinned)
    query = layer.rotate_queries(layer.attention_stats.queries[:, :, -count:])
    attention = causal_softmax(query, layer.read_keys(0, layer.length), host.scorings[number]).sum(dim=-2)
    return reduce_groups(attention, layer.index.shape[1], config.gqa), count


def observe_layer(
    host: ModelRunner, pot: Pot, config: PotConfig, number: int, prompted: dict[str, dict[int, Tensor]], least: int
) -> tuple[Observation, Tensor, Tensor]:
    """What the policy sees of a layer; place and NuC of all its entries. prompted: what was seen of the catalyst or the replay, by name. least:
    the fewest of its entries that will survive."""
    layer, needs = pot.layers[number], POLICIES[config.policy]().needs(config.novelty)
    free = slice(pot.pinned, layer.length)
    index, novelty = pot.described(layer)
    attention: dict[str, Any] = {name: by_layer[number][..., free] for name, by_layer in prompted.items()}
    window = 0
    if "received" in needs:
        attention["received"] = reduce_groups(layer.attention_stats.received, layer.index.shape[1], config.gqa)[..., free]
    if "newest" in needs:
        newest, window = observe_newest(host, pot, config, number, least)
        attention["newest"] = newest[..., free]
    seen = Observation(
        keys=layer.slots[0].read(pot.pinned, layer.length),
        values=layer.read_values(pot.pinned, layer.length),
        rotated=layer.read_keys(0, layer.length)[:, :, free],
        index=index[..., free],
        novelty=novelty[..., free] if "novelty" in needs else None,
        past=None if layer.past is None else layer.past[..., pot.pinned :],
        share=config.novelty,
        window=window,
        **{name: config.own(name, least) for name in ("sinks", "recent", "pool", "pool_kind", "shared_heads", "persist")},
        **attention,
    )
    return seen, index, novelty
