"""Slices: how long the engine works for some jobs before it looks at the others again."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from infinipot.server.jobs.base import Job

CPU_CHUNK_TOKENS = 512
GPU_CHUNK_TOKENS = 2048
"""Most tokens of a slice, unless a job's config says otherwise."""
ALONE_S = 0.8
"""Aim for a reading slice while no other job runs."""
SHARED_S = 0.25
"""Aim for a reading slice while others read, and none answers."""
MAX_STALL_S = 0.25
"""Most seconds of reading between two tokens of an answer."""
LEAST_TOKENS = 64
"""Smaller slices would cost more than they help. Others are this times a power of two: where slices
begin and end at few places, their recordings are used again."""
MAX_LEAD_S = 2.0
"""How much longer a long reading may wait than a short one."""
STALL_STEPS = 1.5
"""Time for reading between two steps, in steps, beside one for each job that reads: a single upload
makes answers wait little, and a crowd of new prompts is not kept waiting by the first answers."""
WEIGHT = 0.3
"""Share of the newest slice in the measured times."""


@dataclass(frozen=True)
class Slice:
    """Either a reading, or one token for each of several answers."""

    reader: Job | None = None
    max_tokens: int = 0
    answers: Sequence[Job] = ()


class SliceTimer:
    """Chooses slices, and measures them.

    - Between two steps of the answers there is reading for a limited time.
    - The reading with the fewest seconds left comes first, less the time that it has waited.
    - Reading slices are sized by the measured speed.
    """

    def __init__(self, chunk_tokens: int, max_stall_s: float = MAX_STALL_S) -> None:
        """chunk_tokens: most tokens of a slice, unless a job's config says otherwise. max_stall_s:
        most seconds of reading between two tokens of an answer, if slices can be that small."""
        self.chunk_tokens = chunk_tokens
        self.max_stall_s = max_stall_s
        self._token_s = 0.0
        """Measured seconds to read one token; 0: not measured yet."""
        self._step_s = 0.0
        """Measured seconds of a step of the answers."""
        self._read_s = 0.0
        """Seconds of reading since the last step."""

    def admitted(self, job: Job) -> None:
        job.last_slice_s = time.perf_counter()

    def choose(self, running: Sequence[Job]) -> Slice | None:
        readers = [job for job in running if job.readable]
        answers = [job for job in running if job.answering and not job.stalled()]
        if not readers and not answers:
            return None
        if not readers:
            return Slice(answers=answers)
        now = time.perf_counter()
        reader = min(readers, key=lambda job: self._rank(job, now))
        if not answers:
            aim_s = ALONE_S if len(running) == 1 else SHARED_S
            return Slice(reader, self._size(reader, aim_s))
        aim_s = self._pause_s(len(readers)) - self._read_s
        least_s = min(reader.remaining_tokens, LEAST_TOKENS) * self._token_s
        if (self._read_s and aim_s < least_s) or not self._step_s:
            return Slice(answers=answers)
        return Slice(reader, self._size(reader, aim_s))

    def record(self, piece: Slice, started: float, tokens: int) -> None:
        """Note a slice that is done. started: of time.perf_counter. tokens: read in it."""
        now = time.perf_counter()
        if piece.reader is None:
            self._step_s = _average(self._step_s, now - started)
            self._read_s = 0.0
            return
        self._read_s += now - started
        piece.reader.last_slice_s = now
        if tokens >= LEAST_TOKENS:
            self._token_s = _average(self._token_s, (now - started) / tokens)

    def _pause_s(self, readers: int) -> float:
        """Time for reading between two steps."""
        return min(self.max_stall_s, self._step_s * (STALL_STEPS + readers - 1))

    def _rank(self, job: Job, now: float) -> float:
        """Seconds left to read, less the seconds waited. The lowest comes first."""
        left_s = min(job.remaining_tokens * self._token_s, MAX_LEAD_S)
        return left_s - (now - job.last_slice_s)

    def _size(self, job: Job, aim_s: float) -> int:
        """Tokens of a reading slice: the whole chunk, or LEAST_TOKENS times a power of two."""
        most = job.config.chunk_tokens or self.chunk_tokens
        if most * self._token_s <= aim_s:
            return most
        tokens = LEAST_TOKENS
        while 2 * tokens * self._token_s <= aim_s:
            tokens *= 2
        return min(most, tokens)


def _average(before: float, now: float) -> float:
    """A running average. before: 0 for none."""
    if not before:
        return now
    return before + WEIGHT * (now - before)
