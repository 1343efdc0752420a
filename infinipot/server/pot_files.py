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
from infinipot.server.pot_store import PotStore
from infinipot.server.stored_pot import PotLoader, Stamp, StoredPot, stamp_of

log = logging.getLogger("infinipot")

RETRY_S = 5.0
"""How long a pot that could not be written is not tried again."""


class PotFiles:
    """The files behind a PotStore. All methods but `load` run in the engine's thread."""

    def __init__(self, store: PotStore, disk: Disk, loader: PotLoader, metrics: Metrics) -> None:
        self.store = store
        self.disk = disk
        self.loader = loader
        self.metrics = metrics
        store.on_take_name = self.update_file

    def load(self, path: Path) -> StoredPot:
        """Load a pot. Runs in the disk's thread."""
        return self.loader.load(path, self.store.name_of(path))

    def save(self, pot: StoredPot, path: Path) -> None:
        """Write a pot. Runs in the disk's thread."""
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
            if not self.store.shared and not path.is_file():
                return None
            self.save(pot, path)
            return stamp_of(path)

        pot.writing = self.disk.do(write, functools.partial(self._updated, pot))

    def _updated(self, pot: StoredPot, future: Future[Stamp | None]) -> None:
        try:
            stamp = future.result()
        except Exception as problem:
            self.write_failed(pot, problem)
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
            if path.is_file():
                path.unlink(missing_ok=True)
                settle(path.parent)

        def done(future: Future[None]) -> dict[str, Any]:
            self.store.end_deletion(name)
            try:
                future.result()
            except Exception as problem:
                raise self.error_of(problem) from None
            return {"name": name, "object": "pot", "deleted": True}

        return self.disk.do(unlink, done)

    def write_all(self) -> None:
        """Write all pots that should outlast the server."""
        for pot in self.store.pots:
            path = self.store.file_for(pot)
            if path is None:
                continue
            try:
                self.disk.now(functools.partial(self.save, pot, path))
                self.store.mark_written(pot, path)
            except Exception as problem:
                self.report(problem)

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

    def write_failed(self, pot: StoredPot, problem: Exception) -> None:
        self.report(problem)
        pot.problem = problem
        pot.retry_at = time.monotonic() + RETRY_S

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
