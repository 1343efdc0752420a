"""Which request gets a place in memory, with which pot, and what must leave for it."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedTokenizerBase

from infinipot.pot_file import PotFileError, origin
from infinipot.server.refusal import Refusal
from infinipot.server.shelf import Held, Shelf, opened
from infinipot.server.work import Work
from infinipot.session import Session

if TYPE_CHECKING:
    from infinipot.server.engine import Engine

log = logging.getLogger("infinipot")


class Seats:
    """Admits requests, in order, while there is memory for their pots. All methods run in the engine's thread."""

    def __init__(self, engine: Engine, tokenizer: PreTrainedTokenizerBase) -> None:
        self.engine, self.tokenizer = engine, tokenizer
        self.shelf = Shelf(engine.settings.pot_dir, engine.settings.pot_files, engine.settings.shared)
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
        self.busy = True

        def done(future: Future[Any]) -> None:
            self.busy = False
            then(future)

        # the future comes as an argument: one that its own callback holds would keep the pot until the next garbage collection
        self.engine.disk.submit(act).add_done_callback(lambda future: self.engine.call(functools.partial(done, future)))

    def _fetch(self, work: Work, path: Path) -> None:
        """Bring a pot back from disk; admission goes on when it is there."""
        base = self.engine.settings.config

        def arrived(future: Future[Held]) -> None:
            try:
                self.shelf.put(future.result())
            except PotFileError as problem:
                self._trouble(problem)
                self.shelf.forget(path)
                if path.is_file() and work in self.engine.waiting:  # a named one, which somebody wants: they should know
                    self.engine.waiting.remove(work)
                    work.send(Refusal(409, str(problem), code="pot_damaged", param="pot"))

        self._on_disk(lambda: opened(path, self.shelf.name_of(path), self.engine.host, self.tokenizer, base, self.origin), arrived)

    @property
    def full(self) -> bool:
        return len(self.shelf.held) + len(self.engine.running) >= self.engine.settings.max_sessions

    def _room(self, source: Held | None = None) -> bool:
        """Whether there is a place; if not, a pot is sent away, which may take until later."""
        while self.full:
            victim = self.shelf.victim(besides=source)
            if victim is None:
                if not self.engine.running:
                    raise Refusal(503, "all places are taken by named pots: delete one, or give the server more --max-sessions", code="no_room")
                return False
            path = self.shelf.place(victim)
            if path is not None:
                self._on_disk(functools.partial(victim.session.save, path, origin=self.origin), functools.partial(self._gone, victim, path))
                return False
            self.shelf.held.remove(victim)
        return True

    def _gone(self, victim: Held, path: Path, future: Future[None]) -> None:
        """A pot was written, or could not be: a conversation is let go all the same, a named pot is not."""
        try:
            future.result()
            self.shelf.written(victim, path)
        except PotFileError as problem:
            self._trouble(problem)
            victim.stuck = True
        if victim in self.shelf.held and not (victim.stuck and victim.name is not None):
            self.shelf.held.remove(victim)

    def _trouble(self, problem: PotFileError) -> None:
        self.engine.metrics.disk_failures.inc()
        log.error("%s", problem)

    def write_all(self) -> None:
        """Before the server ends: what would be missed is written."""
        for held in list(self.shelf.held):
            path = self.shelf.place(held)
            if path is not None:
                self._gone(held, path, self.engine.disk.submit(held.session.save, path, origin=self.origin))
