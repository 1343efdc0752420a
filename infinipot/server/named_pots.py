"""Named pots: filled once, asked often, saved and brought back. All methods run in the engine's thread."""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from infinipot.pot_file import PotFileError
from infinipot.server.disk import ready
from infinipot.server.engine import Engine
from infinipot.server.errors import Refusal
from infinipot.server.jobs.fill import Filling, view
from infinipot.server.pot_store import Held, content_of, header_of, stamp_of, unknown
from infinipot.server.prompts import Behind


class Pots:
    def __init__(self, engine: Engine) -> None:
        self.engine, self.shelf = engine, engine.seats.shelf
        self.filling: dict[str, Filling] = {}

    def check(self, name: str, replace: bool) -> None:
        """Refuse what could not be filled now, before any of it is received."""
        self._free(name, replace)
        self.engine.check()

    def _free(self, name: str, replace: bool) -> None:
        """Refuse a name that is in use, and a pot that would leave no place for questions about it."""
        if self._being_filled(name) is not None or (self.shelf.exists(name) and not replace):
            raise Refusal(
                409, f"there is a pot {name!r} already: delete it, choose another name, or say replace", code="pot_exists", param="name"
            )
        there = {held.name for held in self.shelf.held if self.shelf.stays(held)}
        there |= {name for name, work in self.filling.items() if not work.expendable}
        if self.shelf.folder is None and len(there - {name}) >= self.engine.settings.max_sessions - 1:
            raise Refusal(
                409,
                f"{len(there)} named pots fill the memory (--max-sessions {self.engine.settings.max_sessions}): "
                "delete one, or start the server with --pot-dir",
                code="no_room",
            )

    def _being_filled(self, name: str) -> Filling | None:
        """The reading into this name that is going on."""
        alive = (*self.engine.running, *self.engine.waiting)
        self.filling = {key: work for key, work in self.filling.items() if work in alive}
        return self.filling.get(name)

    def fill(self, work: Filling, replace: bool) -> None:
        """Begin to read a text into a named pot."""
        self._free(work.name, replace)
        self.engine.submit(work)
        self.filling[work.name] = work

    def name(self, name: str, label: str, replace: bool, salt: str = "") -> dict[str, Any]:
        """Give the newest conversation with this label a name, as it is now."""
        self._free(name, replace)
        held = self.shelf.labelled(label, salt)
        if held is None:
            raise Refusal(
                404,
                f"there is no conversation with session {label!r} and this cache_salt in memory",
                code="session_not_found",
                param="session",
            )
        if self.engine.seats.full and self.shelf.victim(besides=held) is None:
            raise Refusal(503, "there is no place for another pot now: try again later", code="no_room")
        content = content_of(held.session)
        self.shelf.take_name(Held(held.session.fork(), (0, content), held.behind, name=name, content=content))
        return self.about(name)

    def list(self) -> dict[str, Any]:
        names = sorted({*self.shelf.names(), *(name for name in list(self.filling) if self._being_filled(name))})
        return {"object": "list", "data": [about for name in names if (about := self._there(name)) is not None]}

    def _there(self, name: str) -> dict[str, Any] | None:
        """What is told of a named pot; None if it has gone meanwhile."""
        try:
            return self.about(name)
        except Refusal:
            return None

    def about(self, name: str, places: bool = False) -> dict[str, Any]:
        """What is told of a named pot. places: with what it keeps, if it is in memory."""
        work = self._being_filled(name)
        if work is not None:
            if work.session is None:
                return {"name": name, "object": "pot", "state": "waiting", "tokens_read": 0}
            return view(work.session, name, "reading", places)
        held, path = self.shelf.named(name), self.shelf.file(name)
        if held is not None:
            return {**view(held.session, name, "ready", places), "saved": held.saved}
        if path is None:
            raise unknown(name)
        try:
            size = path.stat().st_size
        except FileNotFoundError:  # another server has deleted it
            raise unknown(name) from None
        return {"name": name, "object": "pot", "state": "on disk", "file_bytes": size, "saved": True}

    def behind(self, name: str) -> tuple[Behind, Any]:
        """What a named pot has read, and the options it was filled with."""
        held, path = self.shelf.named(name), self.shelf.file(name)
        if held is not None:
            return held.behind, held.session.config
        if path is None:
            raise unknown(name)
        try:
            return header_of(path, self.engine.settings.config)
        except PotFileError as problem:
            raise self.engine.seats.told(problem) from None

    def watch(self, name: str, tell: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        """Be told what the pot keeps while it is being filled. Returns how it is now."""
        about = self.about(name, places=True)
        if (work := self._being_filled(name)) is not None:
            work.watchers.append(tell)
        return about

    def unwatch(self, name: str, tell: Callable[[dict[str, Any]], None]) -> None:
        if (work := self._being_filled(name)) is not None and tell in work.watchers:
            work.watchers.remove(tell)

    def settled(self, name: str) -> Future[None]:
        """Done when a pot that has just taken its name is on disk, if it is to be there at once."""
        held = self.shelf.named(name)
        return ready(None) if held is None or held.writing is None else held.writing

    def save(self, name: str) -> Future[dict[str, Any]]:
        """Write a named pot to the folder; it stays in memory, too."""
        held, path = self.shelf.named(name), self._path(name)
        if held is None and self.shelf.file(name) is None:
            raise unknown(name)

        def write() -> int:
            if held is not None:
                held.session.save(path, origin=self.engine.seats.origin)
                held.stamp = stamp_of(path)
            return path.stat().st_size

        def done(future: Future[int]) -> dict[str, Any]:
            try:
                size = future.result()
            except Exception as problem:
                raise self.engine.seats.told(problem) from None
            if held is not None:
                self.shelf.written(held, path)
            return {"name": name, "object": "pot", "state": "saved", "file_bytes": size}

        return self.engine.disk.do(write, done)

    def restore(self, name: str) -> Future[dict[str, Any]]:
        """Go back to what was saved under this name. A file that cannot be used is refused, and what is in memory stays."""
        path = self._path(name)
        if self.shelf.file(name) is None:
            raise unknown(name)
        coming = self.shelf.expect(name)

        def arrived(future: Future[Held]) -> dict[str, Any]:
            self.shelf.coming.remove(coming)
            try:
                held = future.result()
            except Exception as problem:
                raise self.engine.seats.told(problem) from None
            if coming.overtaken:
                raise Refusal(
                    409,
                    f"the pot {name!r} was deleted or replaced while it was being brought back, and that holds",
                    code="pot_changed",
                    param="name",
                )
            return self._put(held)

        return self.engine.disk.read(functools.partial(self.engine.seats.open, path), arrived)

    def _put(self, held: Held) -> dict[str, Any]:
        assert held.name is not None
        self.shelf.held = [other for other in self.shelf.held if other.name != held.name]
        if not self.engine.seats.full:
            self.shelf.put(held)
        return self.about(held.name)

    def delete(self, name: str) -> Future[dict[str, Any]]:
        """Forget a pot and delete its file. Whatever is being written or brought back under this name goes, too."""
        if self._being_filled(name) is not None:
            raise Refusal(409, f"the pot {name!r} is being filled: leave that request first", code="pot_busy", param="name")
        if not self.shelf.exists(name):
            raise unknown(name)
        self.shelf.overtake(name)
        if self.shelf.folder is None:
            return ready({"name": name, "object": "pot", "deleted": True})
        return self.engine.seats.erase(name)

    def _path(self, name: str) -> Any:
        path = self.shelf.path(name)
        if path is None:
            raise Refusal(409, "this server keeps no files: start it with --pot-dir FOLDER", code="no_pot_dir")
        return path
