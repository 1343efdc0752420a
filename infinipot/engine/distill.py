"""CCD: read until the pot is full, distil it, read on (paper, section 3.2)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from infinipot.cache.layer import PotLayer
from infinipot.cache.pot import Pot
from infinipot.config import PotConfig
from infinipot.engine.cuda_graphs import graph_cache
from infinipot.engine.observe import catalyst_look, observe_catalyst, observe_layer, observe_replay, reserve, watching
from infinipot.model.runner import ModelRunner, Observer
from infinipot.policies import POLICIES, Observation
from infinipot.scoring.novelty import predicted
from infinipot.scoring.selection import covering


def take(
    host: ModelRunner,
    pots: Sequence[Pot],
    ids: Tensor,
    score_novelty: Sequence[bool],
    rider: Tensor | None = None,
    watch: Observer | None = None,
) -> None:
    """Read ids [B, T], a row into each pot, which must have room for them, and note their novelty where it is wanted.

    The first token is predicted by the last hidden state of the chunk before; the very first of a text by nothing: novelty 0.
    rider: ids [1, |P|] read behind those of a single pot, watched, and forgotten: the catalyst, without a forward pass of its own.
    """
    before = [pot.mark() for pot in pots]
    try:
        hidden = host.read(ids if rider is None else torch.cat((ids, rider), dim=1), pots, watch)[:, : ids.shape[1]]
        if rider is not None:
            pots[0].advance(-rider.shape[1])
        losses = novelty_of(host, pots, ids, hidden, score_novelty)
    except BaseException:
        for pot, mark in zip(pots, before, strict=True):
            pot.rollback(mark)  # interrupted half-way, or out of memory: no layer keeps what others lack
        raise
    for pot, row, state, loss in zip(pots, ids.split(1), hidden.split(1), losses.split(1), strict=True):
        pot.follow(row, state[:, -1:].clone(), loss)


def novelty_of(host: ModelRunner, pots: Sequence[Pot], ids: Tensor, hidden: Tensor, wanted: Sequence[bool]) -> Tensor:
    """NuC [B, T] of ids that pots have just read, given their hidden states [B, T, hidden], in one pass of the head; zeros unless wanted."""
    losses = torch.zeros(ids.shape, device=hidden.device)
    rows = [row for row, asked in enumerate(wanted) if asked]
    if rows:  # by slices: an index on the host could not be recorded
        targets = torch.cat([ids[row : row + 1] for row in rows])
        found = predicted([pots[row].logits for row in rows], targets)
        if found is None:
            before = [hidden[row : row + 1, :1] if (last := pots[row].hidden) is None else last for row in rows]
            predicting = torch.cat([torch.cat((one, hidden[row : row + 1, :-1]), dim=1) for row, one in zip(rows, before, strict=True)])
            found = host.novelty(predicting, targets)
        for row, loss in zip(rows, found, strict=True):
            losses[row] = loss
            if pots[row].hidden is None:  # predicted by nothing
                losses[row, 0] = 0
    return losses


def budget(config: PotConfig, seen: Observation, least: int, most: int) -> int:
    """How many entries of a layer stay: `most`, or with distill_to="auto" as few as cover the catalyst's attention, and `least` at least."""
    if config.distill_to == "auto" and seen.catalyst is not None:
        share = POLICIES[config.policy]().share(config.novelty)
        wanted = math.ceil(covering(seen.catalyst, config.coverage) / (1 - share)) + seen.sinks + seen.recent
        most = min(most, max(wanted, least))
    return min(most, seen.index.shape[-1])


@torch.no_grad()
def distill(host: ModelRunner, pot: Pot, config: PotConfig, catalyst: Tensor | None, ridden: dict[int, Tensor] | None = None) -> None:
    """One distillation: observe, select, compact. Afterwards every bounded layer holds the pinned entries and `config.budgets` more.

    catalyst: token ids [1, |P|], or [2, |P|] with a contrast, for which the pot must have room; None for policies that need none. ridden:
    what each entry received from the first of them, by layer, if it rode behind the last chunk.
    """
    numbers = [number for number, layer in enumerate(pot.layers) if isinstance(layer, PotLayer)]
    most = dict(zip(numbers, config.budgets(len(numbers)), strict=True))
    if all(pot.layers[number].length - pot.pinned <= most[number] for number in numbers):
        return
    started = time.perf_counter()
    policy = POLICIES[config.policy]()
    needs = policy.needs(config.novelty)
    prompted: dict[str, dict[int, Tensor]] = {}
    if "catalyst" in needs:
        if catalyst is None:
            raise AssertionError(f"policy {config.policy!r} was to distil without its catalyst")
        if "replay" in needs:
            prompted["replay"] = observe_replay(host, pot, config, catalyst)
        else:
            prompted["catalyst"] = observe_catalyst(host, pot, config, catalyst, ridden)
    chosen = []
    for number in numbers:
        least = most[number] * config.least_survivors // config.survivors
        seen, index, novelty = observe_layer(host, pot, config, number, prompted, least)
        scores = policy.judge(seen)
        indices = policy.choose(seen, scores, budget(config, seen, least, most[number]))
        head = torch.arange(pot.pinned, device=indices.device).expand(*indices.shape[:2], -1)
        past = None if scores is None or not config.own("persist") else F.pad(scores, (pot.pinned, 0))
        chosen.append((number, torch.cat((head, indices + pot.pinned), dim=-1), index, novelty, past))
    for number, slots, index, novelty, past in chosen:  # all or nothing: nothing is evicted before every layer has chosen
        pot.layers[number].keep(slots, index, novelty, pot.pinned, past)
    pot.distilled(time.perf_counter() - started)


