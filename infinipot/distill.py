"""CCD: read until the pot is full, distil it, read on (paper, section 3.2)."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

from infinipot.catalyst import representativeness
from infinipot.host import Host
from infinipot.layers import PotLayer
from infinipot.options import PotConfig
from infinipot.policies import POLICIES, Observation
from infinipot.pot import Pot
from infinipot.selection import reduce_groups


def take(host: Host, pot: Pot, ids: Tensor, score_novelty: bool) -> None:
    """Read ids [B, T] into the pot, which must have room for them, and note their novelty.

    The first token is predicted by the last hidden state of the chunk before; the very first of a text by nothing: novelty 0.
    """
    before = pot.mark()
    try:
        hidden = host.read(ids, pot)
        values = torch.zeros(ids.shape, device=hidden.device)
        if score_novelty:
            unpredicted = 0 if pot.hidden is not None else 1
            predicting = hidden[:, :-1] if pot.hidden is None else torch.cat((pot.hidden, hidden[:, :-1]), dim=1)
            if predicting.shape[1]:
                values[:, unpredicted:] = host.novelty(predicting, ids[:, unpredicted:])
    except BaseException:
        pot.rollback(before)  # interrupted half-way, or out of memory: no layer keeps what others lack
        raise
    pot.novelty = torch.cat((pot.novelty.to(values.device), values), dim=1)
    pot.hidden = hidden[:, -1:].clone()
    pot.newest.copy_(torch.cat((pot.newest, ids.to(pot.newest.device)), dim=1)[:, -pot.newest.shape[1] :])
    pot.tokens_read += ids.shape[1]


def observe_catalyst(host: Host, pot: Pot, config: PotConfig, catalyst: Tensor) -> dict[int, Tensor]:
    """Run the catalyst [B, |P|] against the pot and forget it again. Returns what each entry received, per layer [B, K, P]."""
    scores: dict[int, Tensor] = {}

    def observe(number: int, attention: Tensor) -> None:
        scores[number] = reduce_groups(representativeness(attention), pot.layers[number].keys.shape[1], config.gqa)

    before = pot.mark()
    try:
        host.read(catalyst, pot, observe)
    finally:
        pot.rollback(before)
    return scores


@torch.no_grad()
def distill(host: Host, pot: Pot, config: PotConfig, catalyst: Tensor | None) -> None:
    """One distillation: observe, select, compact. Afterwards every bounded layer holds the pinned entries and `config.survivors` more.

    catalyst: token ids [B, |P|], for which the pot must have room; None for policies that need none.
    """
    if pot.length - pot.pinned <= config.survivors:
        return
    started = time.perf_counter()
    policy = POLICIES[config.policy]()
    needs = policy.needs(config.novelty)
    if "catalyst" in needs and catalyst is None:
        raise AssertionError(f"policy {config.policy!r} was to distil without its catalyst")
    scores = {} if catalyst is None else observe_catalyst(host, pot, config, catalyst)
    chosen = []
    for number, layer in enumerate(pot.layers):
        if not isinstance(layer, PotLayer):
            continue
        index, novel = pot.described(layer)
        free = slice(pot.pinned, layer.length)
        seen = Observation(
            keys=layer.keys[:, :, free],
            values=layer.values[:, :, free],
            rotated=layer.rotated[:, :, free],
            index=index[..., free],
            novelty=novel[..., free] if "novelty" in needs else None,
            catalyst=scores[number][..., free] if scores else None,
            share=config.novelty,
            sinks=config.kept_sinks,
            recent=config.recent,
            pool=config.pool,
            pool_kind=config.pool_kind,
        )
        chosen.append((layer, policy.keep(seen, config.survivors), index, novel))
    for layer, indices, index, novel in chosen:  # all or nothing: nothing is evicted before every layer has chosen
        layer.keep(indices, index, novel, pot.pinned)
    pot.novelty = pot.novelty[:, :0]
    pot.distillations += 1
    pot.distill_s += time.perf_counter() - started


def read(
    host: Host,
    pot: Pot,
    config: PotConfig,
    ids: Tensor,
    catalyst: Tensor | None,
    score_novelty: bool,
    progress: Callable[[], None] | None = None,
) -> None:
    """Read ids [B, T] of any length, distilling whenever the next token would leave the catalyst no room.

    A distillation happens only when there is something more to read: a text that fits is never distilled. progress: called after every
    chunk, at a moment when the pot is whole; what it raises ends the reading there.
    """
    while ids.shape[1]:
        room = ids.shape[1]
        if pot.size is not None:
            room = pot.size - (0 if catalyst is None else catalyst.shape[1]) - pot.length
            if room <= 0:
                distill(host, pot, config, catalyst)
                continue
        count = min(room, config.chunk_tokens)
        take(host, pot, ids[:, :count], score_novelty)
        ids = ids[:, count:]
        if progress is not None:
            progress()
