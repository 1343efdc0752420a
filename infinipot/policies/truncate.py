"""Truncation as LongBench does it (arXiv 2308.14508): the two ends of the text are read, the middle is never seen."""

from __future__ import annotations

from infinipot.policies.base import Policy


class Truncate(Policy):
    name = "truncate"
    summary = "the text's two ends; the middle is cut out unread (LongBench)"
    reads = "ends"
