"""Slices: how long the engine works for some jobs before it looks at the others again."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from infinipot.engine.joint import most_tokens
from infinipot.engine.plan import GPU_CHUNK_TOKENS
from infinipot.server.jobs.base import Job

CPU_CHUNK_TOKENS = 512
"""Most tokens of a slice on a CPU, unless a job's config says otherwise. On a GPU a slice is a chunk."""
ALONE_S = 0.8
"""Aim for a reading slice while no other job runs."""
SHARED_S = 0.25
"""Aim for a reading slice while others read, and none answers."""
MAX_STALL_S = 0.25
"""Most seconds of reading between two tokens of an answer."""
CPU_LEAST_TOKENS = 64
GPU_LEAST_TOKENS = 128
"""Smaller slices would cost more than they help. Others are this times a power of two."""
LONG_S = 10.0
"""Readings that take longer give way to others."""
MAX_WAIT_S = 2.0
"""How long a long reading may wait for others."""
SLICE_STEPS = 1.25
"""Aim for a reading slice between two steps of answers, in steps. Each step then pays for as much time
as it takes itself for each job that reads, so that a long slice is followed by several steps."""
JOINT_TIMES = 3.0
"""How much longer than for one short prompt the engine may read for several, where one alone takes
longer than the aim, or where nobody waits for a token."""
WEIGHT = 0.3
"""Share of the newest slice in the measured times."""


@dataclass(frozen=True)
class Slice:
    """Either a reading, or one token for each of several answers."""

    reader: Job | None = None
    max_tokens: int = 0
    """0 for a distillation."""
    beside: Sequence[Job] = ()
    """Jobs whose whole prompts are read in the same forward passes. `max_tokens` counts them, too."""
    answers: Sequence[Job] = ()


class SliceTimes:
    """Measured seconds of reading, by the number of tokens rounded up to `least` times a power of two."""

    def __init__(self, least: int) -> None:
        self.least = least
        self.seconds: dict[int, float] = {}

    def rounded(self, tokens: int) -> int:
        size = self.least
        while size < tokens:
            size *= 2
        return size

    def known(self, tokens: int) -> bool:
        return self.rounded(tokens) in self.seconds

    def note(self, tokens: int, seconds: float) -> None:
        size = self.rounded(tokens)
        self.seconds[size] = _average(self.seconds.get(size, 0.0), seconds)

    def estimate(self, tokens: int) -> float:
        """Seconds to read some tokens, from those of about that size, or between smaller and larger
        ones. 0: nothing is known yet."""
        wanted = self.rounded(tokens)
        smaller = max((size for size in self.seconds if size <= wanted), default=0)
        larger = min((size for size in self.seconds if size >= wanted), default=0)
        if not larger:
            return self.seconds.get(smaller, 0.0) * tokens / max(1, smaller)
        after_s = self.seconds[larger]
        if larger == smaller or not smaller:
            return after_s
        before_s = self.seconds[smaller]
        share = (wanted - smaller) / (larger - smaller)
        return before_s + share * (after_s - before_s)


