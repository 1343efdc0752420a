"""A cache that only a model at work for a session may use."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from infinipot.compat import Cache

AT_WORK: ContextVar[bool] = ContextVar("at_work", default=False)
"""Whether a model reads into pots by our attention. Its own attention would spoil them."""


def check_at_work() -> None:
    if not AT_WORK.get():
        raise ValueError(
            "a pot cannot be the cache of a model's own forward or generate (past_key_values): use "
            "session.ask, session.stream or session.generation, or "
            "model.generate(..., custom_generate=infinipot.generate, pot=PotConfig(...))"
        )


class GuardedCache(Cache):
    """Refuses a model's own forward pass, which would rotate keys twice and never distil."""

    def __init__(self, layers: list[Any]) -> None:
        super().__init__(layers=layers)

    def get_seq_length(self, *args: Any, **kwargs: Any) -> int:
        check_at_work()
        return int(super().get_seq_length(*args, **kwargs))

    def update(self, *args: Any, **kwargs: Any) -> Any:
        check_at_work()
        return super().update(*args, **kwargs)
