"""What one request asks of the engine, in slices small enough that nobody waits long for the others."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path

from infinipot.config import PotConfig
from infinipot.engine.decode import Generation
from infinipot.model.runner import ModelRunner
from infinipot.server.events import Send
from infinipot.server.pot_store import Held, Shelf
from infinipot.session import Session


class Work:
    """Ids to be read into a session of its own, slice by slice. session: None until the engine has a place for it."""

    host: ModelRunner | None = None
    """Whoever reads for this work; None: the engine's own."""
    answering = False
    """Whether it waits for its next token."""
    ended = False
    turn: Generation | None = None
    """The answer, once it has begun."""

    unheard: Callable[[], bool] = staticmethod(lambda: False)
    """Whether so much of the answer has not been fetched that it must wait."""

    def __init__(self, config: PotConfig, send: Send, *, system: str | None, templated: bool) -> None:
        self.config, self.send, self.system, self.templated = config, send, system, templated
        self.session: Session | None = None
        self.pending: deque[list[int]] = deque()
        self.question: str | list[int] | None = None
        """What is distilled by."""
        self.served = 0.0
        """When it last had a slice."""
        self.tokens_read = self.tokens_said = 0
        self.passed: set[Path] = set()
        """Files that this work does without: they could not be read just now."""

    @property
    def own(self) -> Session:
        assert self.session is not None
        return self.session

    @property
    def readable(self) -> bool:
        """Whether there is something to do now, other than taking the next token."""
        return bool(self.pending)

    def find(self, shelf: Shelf) -> Held | Path | None:
        """The pot to go on from: on the shelf, or on disk. None: an empty one. Raises Refusal."""
        return None

    def start(self, session: Session, source: Held | None, shelf: Shelf) -> None:
        """Go on in this session, whose pot came from `source`."""
        self.session = session

    def read(self, most_tokens: int) -> None:
        """Read a slice."""
        ids = self.pending.popleft()
        if len(ids) > most_tokens:
            self.pending.appendleft(ids[most_tokens:])
        self.own.append(ids[:most_tokens], question=self.question)
        self.tokens_read += len(ids[:most_tokens])

    def take(self, token: int | None) -> None:
        """The answer's next token; None: it has ended."""
        raise AssertionError(f"{type(self).__name__} has no answer")

    def keep(self, shelf: Shelf) -> None:
        """Put on the shelf what is to stay, when all is done."""

    def end_turn(self) -> None:
        """End the answer, whatever has come of it."""
        turn, self.turn = self.turn, None
        if turn is not None:
            turn.end()

    def drop(self) -> None:
        """Let go of the session: nothing of this work stays."""
        self.end_turn()
        self.session = None
