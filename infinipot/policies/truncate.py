"""Truncation as in LongBench (arXiv 2308.14508): only the start and the end of the text are read."""

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
