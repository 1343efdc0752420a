"""Truncation as LongBench does it (arXiv 2308.14508): the two ends of the text are read, the middle
is never seen."""

from __future__ import annotations

from dataclasses import dataclass

from infinipot.policies.base import Policy


@dataclass(frozen=True, kw_only=True)
class Truncate(Policy):
    name = "truncate"
    summary = "the text's two ends; the middle is cut out unread (LongBench)"
    paper = "arXiv 2308.14508"
    bounded = False
    cuts = True