def make_room(host: ModelRunner, pot: Pot, config: PotConfig, catalyst: Tensor | None, ridden: dict[int, Tensor] | None = None) -> int:
    """Distil if the next token would leave the catalyst no room. Returns how many tokens there is then room for."""
    room = pot.room - reserve(config, catalyst)
    if room <= 0:
        distill(host, pot, config, catalyst, ridden)
        room = pot.room - reserve(config, catalyst)
    return int(min(room, config.chunk))


def rides(pot: Pot, config: PotConfig, catalyst: Tensor | None) -> bool:
    """Whether the catalyst can be read behind a chunk and forgotten without a trace: not where the chunk is part of it (`plain`), where
    attention is remembered, where windows let entries go, or where a layer carries a state."""
    needs = POLICIES[config.policy]().needs(config.novelty)
    alone = "catalyst" in needs and not {"replay", "newest", "received"} & needs
    return alone and catalyst is not pot.newest and all(type(layer) is PotLayer for layer in pot.layers)


def read(
    host: ModelRunner,
    pot: Pot,
    config: PotConfig,
    ids: Tensor,
    catalyst: Tensor | None,
    score_novelty: bool,
    progress: Callable[[], None] | None = None,
    more: bool = False,
) -> None:
    """Read ids [B, T] of any length, distilling whenever the pot is full.

    A distillation happens only when there is something more to read: a text that fits is never distilled. So where a chunk fills the pot
    and is not the last, the catalyst rides behind it. more: more than ids is to be read. progress: called after every chunk, at a moment
    when the pot is whole; what it raises ends the reading there.
    """
    ridden: dict[int, Tensor] | None = None
    while ids.shape[1]:
        count = make_room(host, pot, config, catalyst, ridden)
        whole = pot.room - reserve(config, catalyst)
        if (ids.shape[1] > whole or (more and ids.shape[1] == whole)) and recorded(
            host, pot, config, ids[:, : int(whole)], catalyst, score_novelty
        ):
            count, ridden = int(whole), None
        else:
            ridden = read_chunk(host, pot, config, ids[:, :count], catalyst, score_novelty, more=more or count < ids.shape[1])
        ids = ids[:, count:]
        if progress is not None:
            progress()
    if more:
        make_room(host, pot, config, catalyst, ridden)


def read_chunk(
    host: ModelRunner, pot: Pot, config: PotConfig, ids: Tensor, catalyst: Tensor | None, score_novelty: bool, more: bool
) -> dict[int, Tensor] | None:
    """Read ids [1, T], with the catalyst behind them if they fill the pot and more is to come. Returns what that saw, if it rode along."""
    if not (more and catalyst is not None and rides(pot, config, catalyst) and ids.shape[1] == pot.room - catalyst.shape[1]):
        take(host, [pot], ids, [score_novelty])
        return None
    ridden: dict[int, Tensor] = {}
    take(host, [pot], ids, [score_novelty], catalyst[:1], watching(ridden, *catalyst_look(config, catalyst.shape[1])))
    return ridden


def recorded(host: ModelRunner, pot: Pot, config: PotConfig, ids: Tensor, catalyst: Tensor | None, score_novelty: bool) -> bool:
    """Run a whole cycle, from a distilled pot to a distilled pot, as a recording; False where there is none.

    ids: [1, T], as many as fill the pot; more are to come.
    """

    def run(ids: Tensor, catalyst: Tensor | None) -> None:
        ridden = None
        for piece in ids.split(config.chunk, dim=1):
            ridden = read_chunk(host, pot, config, piece, catalyst, score_novelty, more=True)
        distill(host, pot, config, catalyst, ridden)

    sizes = (config, ids.shape[1], 0 if catalyst is None else catalyst.shape[1], score_novelty)
    return not pot.by_chunk and (catalyst is None or rides(pot, config, catalyst)) and graph_cache(host).cycle(pot, sizes, ids, catalyst, run)
