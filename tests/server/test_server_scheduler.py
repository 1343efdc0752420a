"""Which slice comes next, and how large it is."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
from live import live

from infinipot import PotConfig
from infinipot.server.slices import CPU_LEAST_TOKENS, MAX_WAIT_S, Slice, SliceTimer

CHUNK = 512


def reader(tokens: int, waited_s: float = 0.0) -> Any:
    return SimpleNamespace(
        readable=True,
        distils=False,
        answering=False,
        runner=None,
        remaining_tokens=tokens,
        admitted_s=time.perf_counter() - waited_s,
        last_slice_s=time.perf_counter() - waited_s,
        config=PotConfig(pot_size=1024),
    )


def answer(stalled: bool = False) -> Any:
    return SimpleNamespace(readable=False, answering=True, stalled=lambda: stalled)


def note(timer: SliceTimer, piece: Slice, seconds: float, tokens: int) -> None:
    """A slice that is begun and done at once."""
    timer.done(piece, tokens, seconds)
    timer.begun(piece, tokens)


def timer_of(tokens_per_s: float) -> SliceTimer:
    timer = SliceTimer("cpu")
    timer._slice_s = {tokens: tokens / tokens_per_s for tokens in (64, 128, 256, 512)}
    return timer


@pytest.mark.parametrize(
    ("readers", "step_s", "speed", "longest_s", "share"),
    [
        (1, 0.1, 10_000, 0.2, 1.0),
        (1, 0.4, 10_000, 0.25, 0.25 / 0.4),
        (4, 0.05, 10_000, 0.2, 4.0),
        (60, 0.01, 10_000, 0.25, 25.0),
        (1, 0.1, 400, 0.2, 0.8),
        (1, 0.1, 100, 0.64, 0.64 / 0.3),
    ],
)
def test_reading_between_two_steps_is_limited(
    readers: int, step_s: float, speed: int, longest_s: float, share: float
) -> None:
    """By the time of two steps, or of a step for each reader, or of the smallest slice. On average it
    is a step for each reader, or `max_stall_s`."""
    timer = timer_of(speed)
    jobs = [*(reader(10_000) for _ in range(readers)), answer()]
    pauses = [0.0]
    for _ in range(600):
        piece = timer.choose(jobs)
        assert piece is not None
        seconds = piece.max_tokens / speed
        if piece.reader is None:
            seconds = step_s
            pauses.append(0.0)
        pauses[-1] += seconds * (piece.reader is not None)
        note(timer, piece, seconds, piece.max_tokens)
    assert max(pauses) <= longest_s + 0.001
    assert sum(pauses[:-1]) / (step_s * len(pauses[:-1])) == pytest.approx(share, rel=0.15)


def test_a_distillation_is_a_slice_of_its_own() -> None:
    """It counts as reading for its own time, not that of its tokens."""
    timer = timer_of(10_000)
    timer._step_s = 0.1
    job = reader(10_000)
    jobs = [job, answer()]
    job.distils = True
    piece = timer.choose(jobs)
    assert piece == Slice(job, 0)
    assert not timer.known(piece, 0)
    note(timer, piece, 0.14, 0)
    assert timer.known(piece, 0)
    piece = timer.choose(jobs)
    assert piece is not None
    assert piece.answers, "another 0.14 s are more than two steps"
    note(timer, piece, 0.1, 0)
    job.distils = False
    assert timer.choose(jobs) == Slice(job, CHUNK)
    assert timer._read_s == pytest.approx(0.04)


def test_many_short_readings_fit_between_two_steps() -> None:
    timer = timer_of(10_000)
    timer._step_s = 0.02
    jobs = [*(reader(30) for _ in range(40)), answer()]
    for _ in range(20):
        piece = timer.choose(jobs)
        assert piece is not None
        assert piece.reader in jobs
        note(timer, piece, 0.003, 30)


def test_answers_that_nobody_fetches_do_not_block_reading() -> None:
    job = reader(100)
    piece = timer_of(1000).choose([answer(stalled=True), job])
    assert piece is not None
    assert piece.reader is job
    assert timer_of(1000).choose([answer(stalled=True)]) is None


def test_the_shortest_reading_comes_first_unless_another_has_waited() -> None:
    timer = timer_of(1000)
    short, long = reader(100), reader(100_000)
    for waited_s, first in ((0.0, short), (MAX_WAIT_S / 2, short), (MAX_WAIT_S + 1, long)):
        long.last_slice_s = time.perf_counter() - waited_s
        piece = timer.choose([long, short])
        assert piece is not None
        assert piece.reader is first


def test_readings_of_one_length_come_in_order() -> None:
    """Each is finished before the next begins, so that the median waits half as long as with turns."""
    timer = timer_of(1000)
    jobs = [reader(5000, waited_s=1.0 - number / 10) for number in range(4)]
    finished = []
    while jobs:
        piece = timer.choose(jobs)
        assert piece is not None
        piece.reader.remaining_tokens -= piece.max_tokens
        note(timer, piece, piece.max_tokens / 1000, piece.max_tokens)
        for job in [job for job in jobs if job.remaining_tokens <= 0]:
            finished.append(job.admitted_s)
            jobs.remove(job)
    assert finished == sorted(finished)


@pytest.mark.parametrize(
    ("tokens_per_s", "alone", "shared"),
    [(10_000, CHUNK, CHUNK), (500, 256, 64), (10, CPU_LEAST_TOKENS, CPU_LEAST_TOKENS)],
)
def test_slices_are_sized_by_speed(tokens_per_s: float, alone: int, shared: int) -> None:
    timer = timer_of(tokens_per_s)
    jobs = [reader(10_000), reader(10_000)]
    for count, expected in ((1, alone), (2, shared)):
        piece = timer.choose(jobs[:count])
        assert piece is not None
        assert piece.max_tokens == expected


def test_the_speed_is_measured() -> None:
    """By size: short slices cost more a token, and say nothing of long ones."""
    timer = SliceTimer("cpu")
    for size in (512, 60, 512, 60, 512):
        piece = timer.choose([reader(10_000)])
        assert piece is not None
        note(timer, piece, 0.1 + 0.001 * size, size)
    assert timer._slice_s[512] == pytest.approx(0.612, rel=0.1)
    assert timer._slice_s[64] == pytest.approx(0.16, rel=0.1)
    assert timer._estimate_s(1024) == pytest.approx(1.224, rel=0.1)


def test_only_views_of_the_lists_are_public() -> None:
    with live() as here:
        scheduler = here.service.engine.scheduler
        for name in ("waiting", "running", "jobs"):
            assert isinstance(getattr(scheduler, name), tuple)
            with pytest.raises(AttributeError):
                setattr(scheduler, name, ())
