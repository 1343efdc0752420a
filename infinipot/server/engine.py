"""The thread that uses the model. It runs the slices that the scheduler chooses."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from typing import Any, TypeVar

from transformers import PreTrainedTokenizerBase

from infinipot.engine.joint import read_together
from infinipot.model.runner import ModelRunner
from infinipot.server.clock import Stopwatch
from infinipot.server.disk import Disk
from infinipot.server.errors import shutting_down
from infinipot.server.jobs.base import Job
from infinipot.server.metrics import Metrics
from infinipot.server.pot_files import PotFiles
from infinipot.server.pot_store import PotStore
from infinipot.server.prompts import Prompts
from infinipot.server.scheduler import Scheduler
from infinipot.server.settings import Settings
from infinipot.server.slices import Slice, SliceTimer
from infinipot.server.step import StepResult, spare_core, step
from infinipot.server.stored_pot import PotLoader
from infinipot.server.stream import Outbox
from infinipot.server.warm_up import most_rows
from infinipot.session import Session
from infinipot.session.file import origin_of

log = logging.getLogger("infinipot")
T = TypeVar("T")

AHEAD = 2
"""Most slices that a GPU is given before it has done them: one that it works on, one that waits."""
COUNT_S = 0.1
"""How often the gauges of /metrics are updated while the same jobs run."""


class Engine:
    """Runs jobs in a thread of its own. Other threads reach it through `call`."""

    def __init__(
        self,
        runner: ModelRunner,
        tokenizer: PreTrainedTokenizerBase,
        settings: Settings,
        metrics: Metrics,
    ) -> None:
        self.runner = runner
        self.tokenizer = tokenizer
        self.metrics = metrics
        self.prompts = Prompts(tokenizer, runner.vocabulary)
        self.outbox = Outbox(lambda: self.call(lambda: None))
        self.disk = Disk(self.call, lambda: self.stopped)
        self.store = PotStore(settings.pot_dir, settings.pot_files, settings.shared)
        loader = PotLoader(runner, tokenizer, settings.config, origin_of(runner, tokenizer))
        self.files = PotFiles(self.store, self.disk, loader, metrics)
        rows = most_rows(settings.max_sessions)
        self.timer = SliceTimer(runner.device.type, settings.max_stall_s, rows)
        self.scheduler = Scheduler(settings, self.files, self.timer, self._new_session)
        self.failure: Exception | None = None
        self._inbox: queue.SimpleQueue[tuple[Callable[[], None], Future[Any]]] = queue.SimpleQueue()
        self._ended = False
        """Whether the thread no longer runs calls."""
        self._begun: deque[tuple[Slice, int, Stopwatch]] = deque()
        """Slices that a GPU may not have done yet, with the tokens read."""
        self._counted = 0.0, 0
        self._active = time.monotonic()
        self._thread = threading.Thread(target=self._loop, name="infinipot-engine", daemon=True)

    @property
    def stopped(self) -> bool:
        return self.scheduler.stopped

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End all jobs, write all pots, and wait for both."""
        if self._thread.is_alive():
            self.call(self.close)
        self._thread.join()
        self.disk.end()

    def close(self) -> None:
        """Refuse all jobs, and write all pots. Runs in the engine's thread, which then ends."""
        self.scheduler.stop()
        self.files.write_all()

    # ---------------------------------------------------------------- from other threads

    def call(self, act: Callable[[], T]) -> Future[T]:
        """Run a function in the engine's thread, between two slices."""
        future: Future[T] = Future()
        context = contextvars.copy_context()  # log lines carry the request's id

        def run() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(context.run(act))
                except BaseException as problem:
                    future.set_exception(problem)

        self._inbox.put((run, future))
        if self._ended:
            self._refuse_calls()
        return future

    async def ask(self, act: Callable[[], T]) -> T:
        """Run a function in the engine's thread, and wait for its result."""
        return await asyncio.wrap_future(self.call(act))

    @contextlib.asynccontextmanager
    async def working(self, jobs: list[Job]) -> AsyncIterator[None]:
        """Submit jobs. They are cancelled when the block ends."""
        try:
            self.scheduler.check()  # a thread that has ended runs no calls
            await self.ask(lambda: self.scheduler.submit(*jobs))
            yield
        finally:
            for job in jobs:
                self.cancel(job)

    def cancel(self, job: Job) -> None:
        """Forget a job whose client has left."""
        self.call(lambda: self.scheduler.cancel(job))

    @property
    def stuck_s(self) -> float:
        """Seconds without progress while a job could go on; 0 if all is well."""
        if not self.scheduler.has_work:
            return 0.0
        return time.monotonic() - self._active

    # ---------------------------------------------------------------- the thread

    def _new_session(self, job: Job) -> Session:
        runner = job.runner or self.runner
        return Session(
            runner, self.tokenizer, job.config, system=job.system, template=job.templated
        )

    def _loop(self) -> None:
        try:
            while not self.stopped:
                self._iterate()
            self._run_calls(wait=False)  # the results of the disk's last work
        except Exception as problem:  # a fault of the server itself: nobody can be served
            log.critical("the engine has failed: %s", problem, exc_info=problem)
            self.failure = problem
            self.scheduler.abort(problem)
        self._refuse_calls()
        self.outbox.deliver()

    def _iterate(self) -> None:
        self.scheduler.admit()
        self.outbox.deliver()
        busy = self._run_slice()
        self._count(idle=not busy)  # before clients hear of it
        self.outbox.deliver()
        idle = not self.scheduler.jobs
        self._run_calls(wait=not busy)
        if busy or idle:
            self._active = time.monotonic()

    def _run_calls(self, wait: bool) -> None:
        """Run the functions given to `call`. wait: sleep until there is one."""
        try:
            act, _ = self._inbox.get(block=wait)
            while True:
                act()
                act, _ = self._inbox.get_nowait()
        except queue.Empty:
            pass

    def _refuse_calls(self) -> None:
        """Refuse all calls: nothing will run them."""
        self._ended = True
        with contextlib.suppress(queue.Empty):
            while True:
                _, future = self._inbox.get_nowait()
                with contextlib.suppress(InvalidStateError):  # it was cancelled
                    future.set_exception(shutting_down())

    def _run_slice(self) -> bool:
        """Run the next slice. Returns whether there was one."""
        piece = self.scheduler.next_slice()
        if piece is None:
            return False
        watch = Stopwatch(self.runner.device)
        tokens = 0
        if piece.reader is not None:
            tokens = self._read([piece.reader, *piece.beside], piece.max_tokens)
        else:
            self._answer(piece)
        watch.stop()
        self._begun.append((piece, tokens, watch))
        most = AHEAD
        if not self.timer.known(piece, tokens):
            most = 0
        self._measure(most)
        self.timer.begun(piece, tokens)
        return True

    def _measure(self, most: int) -> None:
        """Note how long slices took that are done. Waits until at most `most` are left."""
        while self._begun and (len(self._begun) > most or self._begun[0][2].done):
            piece, tokens, watch = self._begun.popleft()
            self.timer.done(piece, tokens, watch.seconds)

    def _read(self, jobs: Sequence[Job], max_tokens: int) -> int:
        """Read a slice, several jobs in joint forward passes. Returns the number of tokens read."""
        before = sum(job.tokens_read for job in jobs)
        runner = jobs[0].runner or self.runner
        problems = read_together(runner, [job.passes(max_tokens) for job in jobs])
        tokens = sum(job.tokens_read for job in jobs) - before
        self.metrics.read.inc(tokens)
        for job, problem in zip(jobs, problems, strict=True):
            if problem is not None:
                self.scheduler.fail(job, problem)
            if job.ended:
                self.scheduler.finish(job)
        return tokens

    def _answer(self, piece: Slice) -> None:
        """Make one token for each answer."""
        generations = [job.generation for job in piece.answers if job.generation is not None]
        with spare_core(self.runner.device):
            results = step(generations)
        now = time.perf_counter()
        for job, result in zip(piece.answers, results, strict=True):
            self._take(job, result, now)

    def _take(self, job: Job, result: StepResult, now: float) -> None:
        """Give a job its token. now: when it came, of time.perf_counter."""
        before = job.tokens_generated
        try:
            if isinstance(result, Exception):
                raise result
            job.take(result)
            if job.tokens_generated > before:
                self._count_token(job, now)
        except Exception as problem:
            self.scheduler.fail(job, problem)
        if job.ended:
            self.scheduler.finish(job)

    def _count_token(self, job: Job, now: float) -> None:
        self.metrics.generated.inc()
        if job.last_token_s:
            self.metrics.inter_token_s.observe(now - job.last_token_s)
        job.last_token_s = now

    def _count(self, idle: bool) -> None:
        """Update the gauges."""
        now = time.monotonic()
        jobs = self.scheduler.running
        if not idle and now - self._counted[0] < COUNT_S and len(jobs) == self._counted[1]:
            return
        self._counted = now, len(jobs)
        pots = self.store.pots
        sessions = [pot.session for pot in pots]
        sessions += [job.session for job in jobs if job.session is not None]
        self.metrics.running.set(len(jobs))
        self.metrics.waiting.set(len(self.scheduler.waiting))
        self.metrics.held.set(len(pots))
        self.metrics.bytes.set(sum(session.pot.entry_bytes for session in sessions))
