"""Named pots: filled once, asked often, saved, restored and deleted."""

from __future__ import annotations

import functools
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from infinipot.config import PotConfig
from infinipot.pot_file import PotFileError
from infinipot.server.disk import ready
from infinipot.server.errors import APIError
from infinipot.server.jobs.fill import FillJob, Watcher, view
from infinipot.server.pot_store import PendingLoad
from infinipot.server.scheduler import Scheduler
from infinipot.server.stored_pot import (
    StoredPot,
    content_of,
    header_of,
    stamp_of,
    unknown_pot,
)
from infinipot.server.text_prompts import PotContext


class NamedPots:
    """All methods run in the engine's thread."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.files = scheduler.files
        self.store = scheduler.store

    # ---------------------------------------------------------------- filling

    def check(self, name: str, replace: bool) -> None:
        """Raise APIError if a pot could not be filled now."""
        self._check_name(name, replace)
        self.scheduler.check()

    def _check_name(self, name: str, replace: bool) -> None:
        """Refuse a name in use, and a pot that would leave no place for questions about it."""
        if self.scheduler.fills.get(name) is not None or (self.store.exists(name) and not replace):
            raise APIError(
                409,
                f"there is a pot {name!r} already: delete it, choose another name, or say replace",
                code="pot_exists",
                param="name",
            )
        sessions = self.scheduler.limits.sessions
        names = {pot.name for pot in self.store.pots if self.store.must_stay(pot)}
        names |= {other for other, job in self.scheduler.fills.items() if not job.expendable}
        if self.store.folder is None and len(names - {name}) >= sessions - 1:
            raise APIError(
                409,
                f"{len(names)} named pots fill the memory (--max-sessions {sessions}): "
                "delete one, or start the server with --pot-dir",
                code="no_room",
            )

    def fill(self, job: FillJob, replace: bool) -> None:
        """Begin to read a text into a named pot."""
        self._check_name(job.name, replace)
        self.scheduler.submit(job)

    def watch(self, name: str, watcher: Watcher) -> dict[str, Any]:
        """Call a function with the pot's state while it is being filled. Returns the state now."""
        about = self.about(name, places=True)
        job = self.scheduler.fills.get(name)
        if job is not None:
            job.watchers.append(watcher)
        return about

    def unwatch(self, name: str, watcher: Watcher) -> None:
        job = self.scheduler.fills.get(name)
        if job is not None and watcher in job.watchers:
            job.watchers.remove(watcher)

    def name(self, name: str, label: str, replace: bool, salt: str = "") -> dict[str, Any]:
        """Give a name to a copy of the newest conversation with this label."""
        self._check_name(name, replace)
        pot = self.store.labelled(label, salt)
        if pot is None:
            raise APIError(
                404,
                f"there is no conversation with session {label!r} and this cache_salt in memory",
                code="session_not_found",
                param="session",
            )
        if self.scheduler.full and self.store.victim(exclude=pot) is None:
            message = "there is no place for another pot now: try again later"
            raise APIError(503, message, code="no_room")
        content = content_of(pot.session)
        self.store.take_name(
            StoredPot(pot.session.fork(), (0, content), pot.context, name=name, content=content)
        )
        return self.about(name)

    # ---------------------------------------------------------------- descriptions

    def list(self) -> dict[str, Any]:
        descriptions = map(
            self._about_or_none, sorted({*self.store.names(), *self.scheduler.fills})
        )
        return {"object": "list", "data": [about for about in descriptions if about is not None]}

    def _about_or_none(self, name: str) -> dict[str, Any] | None:
        """A named pot's description; None if it has gone meanwhile."""
        try:
            return self.about(name)
        except APIError:
            return None

    def about(self, name: str, places: bool = False) -> dict[str, Any]:
        """A named pot's description. places: with the kept positions, if it is in memory."""
        job = self.scheduler.fills.get(name)
        if job is not None:
            if job.session is None:
                return {"name": name, "object": "pot", "state": "waiting", "tokens_read": 0}
            return view(job.session, name, "reading", places)
        pot = self.store.named(name)
        if pot is not None:
            return {**view(pot.session, name, "ready", places), "saved": pot.saved}
        path = self._existing_file(name)
        try:
            size = path.stat().st_size
        except FileNotFoundError:  # another server has deleted it
            raise unknown_pot(name) from None
        return {
            "name": name,
            "object": "pot",
            "state": "on disk",
            "file_bytes": size,
            "saved": True,
        }

    def context(self, name: str) -> tuple[PotContext, PotConfig]:
        """A named pot's context and options."""
        pot = self.store.named(name)
        if pot is not None:
            return pot.context, pot.session.config
        path = self._existing_file(name)
        try:
            return header_of(path, self.files.loader.base)
        except PotFileError as problem:
            raise self.files.error_of(problem) from None

    # ---------------------------------------------------------------- files

    def written(self, name: str) -> Future[None]:
        """Done when a pot that has taken its name is on disk, if it must be there at once."""
        pot = self.store.named(name)
        if pot is None or pot.writing is None:
            return ready(None)
        return pot.writing

    def save(self, name: str) -> Future[dict[str, Any]]:
        """Write a named pot to the folder. It also stays in memory."""
        pot = self.store.named(name)
        path = self._path(name)
        if pot is None and self.store.file(name) is None:
            raise unknown_pot(name)

        def write() -> int:
            if pot is not None:
                self.files.save(pot, path)
                pot.stamp = stamp_of(path)
            try:
                return path.stat().st_size
            except FileNotFoundError:  # deleted meanwhile
                raise unknown_pot(name) from None

        def done(future: Future[int]) -> dict[str, Any]:
            try:
                size = future.result()
            except Exception as problem:
                raise self.files.error_of(problem) from None
            if pot is not None:
                self.store.mark_written(pot, path)
            return {"name": name, "object": "pot", "state": "saved", "file_bytes": size}

        return self.files.disk.do(write, done)

    def restore(self, name: str) -> Future[dict[str, Any]]:
        """Load the saved pot of this name. If the file cannot be used, the pot in memory stays."""
        path = self._path(name)
        if self.store.file(name) is None:
            raise unknown_pot(name)
        load = self.store.begin_load(name)
        return self.files.disk.read(
            functools.partial(self.files.load, path),
            functools.partial(self._arrived, name, load),
        )

    def _arrived(self, name: str, load: PendingLoad, future: Future[StoredPot]) -> dict[str, Any]:
        self.store.end_load(load)
        try:
            pot = future.result()
        except Exception as problem:
            raise self.files.error_of(problem) from None
        if load.cancelled:
            raise APIError(
                409,
                f"the pot {name!r} was deleted or replaced while it was being brought back, "
                "and that holds",
                code="pot_changed",
                param="name",
            )
        self.store.remove_name(name)
        if not self.scheduler.full:
            self.store.add(pot)
        return self.about(name)

    def delete(self, name: str) -> Future[dict[str, Any]]:
        """Delete a pot and its file, also if it is being written or loaded."""
        if self.scheduler.fills.get(name) is not None:
            raise APIError(
                409,
                f"the pot {name!r} is being filled: leave that request first",
                code="pot_busy",
                param="name",
            )
        if not self.store.exists(name):
            raise unknown_pot(name)
        self.store.invalidate(name)
        if self.store.folder is None:
            return ready({"name": name, "object": "pot", "deleted": True})
        return self.files.erase(name)

    def _existing_file(self, name: str) -> Path:
        path = self.store.file(name)
        if path is None:
            raise unknown_pot(name)
        return path

    def _path(self, name: str) -> Path:
        path = self.store.path(name)
        if path is None:
            message = "this server keeps no files: start it with --pot-dir FOLDER"
            raise APIError(409, message, code="no_pot_dir")
        return path
