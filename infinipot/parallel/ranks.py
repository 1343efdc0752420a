"""Functions that run on all ranks of a model that is shared out."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Ranks(Protocol):
    """The ranks of a model, as rank 0 sees them."""

    @property
    def at_work(self) -> bool:
        """Whether this thread is inside a function that runs on all ranks."""

    def run(self, name: str, work: Callable[[], T], args: Any, kwargs: Any) -> T:
        """Let all other ranks call the function `name` ("module:qualified name") with these
        arguments, while this one does `work`, which is the same."""


def on_all_ranks(function: Callable[P, T]) -> Callable[P, T]:
    """Let a function run on all ranks of the model to which its first argument belongs: that has
    `followers`, which is None for a model in one process.

    Functions that it calls run here only: other ranks call them, too.
    """
    name = f"{function.__module__}:{function.__qualname__}"

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        followers: Ranks | None = args[0].followers  # type: ignore[attr-defined]
        if followers is None or followers.at_work:
            return function(*args, **kwargs)
        return followers.run(name, lambda: function(*args, **kwargs), args, kwargs)

    return call
