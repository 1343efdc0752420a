"""SelfExtend (arXiv 2401.01325): nothing leaves; distant positions are shared by groups of entries, so that they stay in the window."""

from __future__ import annotations

from infinipot.policies.base import Policy


class SelfExtend(Policy):
    name = "self_extend"
    summary = "everything, without a bound, distant positions grouped (SelfExtend)"
    reads = "all"
    grouped = True
