"""One request's work for the engine, in slices."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from infinipot.config import PotConfig
from infinipot.engine.generation import Generation
from infinipot.engine.passes import Passes
from infinipot.model.runner import ModelRunner
from infinipot.server.events import Send
from infinipot.server.pot_store import PotStore
from infinipot.server.request_record import current_record
from infinipot.server.stored_pot import StoredPot
from infinipot.session import Session

UNBOUNDED = 1 << 62
"""Remaining tokens of a text whose end is not known."""


class Job:
    """Reads ids into a session of its own, slice by slice."""

    runner: ModelRunner | None = None
    """The model that reads for this job; None: the engine's."""
    answering = False
    """Whether it waits for its next token."""
    asks = False
    """Whether a question follows the text."""
    ended = False
    generation: Generation | None = None
    """The answer, once it has begun."""
    stalled: Callable[[], bool] = staticmethod(lambda: False)
    """Whether the client fetches the answer so slowly that it must pause."""

    def __init__(
        self, config: PotConfig, send: Send, *, system: str | None, templated: bool
    ) -> None:
        self.config = config
        self.send = send
        self.system = system
        self.templated = templated
        self.session: Session | None = None
        """None until the scheduler admits the job."""
        self.pending: deque[list[int]] = deque()
        """Ids to read."""
        self.question: str | list[int] | None = None
        """The catalyst."""
        self.record = current_record()
        """The request that it belongs to."""
        if self.record is not None:
            self.record.jobs.append(self)
        self.finish_reason: str | None = None
        """Why it ended; None before its end, and after a failure."""
        self.submitted_s = 0.0
        """When it came into the queue; 0 before."""
        self.admitted_s = 0.0
        """When it got its place."""
        self.last_slice_s = 0.0
        """When it last read, or was admitted."""
        self.tokens_read = 0
        self.tokens_generated = 0
        self.last_token_s = 0.0
        """When its newest token came, of time.perf_counter; 0 before the first."""
        self.skipped_files: set[Path] = set()
        """Files that could not be read just now. This job goes on without them."""

    @property
    def own_session(self) -> Session:
        assert self.session is not None
        return self.session

    @property
    def tokens_cached(self) -> int:
        """Tokens before the answer that its pot had read when the job began."""
        return 0

    @property
    def prompt_tokens(self) -> int:
        """Tokens before the answer, those of the pot included."""
        return self.tokens_cached + self.tokens_read

    def queue_s(self) -> float:
        """Seconds in the queue so far."""
        if not self.submitted_s:
            return 0.0
        return (self.admitted_s or time.perf_counter()) - self.submitted_s

    @property
    def readable(self) -> bool:
        """Whether a reading slice has something to do."""
        return bool(self.pending)

    @property
    def distils(self) -> bool:
        """Whether its next slice is a distillation, and reads nothing."""
        return self.session is not None and self.session.distillation_due

    @property
    def remaining_tokens(self) -> int:
        """Tokens to read until the reading ends."""
        return sum(map(len, self.pending))

    def find(self, store: PotStore) -> StoredPot | Path | None:
        """The pot to continue, or its file; None: an empty pot. Raises APIError."""
        return None

    def start(self, session: Session, source: StoredPot | None, store: PotStore) -> None:
        """Begin in this session, whose pot came from `source`."""
        self.session = session

    def passes(self, max_tokens: int) -> Passes[None]:
        """Read a slice, or distil."""
        ids = self.pending.popleft() if self.pending else []
        more = bool(self.pending) or self.asks
        count = yield from self.own_session.part_passes(ids, self.question, max_tokens, more)
        if count < len(ids):
            self.pending.appendleft(ids[count:])
        self.tokens_read += count

    def take(self, token: int | None) -> None:
        """Take the answer's next token; None: the answer has ended."""
        raise AssertionError(f"{type(self).__name__} has no answer")

    def keep(self, store: PotStore) -> None:
        """Store the pot, if it should stay. Called when the job is done."""

    def end_generation(self) -> None:
        """End the answer, complete or not."""
        generation = self.generation
        self.generation = None
        if generation is not None:
            generation.end()

    def drop(self) -> None:
        """Let go of the session, and keep nothing."""
        self.end_generation()
        self.session = None
