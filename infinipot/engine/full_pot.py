"""A pot between two parts of a text."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from infinipot.engine.observe import ByLayer


@dataclass(frozen=True)
class FullPot:
    """A pot that must be distilled before it reads on."""

    progress: tuple[int, int]
    """`Reader.progress` when it was full."""
    catalyst: Tensor | None
    seen: ByLayer | None
    """The attention that entries received from the catalyst, if it was read behind them."""
