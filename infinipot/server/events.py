"""Events that the engine sends to a request."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from torch import Tensor

from infinipot.engine.decode import InvalidLogits
from infinipot.server.errors import APIError
from infinipot.session import Session
from infinipot.text.calls.base import Part

NEVER = -9999.0
"""The log probability of what never comes, as OpenAI writes it: JSON has no infinity."""


@dataclasses.dataclass(frozen=True)
class Likely:
    """A token, its log probability, and the likeliest tokens with theirs.

    The first token of a text has no log probability.
    """

    token: int
    logprob: float | None
    top: list[tuple[int, float]]


@dataclasses.dataclass(frozen=True)
class Piece:
    """A piece of an answer, and the probabilities of its tokens, if requested."""

    text: str
    likely: list[Likely]
    parts: tuple[Part, ...] = ()
    """What the text holds, if that is more than text: `text` is empty then."""

    @property
    def all_parts(self) -> tuple[Part, ...]:
        if self.text:
            return (Part(content=self.text),)
        return self.parts


@dataclasses.dataclass(frozen=True)
class Done:
    """The end, and its reason. report: the `usage` of an answer, or the description of a filled
    pot."""

    reason: str
    report: dict[str, Any]


Event = Piece | Done | APIError
Send = Callable[[Event], None]


def likely(logprobs: Tensor, token: int, count: int) -> Likely:
    """The token's log probability and the `count` likeliest, from log probabilities [V]. Raises
    InvalidLogits if they are not numbers."""
    top: list[tuple[int, float]] = []
    if logprobs.isnan().any():
        raise InvalidLogits
    logprobs = logprobs.clamp(min=NEVER)
    if count:
        values, ids = logprobs.topk(min(count, len(logprobs)))
        top = list(zip(ids.tolist(), values.tolist(), strict=True))
    return Likely(token, float(logprobs[token]), top)


def pot_of(session: Session) -> dict[str, Any]:
    """The pot's description in a reply."""
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
