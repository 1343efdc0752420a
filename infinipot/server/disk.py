"""The thread that reads and writes pot files."""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from infinipot.server.errors import shutting_down

T = TypeVar("T")
R = TypeVar("R")


class Caller(Protocol):
    """Runs a function in the engine's thread."""

    def __call__(self, act: Callable[[], T]) -> Future[T]: ...


def copy_result(target: Future[R], source: Future[R]) -> None:
    """Copy a result or an exception, unless the target was cancelled."""
    if not target.set_running_or_notify_cancel():
        return
    problem = source.exception()
    if problem is not None:
        target.set_exception(problem)
    else:
        target.set_result(source.result())


def ready(result: T) -> Future[T]:
    future: Future[T] = Future()
    future.set_result(result)
    return future


class Disk:
    """Runs one function after the other, in order: a deletion follows all earlier writes.

    It never waits for the engine, so the engine may wait for it.
    """

    def __init__(self, call: Caller, stopped: Callable[[], bool]) -> None:
        self._call = call
        self._stopped = stopped
        self._thread = ThreadPoolExecutor(1, "infinipot-disk")

    def do(self, act: Callable[[], T], then: Callable[[Future[T]], R]) -> Future[R]:
        """Run `act` here, then `then` in the engine's thread. Returns the result of `then`."""
        result: Future[R] = Future()
        context = contextvars.copy_context()  # log lines carry the request's id

        # the future is an argument: a closure over it would keep the pot until the next collection
        def done(future: Future[T]) -> None:
            following = self._call(functools.partial(context.run, then, future))
            following.add_done_callback(functools.partial(copy_result, result))

        self._submit(act).add_done_callback(done)
        return result

    def read(self, act: Callable[[], T], then: Callable[[Future[T]], R]) -> Future[R]:
        """Like `do`, but refused once the server stops."""
        return self.do(functools.partial(self._unless_stopped, act), then)

    def now(self, act: Callable[[], T]) -> T:
        """Run a function after all earlier ones, and wait for it."""
        return self._submit(act).result()

    def end(self) -> None:
        """Wait until all is done, and end the thread."""
        self._thread.shutdown()

    def _submit(self, act: Callable[[], T]) -> Future[T]:
        try:
            return self._thread.submit(act)
        except RuntimeError:  # the thread has ended
            raise shutting_down() from None

    def _unless_stopped(self, act: Callable[[], Any]) -> Any:
        if self._stopped():
            raise shutting_down()
        return act()
