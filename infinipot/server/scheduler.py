"""Which job gets a place in memory, and which job gets the next slice."""

from __future__ import annotations

import functools
import logging
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from infinipot.machine import out_of_memory
from infinipot.pot_file import PotFileError
from infinipot.server.errors import APIError, disk_trouble, error_of, of_disk, shutting_down
from infinipot.server.jobs.base import Job
from infinipot.server.jobs.fill import FillJob
from infinipot.server.pot_files import PotFiles
from infinipot.server.pot_store import PendingLoad
from infinipot.server.request_record import working_for
from infinipot.server.settings import Settings
from infinipot.server.slices import Slice, SliceTimer
from infinipot.server.stored_pot import StoredPot
from infinipot.session import Session

log = logging.getLogger("infinipot")


@dataclass(frozen=True)
class Limits:
    """sessions: pots in memory. queue: jobs that may wait."""

    sessions: int
    queue: int


class Scheduler:
    """Owns the waiting and the running jobs. Nothing else changes these lists.

    All methods run in the engine's thread, except `check` and the properties.
    """

    def __init__(
        self,
        settings: Settings,
        files: PotFiles,
        timer: SliceTimer,
        new_session: Callable[[Job], Session],
    ) -> None:
        self.limits = Limits(settings.max_sessions, settings.queue)
        self.files = files
        self.store = files.store
        self.metrics = files.metrics
        self._timer = timer
        self._new_session = new_session
        self._waiting: deque[Job] = deque()
        self._running: list[Job] = []
        self._disk_busy = False
        """Whether admission waits for the disk."""
        self._stopped = False

    # ---------------------------------------------------------------- state

    @property
    def stopped(self) -> bool:
        """Whether the server takes no more jobs."""
        return self._stopped

    @property
    def waiting(self) -> tuple[Job, ...]:
        return tuple(self._waiting)

    @property
    def running(self) -> tuple[Job, ...]:
        return tuple(self._running)

    @property
    def jobs(self) -> tuple[Job, ...]:
        """All jobs, running and waiting."""
        return (*self._running, *self._waiting)

    @property
    def fills(self) -> dict[str, FillJob]:
        """The jobs that fill named pots, by the pots' names."""
        return {job.name: job for job in self.jobs if isinstance(job, FillJob)}

    @property
    def has_work(self) -> bool:
        """Whether a job waits, reads or answers."""
        return bool(self._waiting) or any(
            job.readable or (job.answering and not job.stalled()) for job in self.running
        )

    @property
    def full(self) -> bool:
        return len(self.store.pots) + len(self._running) >= self.limits.sessions

    # ---------------------------------------------------------------- jobs come and go

    def check(self) -> None:
        """Raise APIError if the queue is full or the server stops."""
        if self.stopped:
            raise shutting_down()
        if len(self._waiting) >= self.limits.queue:
            message = f"{len(self._waiting)} requests are waiting already: try again later"
            raise APIError(429, message, code="queue_full")

    def submit(self, *jobs: Job) -> None:
        """Queue a request's jobs, all or none. Raises APIError if the queue is full."""
        self.check()
        for job in jobs:
            job.submitted_s = time.perf_counter()
        self._waiting.extend(jobs)

    def cancel(self, job: Job) -> None:
        """Forget a job whose client has left. Its place is free at once."""
        if job in self._waiting:
            self._waiting.remove(job)
        if job in self._running:
            self._leave(job)

    def finish(self, job: Job) -> None:
        """A job is done: store its pot."""
        try:
            job.keep(self.store)
        except Exception as problem:
            self.fail(job, problem)
        if job in self._running:
            self._running.remove(job)

    def fail(self, job: Job, problem: Exception, from_client: bool = True) -> None:
        """Tell the job's client what went wrong. Other jobs go on. from_client: see `error_of`."""
        error = error_of(problem, from_client)
        if error.status >= 500:
            self.metrics.failures.labels(error.code or "").inc()
            expected = isinstance(problem, (APIError, PotFileError))
            with working_for(job.record):
                log.error("a request failed: %s", problem, exc_info=None if expected else problem)
        self._leave(job)
        if out_of_memory(problem) and torch.cuda.is_available():
            torch.cuda.empty_cache()
        job.send(error)

    def stop(self) -> None:
        """Refuse all jobs, present and future."""
        self._stopped = True
        for job in self.jobs:
            self.fail(job, shutting_down())
        self._waiting.clear()

    def abort(self, problem: Exception) -> None:
        """After a fault of the server itself: tell all clients, and touch nothing else."""
        self._stopped = True
        for job in self.jobs:
            job.send(error_of(problem))

    def _leave(self, job: Job) -> None:
        if job in self._running:
            self._running.remove(job)
        job.drop()

    # ---------------------------------------------------------------- the next slice

    def next_slice(self) -> Slice | None:
        """The next slice; None if no job can go on."""
        return self._timer.choose(self._running)

    # ---------------------------------------------------------------- admission

    def admit(self) -> None:
        """Admit waiting jobs, in order, while there is memory for their pots."""
        while self._waiting and not self._disk_busy:
            job = self._waiting[0]
            try:
                admitted = self._admit(job)
            except Exception as problem:
                self._waiting.popleft()
                self.fail(job, problem)
                continue
            if not admitted:
                return
            self._waiting.popleft()
            self._running.append(job)
            self.metrics.cached.inc(job.tokens_cached)
            self._timer.admitted(job)
            self.metrics.queue_s.observe(job.queue_s())

    def _admit(self, job: Job) -> bool:
        """Give a job its session. Returns False if it must wait for a place or for the disk."""
        source = job.find(self.store)
        if isinstance(source, Path):
            if self._make_room():
                self._fetch(job, source)
            return False
        if source is not None and source.name is None and self._no_room_for_copy(source):
            self.store.remove(source)  # the job takes the pot itself
            job.start(source.session, source, self.store)
            return True
        if not self._make_room(source):
            return False
        if source is None:
            session = self._new_session(job)
        else:
            self.store.touch(source)
            session = source.session.fork()
        job.start(session, source, self.store)
        return True

    def _no_room_for_copy(self, source: StoredPot) -> bool:
        """Whether there is no place for a copy of this pot, and there will be none."""
        return self.full and not self._running and self.store.victim(exclude=source) is None

    def _make_room(self, source: StoredPot | None = None) -> bool:
        """Whether there is a place. If not, a pot is removed, which may need the disk first."""
        while self.full:
            victim = self.store.victim(exclude=source)
            if victim is None:
                if not self._running:
                    raise self._no_room()
                return False
            path = self.store.file_for(victim)
            if path is not None:
                save = functools.partial(self.files.save, victim, path)
                self._wait_for_disk(
                    self.files.disk.do, save, functools.partial(self._written, victim, path)
                )
                return False
            self.store.remove(victim)
        return True

    def _no_room(self) -> APIError:
        """Why no pot can leave memory: the disk fails, or all pots have names."""
        for pot in self.store.pots:
            cause = None if pot.saved else disk_trouble(pot.problem)
            if cause is not None:
                return of_disk(cause)
        return APIError(
            503,
            "all places are taken by named pots: "
            "delete one, or give the server more --max-sessions",
            code="no_room",
        )

    def _written(self, victim: StoredPot, path: Path, future: Future[None]) -> None:
        """After a write: the pot leaves memory. A named pot stays if the write failed."""
        try:
            future.result()
            self.store.mark_written(victim, path)
        except Exception as problem:
            self.files.eviction_failed(victim, problem)
        if victim.saved or victim.name is None:
            self.store.remove(victim)

    # ---------------------------------------------------------------- loads

    def _wait_for_disk(
        self,
        run: Callable[[Callable[[], Any], Callable[[Future[Any]], None]], object],
        act: Callable[[], Any],
        then: Callable[[Future[Any]], None],
    ) -> None:
        """Have the disk's thread do something. Nobody is admitted until `then` has run."""

        def done(future: Future[Any]) -> None:
            self._disk_busy = False
            then(future)

        run(act, done)
        self._disk_busy = True

    def _fetch(self, job: Job, path: Path) -> None:
        """Load a pot. Admission goes on when it has arrived."""
        load = self.store.begin_load(self.store.name_of(path))
        self._wait_for_disk(
            self.files.disk.read,
            functools.partial(self.files.load, path),
            functools.partial(self._arrived, job, path, load),
        )

    def _arrived(self, job: Job, path: Path, load: PendingLoad, future: Future[StoredPot]) -> None:
        self.store.end_load(load)
        try:
            pot = future.result()
            if not load.cancelled:
                self.store.add(pot)
        except Exception as problem:
            with working_for(job.record):
                failure = self.files.load_failed(path, problem, job.skipped_files)
            if failure is not None and job in self._waiting:
                self._waiting.remove(job)
                self.fail(job, failure, from_client=False)
