"""Slices: how long the engine works for some jobs before it looks at the others again."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from infinipot.server.jobs.base import Job

ALONE_S = 0.8
"""Aim for a reading slice while no other job runs."""
SHARED_S = 0.25
"""Aim for a reading slice while other jobs run."""
LEAST_TOKENS = 64
"""Smaller slices would cost more than they help."""
STEP_TOKENS = 32
MAX_LEAD_S = 2.0
"""How much longer a long reading may wait than a short one."""
WEIGHT = 0.3
"""Share of the newest slice in the measured speed."""


@dataclass(frozen=True)
class Slice:
    """Either a reading, or one token for each of several answers."""

    reader: Job | None = None
    max_tokens: int = 0
    answers: Sequence[Job] = ()


class SliceTimer:
    """Chooses slices, and measures them.

    - Reading and answering share the time evenly while jobs want both. Answering comes first.
    - The reading with the fewest seconds left comes first, less the time that it has waited.
    - Reading slices are sized by the measured speed.
    """

    def __init__(self, chunk_tokens: int) -> None:
        """chunk_tokens: most tokens of a slice, unless a job's config says otherwise."""
        self.chunk_tokens = chunk_tokens
        self._token_s = 0.0
        """Measured seconds to read one token; 0: not measured yet."""
        self._read_s = 0.0
        self._answer_s = 0.0

    def admitted(self, job: Job) -> None:
        job.last_slice_s = time.perf_counter()

    def choose(self, running: Sequence[Job]) -> Slice | None:
        readers = [job for job in running if job.readable]
        answers = [job for job in running if job.answering and not job.stalled()]
        if not readers or not answers:
            self._read_s = 0.0
            self._answer_s = 0.0
        if answers and (not readers or self._answer_s <= self._read_s):
            return Slice(answers=answers)
        if not readers:
            return None
        now = time.perf_counter()
        reader = min(readers, key=lambda job: self._rank(job, now))
        return Slice(reader, self._size(reader, alone=len(running) == 1))

    def record(self, piece: Slice, started: float, tokens: int) -> None:
        """Note a slice that is done. started: of time.perf_counter. tokens: read in it."""
        now = time.perf_counter()
        if piece.reader is None:
            self._answer_s += now - started
            return
        self._read_s += now - started
        piece.reader.last_slice_s = now
        if tokens >= LEAST_TOKENS:
            token_s = (now - started) / tokens
            self._token_s += (WEIGHT if self._token_s else 1.0) * (token_s - self._token_s)

    def _rank(self, job: Job, now: float) -> float:
        """Seconds left to read, less the seconds waited. The lowest comes first."""
        left_s = min(job.remaining_tokens * self._token_s, MAX_LEAD_S)
        return left_s - (now - job.last_slice_s)

    def _size(self, job: Job, alone: bool) -> int:
        """Tokens of a reading slice: the whole chunk, or a multiple of STEP_TOKENS."""
        most = job.config.chunk_tokens or self.chunk_tokens
        aim_s = ALONE_S if alone else SHARED_S
        if most * self._token_s <= aim_s:
            return most
        tokens = int(aim_s / self._token_s) // STEP_TOKENS * STEP_TOKENS
        return min(most, max(LEAST_TOKENS, tokens))
