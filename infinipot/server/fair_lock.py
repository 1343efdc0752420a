"""A lock that prefers the thread that has used it least."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class FairLock:
    """Of the threads that wait, the one that has used it least gets it next."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken = False
        self._order = itertools.count()
        self._waiting: list[tuple[int, int, threading.Lock]] = []

    @contextmanager
    def after(self, used: int) -> Iterator[None]:
        """used: how much the caller has done under this lock."""
        gate = threading.Lock()
        gate.acquire()
        with self._lock:
            if self._taken:
                heapq.heappush(self._waiting, (used, next(self._order), gate))
            else:
                self._taken = True
                gate.release()
        gate.acquire()
        try:
            yield
        finally:
            with self._lock:
                if self._waiting:
                    heapq.heappop(self._waiting)[2].release()
                else:
                    self._taken = False