class SliceTimer:
    """Chooses slices, and measures them.

    - Between two steps of the answers there is reading for a limited time: slices a little longer
      than a step, and on average as long as one step for each job that reads.
    - Readings come in the order in which they would end if each were alone. Long ones come after
      the others, and in turn.
    - Reading slices are sized by the measured speed.
    - Short prompts are read together, as many as a slice has room for, unless one after the other
      they would take less time.

    A slice has `begun` when the device has been given its work, and is `done` when the device says so:
    on a GPU that is later.
    """

    def __init__(
        self, device: str, max_stall_s: float = MAX_STALL_S, step_rows: int | None = None
    ) -> None:
        """device: `cpu`, or another kind. max_stall_s: most seconds of reading between two tokens of
        an answer, if slices can be that small. step_rows: rows of the largest recorded step, in
        which short prompts are read, where steps are recorded."""
        self.chunk_tokens = GPU_CHUNK_TOKENS
        self.least_tokens = GPU_LEAST_TOKENS
        if device == "cpu":
            self.chunk_tokens = CPU_CHUNK_TOKENS
            self.least_tokens = CPU_LEAST_TOKENS
        self.joint_tokens = most_tokens(device)
        if step_rows is not None and device != "cpu":
            self.joint_tokens = min(self.joint_tokens, step_rows)
        self.max_stall_s = max_stall_s
        self._alone = SliceTimes(self.least_tokens)
        """Of slices of one job."""
        self._together = SliceTimes(self.least_tokens)
        """Of several jobs' prompts in the same forward passes."""
        self._distill_s = 0.0
        """Measured seconds of a distillation."""
        self._step_s = 0.0
        """Measured seconds of a step of the answers."""
        self._read_s = 0.0
        """Seconds of reading that no step has paid for yet."""
        self._paid_s = 0.0
        """Seconds of reading that the next step pays for."""

    def admitted(self, job: Job) -> None:
        job.admitted_s = job.last_slice_s = time.perf_counter()

    def choose(self, running: Sequence[Job]) -> Slice | None:
        readers = [job for job in running if job.readable]
        answers = [job for job in running if job.answering and not job.stalled()]
        if not readers and not answers:
            return None
        if not readers:
            return Slice(answers=answers)
        reader = self._next_reader(readers)
        aim_s = ALONE_S if len(running) == 1 else SHARED_S
        if answers:
            self._paid_s = len(readers) * self._step_s
            longest_s = max(self._paid_s, SLICE_STEPS * self._step_s)
            aim_s = min(self.max_stall_s, longest_s) - self._read_s
        piece = self._reading(reader, aim_s)
        joint_s = aim_s
        alone_s = self._expected_s(piece)
        if not answers or alone_s > aim_s:
            joint_s = max(aim_s, JOINT_TIMES * alone_s)
        piece = self._joint(piece, readers, joint_s)
        if answers:
            late = self._read_s and self._expected_s(piece) > aim_s
            if late or not self._step_s:
                return Slice(answers=answers)
        return piece

    def _reading(self, reader: Job, aim_s: float) -> Slice:
        """The next slice of a job that reads."""
        if reader.distils:
            return Slice(reader)
        return Slice(reader, self._size(reader, aim_s))

    def _joint(self, piece: Slice, readers: Sequence[Job], aim_s: float) -> Slice:
        """The slice with more jobs, if it reads all of a short prompt: as many as can be read within
        `aim_s`, in their order."""
        first = piece.reader
        if first is None or not piece.max_tokens or not can_join(first):
            return piece
        tokens = first.remaining_tokens
        most = min(self.joint_tokens, self._size(first, aim_s))
        if tokens > piece.max_tokens or tokens > most:
            return piece
        beside = []
        others = [job for job in readers if job is not first and can_join(job)]
        for job in sorted(others, key=self._order):
            if tokens + job.remaining_tokens <= most:
                beside.append(job)
                tokens += job.remaining_tokens
        together = Slice(first, most, beside)
        if not beside or not self._saves_time(together, tokens):
            return piece
        return together

    def _saves_time(self, together: Slice, tokens: int) -> bool:
        """Whether these prompts take less time together than one after the other. A size that was
        never measured is tried."""
        if not self._together.known(tokens):
            return True
        jobs = [job for job in (together.reader, *together.beside) if job is not None]
        apart_s = sum(self._alone.estimate(job.remaining_tokens) for job in jobs)
        return self._together.estimate(tokens) <= apart_s

    def _expected_s(self, piece: Slice) -> float:
        """Seconds that a slice of a reader will take."""
        assert piece.reader is not None
        if not piece.max_tokens:
            return self._distill_s
        tokens = sum(job.remaining_tokens for job in (piece.reader, *piece.beside))
        return self._reading_s(piece, min(tokens, piece.max_tokens))

    def _reading_s(self, piece: Slice, tokens: int) -> float:
        """Seconds to read so many tokens in such a slice."""
        times = self._times(piece)
        if not times.known(tokens):
            times = self._alone
        return times.estimate(tokens)

    def _times(self, piece: Slice) -> SliceTimes:
        if piece.beside:
            return self._together
        return self._alone

    def begun(self, piece: Slice, tokens: int) -> None:
        """Note that the device has been given a slice. tokens: read in it."""
        if piece.reader is None:
            self._read_s = max(0.0, min(self.max_stall_s, self._read_s) - self._paid_s)
            return
        for job in (piece.reader, *piece.beside):
            job.last_slice_s = time.perf_counter()
        if not piece.max_tokens:
            self._read_s += self._distill_s
        elif tokens:
            self._read_s += self._reading_s(piece, tokens)

    def done(self, piece: Slice, tokens: int, seconds: float) -> None:
        """Note how long the device took for a slice. tokens: read in it."""
        if piece.reader is None:
            self._step_s = _average(self._step_s, seconds)
        elif not piece.max_tokens:
            self._distill_s = _average(self._distill_s, seconds)
        elif tokens:
            self._times(piece).note(tokens, seconds)

    def known(self, piece: Slice, tokens: int) -> bool:
        """Whether a slice of this kind and size has been measured."""
        if piece.reader is None:
            return bool(self._step_s)
        if not piece.max_tokens:
            return bool(self._distill_s)
        return self._times(piece).known(tokens)

    def _next_reader(self, readers: Sequence[Job]) -> Job:
        long = [job for job in readers if self._left_s(job) > LONG_S]
        others = [job for job in readers if job not in long]
        if long:
            oldest = min(long, key=lambda job: job.last_slice_s)
            if not others or time.perf_counter() - oldest.last_slice_s > MAX_WAIT_S:
                return oldest
        return min(others, key=self._order)

    def _left_s(self, job: Job) -> float:
        """Seconds that a job would still read if it were alone."""
        return self._alone.estimate(job.remaining_tokens)

    def _order(self, job: Job) -> float:
        """When a job would have read everything if it were alone. The first comes first."""
        return job.admitted_s + self._left_s(job)

    def _size(self, job: Job, aim_s: float) -> int:
        """Tokens of a reading slice: the whole chunk, or `least_tokens` times a power of two."""
        most = job.config.chunk_tokens or self.chunk_tokens
        tokens = self.least_tokens
        while tokens < most and self._alone.estimate(2 * tokens) <= aim_s:
            tokens *= 2
        return min(most, tokens)


def can_join(job: Job) -> bool:
    """Whether a job may read in a forward pass with others: with the engine's own runner, and not
    when its pot must be distilled first."""
    return job.runner is None and not job.distils


def _average(before: float, now: float) -> float:
    """A running average. before: 0 for none."""
    if not before:
        return now
    return before + WEIGHT * (now - before)
