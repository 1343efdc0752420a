"""Which request gets a place in memory, with which pot, and what must leave for it."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedTokenizerBase

from infinipot.machine import out_of_memory
from infinipot.pot_file import DamagedPotError, PotFileError, origin, settle
from infinipot.server.errors import Refusal, disk_trouble, of_disk, refusal_of
from infinipot.server.jobs.base import Work
from infinipot.server.pot_store import Held, Shelf, opened, stamp_of
from infinipot.session import Session

if TYPE_CHECKING:
    from infinipot.server.engine import Engine

log = logging.getLogger("infinipot")

RETRY_S = 5.0
"""How long a pot that could not be written is not tried again."""


class Seats:
    """Admits requests, in order, while there is memory for their pots. All methods run in the engine's thread."""

    def __init__(self, engine: Engine, tokenizer: PreTrainedTokenizerBase) -> None:
        self.engine, self.tokenizer = engine, tokenizer
        self.shelf = Shelf(engine.settings.pot_dir, engine.settings.pot_files, engine.settings.shared)
        self.shelf.secure = self.secure
        self.origin = origin(engine.host.model, tokenizer)  # once: the disk's thread must not look at the model while it reads
        self.busy = False
        """Whether the disk is being waited for."""

    def admit(self) -> None:
        waiting = self.engine.waiting
        while waiting and not self.busy:
            work = waiting[0]
            try:
                seated = self._seat(work)
            except Exception as problem:
                waiting.popleft()
                self.engine.fail(work, problem)
                continue
            if not seated:
                return
            waiting.popleft()
            self.engine.running.append(work)

    def _seat(self, work: Work) -> bool:
        """Give a work its session, if there is room; else see to it that there will be."""
        source = work.find(self.shelf)
        if isinstance(source, Path):
            if self._room():
                self._fetch(work, source)
            return False
        alone = self.full and not self.engine.running and self.shelf.victim(besides=source) is None
        if source is not None and source.name is None and alone:
            self.shelf.held.remove(source)  # there is no place for a copy, and there will be none
            work.start(source.session, source, self.shelf)
            return True
        if not self._room(source):
            return False
        if source is None:
            session = Session(work.host or self.engine.host, self.tokenizer, work.config, system=work.system, template=work.templated)
        else:
            self.shelf.touch(source)
            session = source.session.fork()
        work.start(session, source, self.shelf)
        return True

    # ---------------------------------------------------------------- disk

    def _on_disk(self, act: Callable[[], Any], then: Callable[[Future[Any]], None]) -> None:
        """Have the disk's thread do something, and the engine's what follows. Nobody is admitted meanwhile."""

        def done(future: Future[Any]) -> None:
            self.busy = False
            then(future)

        self.engine.disk.do(act, done)
        self.busy = True

    def _fetch(self, work: Work, path: Path) -> None:
        """Bring a pot back from disk; admission goes on when it is there."""
        coming = self.shelf.expect(self.shelf.name_of(path))

        def arrived(future: Future[Held]) -> None:
            self.shelf.coming.remove(coming)
            try:
                held = future.result()
                if not coming.overtaken:
                    self.shelf.put(held)
            except Exception as problem:
                self._not_fetched(work, path, problem)

        self._on_disk(functools.partial(self.engine.disk.unless_ending, functools.partial(self.open, path)), arrived)

    def open(self, path: Path) -> Held:
        """A pot from its file; in the disk's thread."""
        base = self.engine.settings.config
        return opened(path, self.shelf.name_of(path), self.engine.host, self.tokenizer, base, self.origin)

    def _not_fetched(self, work: Work, path: Path, problem: Exception) -> None:
        """A pot did not come back. Whoever asked for a named one is told; a conversation is read anew. Its file stays,
        for whom it may be of use; if its content is damaged, under another name."""
        if isinstance(problem, PotFileError) and not path.exists():
            self.shelf.forget(path)  # another server has deleted it: whoever asked looks again
            return
        named = self.shelf.name_of(path) is not None
        if named or not isinstance(problem, PotFileError):
            if not named and not isinstance(problem, Refusal) and not out_of_memory(problem):
                self.shelf.passed.add(path)
            self._refuse(work, problem)
        elif disk_trouble(problem) is not None:
            self.trouble(problem)
            work.passed.add(path)  # another request may find it readable again
        elif isinstance(problem, DamagedPotError):
            self.trouble(problem)
            self.shelf.set_aside(path)
        else:
            log.error("%s. The file is left as it is", problem)
            self.shelf.passed.add(path)

    def _refuse(self, work: Work, problem: Exception) -> None:
        """Tell whoever waits for a pot why it does not come."""
        if isinstance(problem, PotFileError) and disk_trouble(problem) is None:
            self.trouble(problem)
            code = "pot_damaged" if isinstance(problem, DamagedPotError) else "pot_unusable"
            problem = Refusal(409, str(problem), code=code, param="pot")
        elif disk_trouble(problem) is not None:
            self.engine.metrics.disk_failures.inc()
        if work in self.engine.waiting:
            self.engine.waiting.remove(work)
            self.engine.fail(work, problem, given=False)

    @property
    def full(self) -> bool:
        return len(self.shelf.held) + len(self.engine.running) >= self.engine.settings.max_sessions

    def _room(self, source: Held | None = None) -> bool:
        """Whether there is a place; if not, a pot is sent away, which may take until later."""
        while self.full:
            victim = self.shelf.victim(besides=source)
            if victim is None:
                if not self.engine.running:
                    raise self._no_room()
                return False
            path = self.shelf.place(victim)
            if path is not None:
                self._on_disk(functools.partial(victim.session.save, path, origin=self.origin), functools.partial(self._gone, victim, path))
                return False
            self.shelf.held.remove(victim)
        return True

    def _no_room(self) -> Refusal:
        """Why no pot can leave memory: the disk does not take them, or there is none."""
        for held in self.shelf.held:
            cause = None if held.saved else disk_trouble(held.trouble)
            if cause is not None:
                return of_disk(cause)
        return Refusal(503, "all places are taken by named pots: delete one, or give the server more --max-sessions", code="no_room")

    def _gone(self, victim: Held, path: Path, future: Future[None]) -> None:
        """A pot was written, or could not be: a conversation is let go all the same, a named pot is not."""
        try:
            future.result()
            self.shelf.written(victim, path)
        except Exception as problem:
            self._unwritten(victim, problem)
        if victim in self.shelf.held and (victim.saved or victim.name is None):
            self.shelf.held.remove(victim)

    def _unwritten(self, held: Held, problem: Exception) -> None:
        self.trouble(problem)
        held.trouble, held.retry_at = problem, time.monotonic() + RETRY_S

    def trouble(self, problem: Exception) -> None:
        """Something about a file went wrong: that is logged and counted."""
        self.engine.metrics.disk_failures.inc()
        log.error("%s", problem, exc_info=None if isinstance(problem, (PotFileError, OSError)) else problem)

    def told(self, problem: Exception) -> Refusal:
        """The same, and what whoever asked for it is told."""
        if not isinstance(problem, Refusal):
            self.trouble(problem)
        return refusal_of(problem)

    # ---------------------------------------------------------------- names

    def secure(self, held: Held) -> None:
        """A pot has taken a name. If there is a file of this name, or others look for one, it becomes this pot's, and
        holds what it held until then. An expendable pot has none."""
        assert held.name is not None
        path, name = self.shelf.path(held.name), held.name
        if path is None:
            return
        if held.expendable:
            self.erase(name)
            return

        def write() -> tuple[int, int] | None:
            if not self.shelf.shared and not path.is_file():
                return None
            held.session.save(path, origin=self.origin)
            return stamp_of(path)

        def done(future: Future[tuple[int, int] | None]) -> None:
            try:
                stamp = future.result()
            except Exception as problem:
                self._unwritten(held, problem)
                told = refusal_of(problem)
                more = f"the pot {name!r} is in memory, but its file, if any, still holds what was there before"
                raise Refusal(told.status, f"{told.message}; {more}", code=told.code, param=told.param) from None
            if stamp is not None:
                held.stamp, held.saved = stamp, True

        held.writing = self.engine.disk.do(write, done)

    def erase(self, name: str) -> Future[dict[str, Any]]:
        """Delete the file of a name. For everybody it is gone from now on; what is being written there goes, too."""
        path = self.shelf.path(name)
        assert path is not None
        self.shelf.doomed[name] += 1

        def unlink() -> None:
            if path.is_file():
                path.unlink(missing_ok=True)
                settle(path.parent)

        def done(future: Future[None]) -> dict[str, Any]:
            self.shelf.doomed[name] -= 1
            self.shelf.doomed = +self.shelf.doomed  # without those that are zero
            try:
                future.result()
            except Exception as problem:
                raise self.told(problem) from None
            return {"name": name, "object": "pot", "deleted": True}

        return self.engine.disk.do(unlink, done)

    def write_all(self) -> None:
        """Before the server ends: what would be missed is written."""
        for held in list(self.shelf.held):
            path = self.shelf.place(held)
            if path is None:
                continue
            try:
                self.engine.disk.now(functools.partial(held.session.save, path, origin=self.origin))
                self.shelf.written(held, path)
            except Exception as problem:
                self.trouble(problem)
