"""No bound: every entry stays, and memory grows with the text. The reference for all policies."""

from __future__ import annotations

from dataclasses import dataclass

from infinipot.policies.base import Policy


@dataclass(frozen=True, kw_only=True)
class Full(Policy):
    name = "full"
    summary = "everything, without a bound: memory grows with the text"
    bounded = False
