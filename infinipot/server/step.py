"""The next token of every answer."""

from __future__ import annotations

from collections.abc import Sequence

from infinipot.server.work import Work


def step(rows: Sequence[Work]) -> list[int | Exception | None]:
    """One token for each answer: its id, None where it has ended, the problem where it failed. What befalls one row is no other's concern."""
    out: list[int | Exception | None] = []
    for row in rows:
        assert row.tokens is not None
        try:
            out.append(next(row.tokens, None))
        except Exception as problem:
            out.append(problem)
    return out
