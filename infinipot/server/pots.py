"""Named pots: filled once, asked often, saved and brought back. All methods run in the engine's thread."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from infinipot.server.engine import Engine
from infinipot.server.filling import Filling, view
from infinipot.server.refusal import Refusal
from infinipot.server.shelf import Held, content_of, header_of, opened, stamp_of, unknown
from infinipot.server.words import Behind


class Pots:
    def __init__(self, engine: Engine) -> None:
        self.engine, self.shelf = engine, engine.seats.shelf
        self.filling: dict[str, Filling] = {}

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

    def name(self, name: str, label: str, replace: bool) -> dict[str, Any]:
        """Give the newest conversation with this label a name, as it is now."""
        self._free(name, replace)
        held = self.shelf.labelled(label)
        if held is None:
            raise Refusal(404, f"there is no conversation with session {label!r} in memory", code="session_not_found", param="session")
        if self.engine.seats.full and self.shelf.victim(besides=held) is None:
            raise Refusal(503, "there is no place for another pot now: try again later", code="no_room")
        content = content_of(held.session)
        self.shelf.delete(name, missing_ok=True)
        self.shelf.put(Held(held.session.fork(), (0, content), held.behind, name=name, content=content))
        return self.about(name)

    def list(self) -> dict[str, Any]:
        names = sorted({*self.shelf.names(), *(name for name in list(self.filling) if self._being_filled(name))})
        return {"object": "list", "data": [self.about(name) for name in names]}

    def about(self, name: str, places: bool = False) -> dict[str, Any]:
        """What is told of a named pot. places: with what it keeps, if it is in memory."""
        work = self._being_filled(name)
        if work is not None:
            if work.session is None:
                return {"name": name, "object": "pot", "state": "waiting", "tokens_read": 0}
            return view(work.session, name, "reading", places)
        held, path = self.shelf.named(name), self.shelf.path(name)
        if held is not None:
            return {**view(held.session, name, "ready", places), "saved": held.saved}
        if path is None or not path.is_file():
            raise unknown(name)
        return {"name": name, "object": "pot", "state": "on disk", "file_bytes": path.stat().st_size, "saved": True}

    def behind(self, name: str) -> tuple[Behind, Any]:
        """What a named pot has read, and the options it was filled with."""
        held, path = self.shelf.named(name), self.shelf.path(name)
        if held is not None:
            return held.behind, held.session.config
        if path is None or not path.is_file():
            raise unknown(name)
        return header_of(path, self.engine.settings.config)

    def watch(self, name: str, tell: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        """Be told what the pot keeps while it is being filled. Returns how it is now."""
        about = self.about(name, places=True)
        if (work := self._being_filled(name)) is not None:
            work.watchers.append(tell)
        return about

    def unwatch(self, name: str, tell: Callable[[dict[str, Any]], None]) -> None:
        if (work := self._being_filled(name)) is not None and tell in work.watchers:
            work.watchers.remove(tell)

    def save(self, name: str) -> Future[dict[str, Any]]:
        """Write a named pot to the folder; it stays in memory, too."""
        held, path = self.shelf.named(name), self._path(name)
        if held is None and not path.is_file():
            raise unknown(name)

        def write() -> dict[str, Any]:
            if held is not None:
                held.session.save(path, origin=self.engine.seats.origin)
                held.stamp, held.saved = stamp_of(path), True
            return {"name": name, "object": "pot", "state": "saved", "file_bytes": path.stat().st_size}

        return self.engine.disk.submit(write)

    def restore(self, name: str) -> Future[dict[str, Any]]:
        """Go back to what was saved under this name. A file that cannot be used is refused, and what is in memory stays."""
        path = self._path(name)
        if not path.is_file():
            raise unknown(name)

        def bring() -> dict[str, Any]:
            seats, base = self.engine.seats, self.engine.settings.config
            held = opened(path, name, self.engine.host, seats.tokenizer, base, seats.origin)
            return self.engine.call(lambda: self._put(held)).result()

        return self.engine.disk.submit(bring)

    def _put(self, held: Held) -> dict[str, Any]:
        assert held.name is not None
        self.shelf.held = [other for other in self.shelf.held if other.name != held.name]
        if not self.engine.seats.full:
            self.shelf.put(held)
        return self.about(held.name)

    def delete(self, name: str) -> dict[str, Any]:
        if self._being_filled(name) is not None:
            raise Refusal(409, f"the pot {name!r} is being filled: leave that request first", code="pot_busy", param="name")
        self.shelf.delete(name)
        return {"name": name, "object": "pot", "deleted": True}

    def _path(self, name: str) -> Any:
        path = self.shelf.path(name)
        if path is None:
            raise Refusal(409, "this server keeps no files: start it with --pot-dir FOLDER", code="no_pot_dir")
        return path
