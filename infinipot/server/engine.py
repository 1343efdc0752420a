"""The one thread that touches the model: who reads, who answers, who waits."""

from __future__ import annotations

import dataclasses
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import torch
from transformers import PreTrainedTokenizerBase

from infinipot.config import PotConfig, Sampling
from infinipot.model.runner import ModelRunner
from infinipot.server.mailbox import Post
from infinipot.server.metrics import Metrics
from infinipot.server.refusal import Refusal, out_of_memory, refusal_of
from infinipot.server.seats import Seats
from infinipot.server.step import Said, a_core_less, step
from infinipot.server.words import Words
from infinipot.server.work import Work

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
    """Requests that wait for a place; more are refused."""
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
        self.post = Post()
        self.waiting: deque[Work] = deque()
        self.running: list[Work] = []
        self.disk = ThreadPoolExecutor(1, "infinipot-disk")
        self.seats = Seats(self, tokenizer)
        self.stopped = False
        self.failure: Exception | None = None
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._read_s = self._answer_s = 0.0
        self._counted = 0.0, 0
        self._thread = threading.Thread(target=self._loop, name="infinipot-engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End what runs, write what can be written, and return when that is done."""
        if self._thread.is_alive():
            self.call(self.close)
        self._thread.join()
        self.disk.shutdown()

    def call(self, act: Callable[[], T]) -> Future[T]:
        """Have something done between two slices, by the engine's thread."""
        future: Future[T] = Future()

        def run() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(act())
                except BaseException as problem:
                    future.set_exception(problem)

        self._inbox.put(run)
        return future

    # ---------------------------------------------------------------- from outside, by way of `call`

    def submit(self, work: Work) -> None:
        """Put a request in the queue. Raises Refusal if that is full."""
        if self.stopped:
            raise Refusal(503, "the server is shutting down", code="shutting_down")
        if len(self.waiting) >= self.settings.queue:
            raise Refusal(429, f"{len(self.waiting)} requests are waiting already: try again later", code="queue_full")
        self.waiting.append(work)

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
                self._hear(wait=not busy)
        except Exception as problem:  # a fault of this file: nobody can be served any more
            log.critical("the engine has failed: %s", problem, exc_info=problem)
            self.failure, self.stopped = problem, True
            for work in (*self.running, *self.waiting):
                work.send(refusal_of(problem))
        self.post.deliver()

    def _hear(self, wait: bool) -> None:
        """Do what was asked for by `call`. wait: there is nothing else to do."""
        try:
            act = self._inbox.get(block=wait)
            while True:
                act()
                act = self._inbox.get_nowait()
        except queue.Empty:
            pass

    def _turn(self) -> bool:
        """A slice for whoever's turn it is. Reading and answering get the same time while both are wanted. Returns whether anybody had one."""
        readers = [work for work in self.running if work.readable]
        rows = [work for work in self.running if work.answering]
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

    def fail(self, work: Work, problem: Exception) -> None:
        """What went wrong is told to the client that it concerns; the others do not notice."""
        refusal = refusal_of(problem, given=True)
        if refusal.status >= 500:
            self.metrics.failures.labels(refusal.code or "").inc()
            log.error("a request failed: %s", problem, exc_info=None if isinstance(problem, Refusal) else problem)
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
            self.fail(work, Refusal(503, "the server is shutting down", code="shutting_down"))
        self.waiting.clear()
        self.seats.write_all()
