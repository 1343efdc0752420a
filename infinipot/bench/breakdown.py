"""What the parts of reading cost, each by itself, so that the product carries no timers."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from infinipot.bench.measure import cost_s
from infinipot.bench.reading import read, simple
from infinipot.cache.pot import Pot
from infinipot.config import PotConfig
from infinipot.engine.distill import new_distiller, score_novelty, take
from infinipot.engine.observe import CatalystLook, Suffix, observe
from infinipot.engine.plan import Plan
from infinipot.kernels.distill import Part
from infinipot.model.runner import ModelRunner
from infinipot.scoring.representativeness import Scoring
from infinipot.session import Session


def parts(
    runner: ModelRunner, config: PotConfig, ids: list[int], prefill_tps: float
) -> dict[str, Any] | None:
    """Seconds of each part between two distillations, and its share of the time in which what lies
    between them is read.

    catalyst_forward: reading the catalyst, looking at nothing. scores: CaP, what looking adds.
    compaction: a distillation that only takes the newest. selection: what another adds to that.
    novelty: NuC of the text. What a policy has not is left out. None if every token distils: then
    there is no chunk to take apart.
    """
    if config.mean_budget >= config.pot_size - 1:
        return None
    session = ready(runner, config, ids)
    plan = session._reader.plan
    catalyst = session._reader.last_catalyst
    between = plan.pot_size - plan.distill_to - plan.reserve(catalyst)
    seconds = (catalyst_s(session, ids) if catalyst is not None else {}) | distillation_s(
        session, ids
    )
    if session.pot.scores and session.pot.hidden is not None:
        states = session.pot.hidden.expand(1, min(plan.chunk_tokens, between), -1).contiguous()
        targets = torch.tensor([ids[: states.shape[1]]], device=runner.device)
        seconds["novelty"] = (
            cost_s(partial(runner.novelty, states, targets)) * between / states.shape[1]
        )
    shares = {name: value * prefill_tps / between for name, value in seconds.items()}
    return {
        "tokens_between": between,
        "seconds": seconds,
        "shares": shares,
        "overhead": sum(shares.values()),
    }


def ready(runner: ModelRunner, config: PotConfig, ids: list[int]) -> Session:
    """A session that has distilled and read on until one more chunk fills its pot."""
    session, _ = read(runner, config, ids[: config.pot_size + 1])
    reader = session._reader
    spare = room(session) - last(session)
    if spare < 0:  # beyond the next distillation
        reader.read(ids[: room(session) + 1], reader.last_catalyst)
        spare = room(session) - last(session)
    reader.read(ids[:spare], reader.last_catalyst)
    return session


def room(session: Session) -> int:
    return int(session.pot.room) - session._reader.plan.reserve(session._reader.last_catalyst)


def last(session: Session) -> int:
    """Tokens of the chunk that fills the pot: a whole one, or all that is read between two
    distillations but the one that caused the first."""
    plan = session._reader.plan
    return min(
        plan.chunk_tokens,
        plan.pot_size - plan.distill_to - plan.reserve(session._reader.last_catalyst) - 1,
    )


def filled(session: Session, ids: list[int]) -> Pot:
    """A twin of a session's pot that is full."""
    reader = session._reader
    twin = session.pot.copy()
    take(session.runner, [twin], reader.tensor(ids[: room(session)]))
    score_novelty(session.runner, twin)
    return twin


def catalyst_s(session: Session, ids: list[int]) -> dict[str, float]:
    """Seconds to read the catalyst, and to score by it: behind the last chunk where it rides, else
    by itself."""
    runner = session.runner
    distiller = session._reader.distiller
    catalyst = session._reader.last_catalyst
    if catalyst is None or "catalyst" not in distiller.plan.needs:
        return {}
    look = distiller.watcher.look(catalyst)
    blind = Blind(look.rows, look.gqa, look.once)
    if not distiller.can_append_catalyst(session.pot, catalyst):
        full = filled(session, ids)
        forward, whole = (
            cost_s(partial(observe, runner, full, catalyst, see, look.alone))
            for see in (blind, look)
        )
        return {"catalyst_forward": forward, "scores": whole - forward}
    chunk = session._reader.tensor(ids[: room(session)])

    def read(pot: Pot, suffix: Suffix | None = None) -> None:
        take(runner, [pot], chunk, suffix)

    alone, forward, whole = (
        cost_s(work, lambda: (session.pot.copy(),))
        for work in (
            read,
            partial(read, suffix=Suffix(catalyst, blind)),
            partial(read, suffix=Suffix(catalyst, look)),
        )
    )
    return {"catalyst_forward": forward - alone, "scores": whole - forward}


class Blind(CatalystLook):
    """Looks at nothing."""

    def __call__(self, query: Tensor, key: Tensor, scoring: Scoring) -> Tensor:
        return query.new_zeros(0)

    def recorded(self, query: Tensor, key: Tensor, scoring: Scoring, part: Part) -> Tensor:
        return key.new_zeros(key.shape[:3], dtype=torch.float32)


def distillation_s(session: Session, ids: list[int]) -> dict[str, float]:
    """Seconds to select and to compact, what the catalyst saw being known."""
    runner = session.runner
    distiller = session._reader.distiller
    catalyst = session._reader.last_catalyst
    full = filled(session, ids)
    prescored = None
    if catalyst is not None and distiller.can_append_catalyst(session.pot, catalyst):
        look = distiller.watcher.look(catalyst)
        prescored = observe(runner, full, catalyst, look, look.alone)
    newest = new_distiller(
        runner, Plan.of(simple(session._reader.config), len(distiller.plan.layers))
    )
    whole = cost_s(lambda pot: distiller.distill(pot, catalyst, prescored), lambda: (full.copy(),))
    compaction = cost_s(lambda pot: newest.distill(pot, None), lambda: (full.copy(),))
    if prescored is None and catalyst is not None:
        whole -= sum(catalyst_s(session, ids).values())
    return {"selection": whole - compaction, "compaction": compaction}
