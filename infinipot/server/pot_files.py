"""Loads, writes and deletes the files of pots, and reports what fails."""

from __future__ import annotations

import functools
import logging
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from infinipot.machine import out_of_memory
from infinipot.pot_file import DamagedPotError, PotFileError, settle
from infinipot.server.disk import Disk
from infinipot.server.errors import APIError, disk_trouble, error_of
from infinipot.server.metrics import Metrics
from infinipot.server.pot_folder import PotFolder
from infinipot.server.pot_store import PotStore
from infinipot.server.stored_pot import PotLoader, Stamp, StoredPot, stamp_of
from infinipot.server.throttled_log import ThrottledLog

log = logging.getLogger("infinipot")

RETRY_S = 5.0
"""How long a pot that could not be written is not tried again."""
UNWRITTEN = (
    "Until pots can be written, named ones stay in memory, and conversations without a place there "
    "are read again. More such failures are only counted (infinipot_disk_failures_total)"
)


class PotFiles:
    """The files behind a PotStore. All methods but `load` run in the engine's thread."""

    def __init__(self, store: PotStore, disk: Disk, loader: PotLoader, metrics: Metrics) -> None:
        self.store = store
        self.disk = disk
        self.loader = loader
        self.metrics = metrics
        self._seldom = ThrottledLog()
        store.on_take_name = self.update_file

    @property
    def _folder(self) -> PotFolder:
        assert self.store.folder is not None
        return self.store.folder

    def load(self, path: Path) -> StoredPot:
        """Load a pot. Runs in the disk's thread."""
        self._folder.check()
        return self.loader.load(path, self.store.name_of(path))

    def save(self, pot: StoredPot, path: Path) -> None:
        """Write a pot. Runs in the disk's thread."""
        self._folder.prepare(path)
        if path.is_symlink() and not path.exists():
            raise PotFileError(
                f"cannot save {path.name}: it is a link to a file that does not exist"
            )
        pot.session.save(path, origin=self.loader.origin)

    def update_file(self, pot: StoredPot) -> None:
        """Write a pot that has taken a name, if a file of this name exists or the folder is shared.

        The old file stays until the new one is complete. An expendable pot has no file.
        """
        assert pot.name is not None
        path = self.store.path(pot.name)
        if path is None:
            return
        if pot.expendable:
            self.erase(pot.name)
            return

        def write() -> Stamp | None:
            if not self.store.shared and not self.store.has(path):
                return None
            self.save(pot, path)
            return stamp_of(path)

        pot.writing = self.disk.do(write, functools.partial(self._updated, pot))

    def _updated(self, pot: StoredPot, future: Future[Stamp | None]) -> None:
        try:
            stamp = future.result()
        except Exception as problem:
            self.report(problem)
            postpone(pot, problem)
            error = error_of(problem)
            raise APIError(
                error.status,
                f"{error.message}; the pot {pot.name!r} is in memory, "
                "but its file, if any, still holds what was there before",
                code=error.code,
                param=error.param,
            ) from None
        if stamp is not None:
            pot.stamp = stamp
            pot.saved = True

    def erase(self, name: str) -> Future[dict[str, Any]]:
        """Delete the file of a name, after earlier writes to it. Requests stop seeing it at once."""
        path = self.store.path(name)
        assert path is not None
        self.store.begin_deletion(name)

        def unlink() -> None:
            self._folder.check()
            if not path.is_file():
                return
            try:
                path.unlink(missing_ok=True)
            except OSError as problem:
                raise PotFileError(f"cannot delete {path}: {problem.strerror}") from problem
            settle(path.parent)

        def done(future: Future[None]) -> dict[str, Any]:
            self.store.end_deletion(name)
            try:
                future.result()
            except Exception as problem:
                error = self.error_of(problem)
                raise APIError(
                    error.status,
                    f"{error.message}; the pot {name!r} is no longer in memory, "
                    "but its file, if any, stays",
                    code=error.code,
                    param=error.param,
                ) from None
            return {"name": name, "object": "pot", "deleted": True}

        return self.disk.do(unlink, done)

    def write_all(self) -> None:
        """Write all pots that should outlast the server. One line tells of all that failed."""
        failures = []
        for pot in self.store.pots:
            path = self.store.file_for(pot)
            if path is None:
                continue
            try:
                self.disk.now(functools.partial(self.save, pot, path))
                self.store.mark_written(pot, path)
            except (PotFileError, OSError) as problem:
                failures.append(problem)
            except Exception as problem:
                self.report(problem)
        if failures:
            self.metrics.disk_failures.inc(len(failures))
            log.error("pots not written at the end: %d. The first: %s", len(failures), failures[0])

    # ---------------------------------------------------------------- failures

    def load_failed(self, path: Path, problem: Exception, skipped: set[Path]) -> Exception | None:
        """The problem with which a job fails; None if it goes on without this file.

        A job with a named pot fails; a conversation is read anew. The file stays, under another
        name if its content is damaged. skipped: files that this job no longer tries.
        """
        if isinstance(problem, PotFileError) and not path.exists():
            self.store.forget(path)  # another server deleted it: the job looks again
            return None
        if self.store.name_of(path) is not None:
            return self._job_error(problem)
        if not isinstance(problem, PotFileError):
            if not isinstance(problem, APIError) and not out_of_memory(problem):
                self.store.mark_unusable(path)
            return self._job_error(problem)
        if disk_trouble(problem) is not None:
            self.report(problem)
            skipped.add(path)  # a later request may be able to read it
        elif isinstance(problem, DamagedPotError):
            self.report(problem)
            self.store.quarantine(path)
        else:
            log.error("%s. The file is left as it is", problem)
            self.store.mark_unusable(path)
        return None

    def _job_error(self, problem: Exception) -> Exception:
        """Count a problem, and make it an error for the client."""
        if disk_trouble(problem) is not None:
            self.metrics.disk_failures.inc()
            return problem
        if not isinstance(problem, PotFileError):
            return problem
        self.report(problem)
        code = "pot_damaged" if isinstance(problem, DamagedPotError) else "pot_unusable"
        return APIError(409, str(problem), code=code, param="pot")

    def eviction_failed(self, pot: StoredPot, problem: Exception) -> None:
        """A pot that had to leave memory could not be written. One line tells of many such pots."""
        cause = disk_trouble(problem)
        if cause is None:
            self.report(problem)
        else:
            self.metrics.disk_failures.inc()
            self._seldom.error(f"{problem}. {UNWRITTEN}", str(cause.strerror))
        postpone(pot, problem)

    def report(self, problem: Exception) -> None:
        """Log and count a problem with a file."""
        self.metrics.disk_failures.inc()
        expected = isinstance(problem, (PotFileError, OSError))
        log.error("%s", problem, exc_info=None if expected else problem)

    def error_of(self, problem: Exception) -> APIError:
        """Report a problem, and return the client's error."""
        if not isinstance(problem, APIError):
            self.report(problem)
        return error_of(problem)


def postpone(pot: StoredPot, problem: Exception) -> None:
    """After a failed write: the pot is not on disk, and is tried again after a while."""
    pot.saved = False
    pot.problem = problem
    pot.retry_at = time.monotonic() + RETRY_S
