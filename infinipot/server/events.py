"""What the engine tells those who wait for an answer."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from torch import Tensor

from infinipot.server.errors import Refusal
from infinipot.session import Session


@dataclasses.dataclass(frozen=True)
class Likely:
    """A token, its log probability (None where nothing predicts it), and the likeliest tokens with theirs."""

    token: int
    logprob: float | None
    top: list[tuple[int, float]]


@dataclasses.dataclass(frozen=True)
class Piece:
    """A piece of an answer, and its tokens' probabilities, if they were asked for."""

    text: str
    likely: list[Likely]


@dataclasses.dataclass(frozen=True)
class Done:
    """The end: why, and what was asked for besides the text. report: `usage` of an answer, the description of a filled pot."""

    reason: str
    report: dict[str, Any]


Event = Piece | Done | Refusal
Send = Callable[[Event], None]


def likely(logprobs: Tensor, token: int, count: int) -> Likely:
    """Log probabilities [V] -> the token's and the `count` likeliest."""
    if not count:
        return Likely(token, float(logprobs[token]), [])
    values, ids = logprobs.topk(count)
    return Likely(token, float(logprobs[token]), list(zip(ids.tolist(), values.tolist(), strict=True)))


def pot_of(session: Session) -> dict[str, Any]:
    """What a reply says of the pot."""
    stats = session.stats
    return {
        "size": session.pot.size,
        "kept": stats.entries,
        "peak": stats.peak_entries,
        "distillations": stats.distillations,
        "bytes": stats.pot_bytes,
        "full_cache_bytes": stats.full_cache_bytes,
        "policy": session.config.policy.name,
    }
