"""StreamingLLM (arXiv 2309.17453): the first entries and the newest. If distill_to is one less than
pot_size, one entry leaves per token."""

from __future__ import annotations

from dataclasses import dataclass

from infinipot.policies.sliding_window import SlidingWindow


@dataclass(frozen=True, kw_only=True)
class Streaming(SlidingWindow):
    name = "streaming"
    summary = "the first entries and the newest (StreamingLLM)"
    paper = "arXiv 2309.17453"

    sinks: int = 4
    """First entries after the pinned ones that always stay, counted in distill_to."""
