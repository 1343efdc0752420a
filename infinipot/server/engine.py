"""The one thread that touches the model: who reads, who answers, who waits."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from pathlib import Path
from typing import Any, TypeVar

import torch
from transformers import PreTrainedTokenizerBase

from infinipot.config import PotConfig, Sampling
from infinipot.machine import out_of_memory
from infinipot.model.runner import ModelRunner
from infinipot.pot_file import PotFileError
from infinipot.server.disk import Disk
from infinipot.server.errors import Refusal, refusal_of, shutting_down
from infinipot.server.jobs.base import Work
from infinipot.server.metrics import Metrics
from infinipot.server.prompts import Words
from infinipot.server.scheduler import Seats
from infinipot.server.step import Said, a_core_less, step
from infinipot.server.stream import Post

log = logging.getLogger("infinipot")
T = TypeVar("T")

SLICE_TOKENS = 128
"""Most tokens read at a time while others wait for their next token."""
COUNT_S = 0.1
"""How often what /metrics shows is counted while the same answers are made."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """How a server is set up. config, sampling: what requests get that do not say otherwise."""

    config: PotConfig = dataclasses.field(default_factory=PotConfig)
    sampling: Sampling = dataclasses.field(default_factory=Sampling)
    max_sessions: int = 8
    """Pots in memory, those in use among them."""
    queue: int = 64
    """Requests that wait for a place; more are refused. One may be of several prompts, each with a place of its own."""
    most_tokens: int = 1 << 17
    """Longest answer that may be asked for."""
    pot_dir: Path | None = None
    pot_files: int = 256
    """Conversations on disk; the oldest are deleted."""
    shared: bool = False
    """Whether other servers with the same model use pot_dir, too."""


class Engine:
    """Runs works in a thread of its own, slice by slice. Everything else reaches it through `call`."""

    def __init__(self, host: ModelRunner, tokenizer: PreTrainedTokenizerBase, settings: Settings, metrics: Metrics) -> None:
        self.host, self.settings, self.metrics = host, settings, metrics
        self.words = Words(tokenizer, host.vocabulary)
        self.post = Post(lambda: self.call(lambda: None))
        self.waiting: deque[Work] = deque()
        self.running: list[Work] = []
        self.disk = Disk(self)
        self.seats = Seats(self, tokenizer)
        self.stopped = False
        self.failure: Exception | None = None
        self._inbox: queue.SimpleQueue[tuple[Callable[[], None], Future[Any]]] = queue.SimpleQueue()
        self._deaf = False
        """Whether nobody does any more what is asked for by `call`."""
        self._read_s = self._answer_s = 0.0
        self._counted = 0.0, 0
        self._active = time.monotonic()
        self._thread = threading.Thread(target=self._loop, name="infinipot-engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End what runs, write what can be written, and return when that is done."""
        if self._thread.is_alive():
            self.call(self.close)
        self._thread.join()
        self.disk.end()

    def call(self, act: Callable[[], T]) -> Future[T]:
        """Have something done between two slices, by the engine's thread. When that has ended, the future says so."""
        future: Future[T] = Future()

        def run() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(act())
                except BaseException as problem:
                    future.set_exception(problem)

        self._inbox.put((run, future))
        if self._deaf:
            self._refuse_calls()
        return future

    def _refuse_calls(self) -> None:
        """Nobody waits for what will never be done."""
        self._deaf = True
        with contextlib.suppress(queue.Empty):
            while True:
                _, future = self._inbox.get_nowait()
                with contextlib.suppress(InvalidStateError):  # it was cancelled
                    future.set_exception(shutting_down())

    # ---------------------------------------------------------------- from outside, by way of `call`

    @property
    def stuck_s(self) -> float:
        """For how long nothing has gone on although there was something to do; 0 if all is well. May be called from anywhere."""
        asked = self.waiting or any(work.readable or (work.answering and not work.unheard()) for work in list(self.running))
        return time.monotonic() - self._active if asked else 0.0

    def check(self) -> None:
        """Refuse a request that would find the queue full. May be called from anywhere."""
        if self.stopped:
            raise shutting_down()
        if len(self.waiting) >= self.settings.queue:
            raise Refusal(429, f"{len(self.waiting)} requests are waiting already: try again later", code="queue_full")

    def submit(self, *works: Work) -> None:
        """Put a request's works in the queue, all or none. Raises Refusal if that is full."""
        self.check()
        self.waiting.extend(works)

    def cancel(self, work: Work) -> None:
        """Forget a request whose client has left. Its place is free at once."""
        if work in self.waiting:
            self.waiting.remove(work)
        if work in self.running:
            self._leave(work)

    # ---------------------------------------------------------------- the thread

    def _loop(self) -> None:
        try:
            while not self.stopped:
                self.seats.admit()
                self.post.deliver()
                busy = self._turn()
                self.post.deliver()
                self._count(idle=not busy)
                idle = not (self.running or self.waiting)
                self._hear(wait=not busy)
                if busy or idle:
                    self._active = time.monotonic()
            self._hear(wait=False)  # what has come of the disk's last works
        except Exception as problem:  # a fault of this file: nobody can be served any more
            log.critical("the engine has failed: %s", problem, exc_info=problem)
            self.failure, self.stopped = problem, True
            for work in (*self.running, *self.waiting):
                work.send(refusal_of(problem))
        self._refuse_calls()
        self.post.deliver()

    def _hear(self, wait: bool) -> None:
        """Do what was asked for by `call`. wait: there is nothing else to do."""
        try:
            act, _ = self._inbox.get(block=wait)
            while True:
                act()
                act, _ = self._inbox.get_nowait()
        except queue.Empty:
            pass

    def _turn(self) -> bool:
        """A slice for whoever's turn it is. Reading and answering get the same time while both are wanted. Returns whether anybody had one."""
        readers = [work for work in self.running if work.readable]
        rows = [work for work in self.running if work.answering and not work.unheard()]
        if not readers or not rows:
            self._read_s = self._answer_s = 0.0
        started = time.perf_counter()
        if readers and (not rows or self._read_s <= self._answer_s):
            reader = min(readers, key=lambda work: work.served)
            reader.served = started
            chunk = reader.config.chunk_tokens or (512 if self.host.device.type == "cpu" else 2048)
            self._read(reader, min(SLICE_TOKENS, chunk) if len(self.running) > 1 else chunk)
            self._read_s += time.perf_counter() - started
        elif rows:
            with a_core_less(self.host.device):
                answers = step([row.turn for row in rows if row.turn is not None])
            for row, said in zip(rows, answers, strict=True):
                self._take(row, said)
            self._answer_s += time.perf_counter() - started
        return bool(readers or rows)

    def _read(self, work: Work, most_tokens: int) -> None:
        read = work.tokens_read
        try:
            work.read(most_tokens)
        except Exception as problem:
            self.fail(work, problem)
        self.metrics.read.inc(work.tokens_read - read)
        if work.ended:
            self._finish(work)

    def _take(self, row: Work, token: Said) -> None:
        said = row.tokens_said
        try:
            if isinstance(token, Exception):
                raise token
            row.take(token)
            self.metrics.generated.inc(row.tokens_said - said)
        except Exception as problem:
            self.fail(row, problem)
        if row.ended:
            self._finish(row)

    def _finish(self, work: Work) -> None:
        """A work is done: its pot is kept, if it is to be."""
        try:
            work.keep(self.seats.shelf)
        except Exception as problem:
            self.fail(work, problem)
        if work in self.running:
            self.running.remove(work)

    def fail(self, work: Work, problem: Exception, given: bool = True) -> None:
        """Tell the client that it concerns what went wrong; the others do not notice. given: as in `refusal_of`."""
        refusal = refusal_of(problem, given)
        if refusal.status >= 500:
            self.metrics.failures.labels(refusal.code or "").inc()
            log.error("a request failed: %s", problem, exc_info=None if isinstance(problem, (Refusal, PotFileError)) else problem)
        self._leave(work)
        if out_of_memory(problem) and torch.cuda.is_available():
            torch.cuda.empty_cache()
        work.send(refusal)

    def _leave(self, work: Work) -> None:
        if work in self.running:
            self.running.remove(work)
        work.drop()

    def _count(self, idle: bool) -> None:
        now, running = time.monotonic(), len(self.running)
        if not idle and now - self._counted[0] < COUNT_S and running == self._counted[1]:
            return
        self._counted = now, running
        sessions = [held.session for held in self.seats.shelf.held] + [work.session for work in self.running if work.session is not None]
        self.metrics.running.set(len(self.running))
        self.metrics.waiting.set(len(self.waiting))
        self.metrics.held.set(len(self.seats.shelf.held))
        self.metrics.bytes.set(sum(session.pot.entry_bytes for session in sessions))

    def close(self) -> None:
        """Refuse what runs and waits, write what can be written, and end; in the engine's thread."""
        self.stopped = True
        for work in (*self.running, *self.waiting):
            self.fail(work, shutting_down())
        self.waiting.clear()
        self.seats.write_all()
