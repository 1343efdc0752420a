"""SelfExtend (arXiv 2401.01325): all entries stay, and groups of distant entries share a position, so
that positions stay in the trained range."""

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
    """Number of distant entries that share a position."""
    neighbours: int = 1024
    """Number of newest entries with positions of their own."""

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number("group", self.group, 1)
        whole_number("neighbours", self.neighbours, 1)
