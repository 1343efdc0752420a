"""SelfExtend (arXiv 2401.01325): nothing leaves; distant positions are shared by groups of entries,
so that they stay in the window."""

from __future__ import annotations

from dataclasses import dataclass

from infinipot.checks import whole_number
from infinipot.policies.base import Policy


@dataclass(frozen=True, kw_only=True)
class SelfExtend(Policy):
    name = "self_extend"
    summary = "everything, without a bound, distant positions grouped (SelfExtend)"
    paper = "arXiv 2401.01325"
    bounded = False
    grouped = True

    group: int = 8
    """How many distant entries share a position."""
    neighbours: int = 1024
    """How many newest entries have positions of their own."""

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number("group", self.group, 1)
        whole_number("neighbours", self.neighbours, 1)
