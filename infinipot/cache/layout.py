"""The shape of a pot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from infinipot.cache.attention_stats import AttentionStats


@dataclass(frozen=True)
class Layout:
    """The shape of a pot.

    size: |M|, None without a bound. sizes: |M| of each bounded layer, if they differ. reset:
    CR-RoPE. kind: the eight-bit type of stored entries, None for the model's own. attention_stats:
    what layers remember of attention. grouping: (number of distant entries that share a position,
    number of newest entries that do not), for SelfExtend. distils: whether it is ever distilled.
    scores: whether NuC will be needed. alike: whether entries of all bounded layers have one shape.
    followers: the other ranks, which have this pot, too; None for a model in one process.
    """

    size: int | None
    sizes: tuple[int, ...] | None = None
    reset: bool = True
    kind: str | None = None
    attention_stats: AttentionStats | None = None
    grouping: tuple[int, int] | None = None
    distils: bool = True
    scores: bool = False
    alike: bool = False
    followers: Any = None
