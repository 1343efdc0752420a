"""Counters of a session."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Stats:
    """Counters of a session."""

    tokens_read: int
    """Tokens that the model has read: text, template, and the messages of a chat. With policy
    `truncate` the end of the text waits for an answer, and counts when it has been read."""
    tokens_skipped: int
    """Tokens that the model does not read (policy `truncate`): the middle of the text, and what the
    latest answer had no room for."""
    entries: int
    """Entries per layer and KV head now."""
    peak_entries: int
    """Most entries of a bounded layer at any moment, for any purpose."""
    distillations: int
    pot_bytes: int
    """Bytes allocated for entries: raw keys, values, bookkeeping, and on a CPU a rotated copy of the keys."""
    full_cache_bytes: int
    """Bytes an ordinary cache of all that was read would take."""
    timings: dict[str, float]
    """Seconds: read_s (distillations included), distill_s, answer_s."""
