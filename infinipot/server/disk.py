"""The one thread that reads and writes the pots' files."""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from infinipot.server.errors import shutting_down

if TYPE_CHECKING:
    from infinipot.server.engine import Engine

T = TypeVar("T")
R = TypeVar("R")


def pass_on(told: Future[R], made: Future[R]) -> None:
    """Let those who wait for `told` have what was made, if they still wait."""
    if not told.set_running_or_notify_cancel():
        return
    problem = made.exception()
    if problem is not None:
        told.set_exception(problem)
    else:
        told.set_result(made.result())


def ready(result: T) -> Future[T]:
    future: Future[T] = Future()
    future.set_result(result)
    return future


class Disk:
    """Does one thing after the other, in the order they were asked for: a deletion comes after all that was to be
    written before it. It never waits for the engine, so the engine may wait for it."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._thread = ThreadPoolExecutor(1, "infinipot-disk")

    def do(self, act: Callable[[], T], then: Callable[[Future[T]], R]) -> Future[R]:
        """Have `act` done here, and then, by the engine's thread, what follows from it. Returns what that returns."""
        told: Future[R] = Future()

        # the future comes as an argument: one that its own callback holds would keep the pot until the next collection
        def done(future: Future[T]) -> None:
            self.engine.call(functools.partial(then, future)).add_done_callback(functools.partial(pass_on, told))

        self._submit(act).add_done_callback(done)
        return told

    def read(self, act: Callable[[], T], then: Callable[[Future[T]], R]) -> Future[R]:
        """The same for what nobody needs any more once the server ends."""
        return self.do(functools.partial(self.unless_ending, act), then)

    def now(self, act: Callable[[], T]) -> T:
        """Have something done, after all that was asked for before, and wait for it."""
        return self._submit(act).result()

    def end(self) -> None:
        """Returns when all is done."""
        self._thread.shutdown()

    def _submit(self, act: Callable[[], T]) -> Future[T]:
        try:
            return self._thread.submit(act)
        except RuntimeError:  # it has ended
            raise shutting_down() from None

    def unless_ending(self, act: Callable[[], Any]) -> Any:
        if self.engine.stopped:
            raise shutting_down()
        return act()
