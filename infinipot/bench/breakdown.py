"""The cost of each part of reading, measured separately, so that the library has no timers."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from infinipot.bench.measure import cost_s
from infinipot.bench.reading import read, simple
from infinipot.cache.pot import Pot
from infinipot.config import PotConfig
from infinipot.engine import distill
from infinipot.engine.observe import catalyst_look, observe, reserve, watching
from infinipot.model.runner import ModelRunner
from infinipot.policies import POLICIES
from infinipot.scoring.representativeness import Scoring
from infinipot.session import Session


def parts(host: ModelRunner, config: PotConfig, ids: list[int], prefill_tps: float) -> dict[str, Any]:
    """Seconds of each part per distillation cycle, and its share of the cycle's reading time.

    catalyst_forward: the forward pass over the catalyst, without scores. scores: the added time for
    CaP. compaction: a distillation that keeps the newest entries. selection: the added time of the
    policy's own choice. novelty: NuC of the text. Parts that the policy does not use are missing.
    """
    session = ready(host, config, ids)
    config = session._reader.config
    catalyst = session._reader.usual
    between = config.pot_size - config.survivors - reserve(config, catalyst)
    seconds = catalyst_s(session, ids) | distillation_s(session, ids)
    if "novelty" in session._reader.needs and session.pot.hidden is not None:
        rows = min(config.chunk, between)
        states = session.pot.hidden.expand(1, rows, -1).contiguous()
        targets = torch.tensor([ids[:rows]], device=host.device)
        seconds["novelty"] = cost_s(partial(host.novelty, states, targets)) * between / rows
    shares = {name: value * prefill_tps / between for name, value in seconds.items()}
    return {
        "tokens_between": between,
        "seconds": seconds,
        "shares": shares,
        "overhead": sum(shares.values()),
    }


def ready(host: ModelRunner, config: PotConfig, ids: list[int]) -> Session:
    """A session after a distillation. One more chunk fills its pot."""
    session, _ = read(host, config, ids[: config.pot_size + 1])
    reader = session._reader
    spare = room(session) - last(session)
    if spare < 0:  # read past the next distillation
        reader.read(ids[: room(session) + 1], reader.usual)
        spare = room(session) - last(session)
    reader.read(ids[:spare], reader.usual)
    return session


def room(session: Session) -> int:
    """Tokens that the pot can take before the next distillation."""
    return int(session.pot.room) - reserve(session.config, session._reader.usual)


def last(session: Session) -> int:
    """Tokens of the chunk that fills the pot.

    It is a whole chunk, or the whole cycle except the token that caused the last distillation.
    """
    config = session._reader.config
    between = config.pot_size - config.survivors - reserve(config, session._reader.usual)
    return min(config.chunk, between - 1)


def filled(session: Session, ids: list[int]) -> Pot:
    """A full copy of a session's pot."""
    reader = session._reader
    pot = session.pot.copy()
    chunk = reader.tensor(ids[: room(session)])
    distill.take(session.host, [pot], chunk, ["novelty" in reader.needs])
    return pot


def catalyst_s(session: Session, ids: list[int]) -> dict[str, float]:
    """Seconds of the forward pass over the catalyst, and of the scores.

    The catalyst is read together with the last chunk where the policy does so (it rides), otherwise
    in a pass of its own.
    """
    host = session.host
    config = session._reader.config
    catalyst = session._reader.usual
    if catalyst is None or "catalyst" not in POLICIES[config.policy]().needs(config.novelty):
        return {}
    look, unseeing = catalyst_look(config, catalyst.shape[1])
    if distill.rides(session.pot, config, catalyst):
        return riding_catalyst_s(session, ids, catalyst, look, unseeing)
    full = filled(session, ids)
    forward = cost_s(partial(observe, host, full, catalyst, blind, unseeing))
    whole = cost_s(partial(observe, host, full, catalyst, look, unseeing))
    return {"catalyst_forward": forward, "scores": whole - forward}


def riding_catalyst_s(
    session: Session, ids: list[int], catalyst: Tensor, look: Any, unseeing: Any
) -> dict[str, float]:
    """As `catalyst_s`, for a catalyst that is read together with the last chunk."""
    chunk = session._reader.tensor(ids[: room(session)])

    def take(pot: Pot, rider: Tensor | None, watch: Any) -> None:
        distill.take(session.host, [pot], chunk, [False], rider, watch)

    def seconds(rider: Tensor | None, see: Any) -> float:
        watch = None if see is None else watching({}, see, unseeing)
        return cost_s(partial(take, rider=rider, watch=watch), lambda: (session.pot.copy(),))

    alone = seconds(None, None)
    forward = seconds(catalyst, blind)
    whole = seconds(catalyst, look)
    return {"catalyst_forward": forward - alone, "scores": whole - forward}


def blind(query: Tensor, key: Tensor, scoring: Scoring) -> Tensor:
    """Computes no scores."""
    return query.new_zeros(0)


def distillation_s(session: Session, ids: list[int]) -> dict[str, float]:
    """Seconds of selection and compaction, without the scores of the catalyst."""
    host = session.host
    config = session._reader.config
    catalyst = session._reader.usual
    full = filled(session, ids)
    scores = None
    if catalyst is not None and distill.rides(session.pot, config, catalyst):
        scores = observe(host, full, catalyst, *catalyst_look(config, catalyst.shape[1]))

    def seconds(config: PotConfig, catalyst: Tensor | None, scores: Any) -> float:
        return cost_s(
            lambda pot: distill.distill(host, pot, config, catalyst, scores),
            lambda: (full.copy(),),
        )

    whole = seconds(config, catalyst, scores)
    compaction = seconds(simple(config), None, None)
    if scores is None:
        whole -= sum(catalyst_s(session, ids).values())
    return {"selection": whole - compaction, "compaction": compaction}
