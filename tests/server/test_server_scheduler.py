"""Which slice comes next, and how large it is."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
from live import live

from infinipot import PotConfig
from infinipot.server.slices import LEAST_TOKENS, MAX_LEAD_S, SliceTimer

CHUNK = 512


def reader(tokens: int, waited_s: float = 0.0) -> Any:
    return SimpleNamespace(
        readable=True,
        answering=False,
        remaining_tokens=tokens,
        last_slice_s=time.perf_counter() - waited_s,
        config=PotConfig(pot_size=1024),
    )


def answer(stalled: bool = False) -> Any:
    return SimpleNamespace(readable=False, answering=True, stalled=lambda: stalled)


def timer_of(tokens_per_s: float) -> SliceTimer:
    timer = SliceTimer(CHUNK)
    timer._token_s = 1 / tokens_per_s
    return timer


def test_answers_come_first_and_share_the_time() -> None:
    timer = timer_of(1000)
    jobs = [reader(10_000), answer()]
    turns = ""
    for _ in range(40):
        piece = timer.choose(jobs)
        assert piece is not None
        length_s = 0.15 if piece.reader else 0.05
        turns += "R" if piece.reader else "A"
        timer.record(piece, time.perf_counter() - length_s, 0)
    assert turns.startswith("AR")
    assert turns.count("A") == pytest.approx(3 * turns.count("R"), abs=3)


def test_answers_that_nobody_fetches_do_not_block_reading() -> None:
    job = reader(100)
    piece = timer_of(1000).choose([answer(stalled=True), job])
    assert piece is not None
    assert piece.reader is job
    assert timer_of(1000).choose([answer(stalled=True)]) is None


def test_the_shortest_reading_comes_first_unless_another_has_waited() -> None:
    timer = timer_of(1000)
    short, long = reader(100), reader(100_000)
    for waited_s, first in ((0.0, short), (MAX_LEAD_S / 2, short), (MAX_LEAD_S + 1, long)):
        long.last_slice_s = time.perf_counter() - waited_s
        piece = timer.choose([long, short])
        assert piece is not None
        assert piece.reader is first


@pytest.mark.parametrize(
    ("tokens_per_s", "alone", "shared"),
    [(10_000, CHUNK, CHUNK), (500, 384, 96), (10, LEAST_TOKENS, LEAST_TOKENS)],
)
def test_slices_are_sized_by_speed(tokens_per_s: float, alone: int, shared: int) -> None:
    timer = timer_of(tokens_per_s)
    jobs = [reader(10_000), reader(10_000)]
    for count, expected in ((1, alone), (2, shared)):
        piece = timer.choose(jobs[:count])
        assert piece is not None
        assert piece.max_tokens == expected


def test_the_speed_is_measured() -> None:
    timer = SliceTimer(CHUNK)
    for _ in range(20):
        piece = timer.choose([reader(10_000)])
        assert piece is not None
        timer.record(piece, time.perf_counter() - 0.001 * piece.max_tokens, piece.max_tokens)
    assert timer._token_s == pytest.approx(0.001, rel=0.1)


def test_only_views_of_the_lists_are_public() -> None:
    with live() as here:
        scheduler = here.service.engine.scheduler
        for name in ("waiting", "running", "jobs"):
            assert isinstance(getattr(scheduler, name), tuple)
            with pytest.raises(AttributeError):
                setattr(scheduler, name, ())
