"""Which slice comes next, and how large it is."""

from __future__ import annotations

import string
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import openai
import pytest
import torch
from live import live
from tiny import TEMPLATE

from infinipot import PotConfig
from infinipot.model.runner import ModelRunner
from infinipot.server.slices import (
    ALONE_S,
    CPU_LEAST_TOKENS,
    JOINT_TIMES,
    MAX_WAIT_S,
    Slice,
    SliceTimer,
)
from infinipot.server.warm_up import most_rows

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
    timer._alone.seconds = {tokens: tokens / tokens_per_s for tokens in (64, 128, 256, 512)}
    return timer


@pytest.mark.parametrize(
    ("readers", "step_s", "speed", "longest_s", "share"),
    [
        (1, 0.1, 10_000, 0.125, 1.0),
        (1, 0.4, 10_000, 0.25, 0.25 / 0.4),
        (4, 0.05, 10_000, 0.2, 4.0),
        (60, 0.01, 10_000, 0.25, 25.0),
        (1, 0.1, 400, 0.16, 0.8),
        (1, 0.1, 100, 0.64, 0.64 / 0.3),
    ],
)
def test_reading_between_two_steps_is_limited(
    readers: int, step_s: float, speed: int, longest_s: float, share: float
) -> None:
    """By the time of one and a quarter steps, or of a step for each reader, or of the smallest slice. On average it
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
    assert piece.answers, "another 0.14 s are more than a step and a quarter"
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
    assert timer._alone.seconds[512] == pytest.approx(0.612, rel=0.1)
    assert timer._alone.seconds[64] == pytest.approx(0.16, rel=0.1)
    assert timer._alone.estimate(1024) == pytest.approx(1.224, rel=0.1)


def test_only_views_of_the_lists_are_public() -> None:
    with live() as here:
        scheduler = here.service.engine.scheduler
        for name in ("waiting", "running", "jobs"):
            assert isinstance(getattr(scheduler, name), tuple)
            with pytest.raises(AttributeError):
                setattr(scheduler, name, ())


def prompts(*tokens: int) -> list[Any]:
    """Jobs that read prompts, the first of which has waited longest."""
    return [reader(count, waited_s=1.0 - number / 100) for number, count in enumerate(tokens)]


def chosen(timer: SliceTimer, jobs: list[Any]) -> tuple[list[int], int]:
    """The prompts of the next slice, and its tokens."""
    piece = timer.choose(jobs)
    assert piece is not None
    assert piece.reader is not None
    return [job.remaining_tokens for job in (piece.reader, *piece.beside)], piece.max_tokens


def test_short_prompts_share_a_slice() -> None:
    """Whole prompts, in their order, as many as the slice has room for."""
    assert chosen(timer_of(10_000), prompts(40, 30, 50)) == ([40, 30, 50], CHUNK)
    assert chosen(timer_of(10_000), prompts(300, 200, 100, 12)) == ([100, 200, 12], CHUNK)
    assert chosen(timer_of(10_000), prompts(400, 5000)) == ([400], CHUNK)
    assert chosen(timer_of(10_000), prompts(5000, 6000)) == ([5000], CHUNK)
    timer = timer_of(10_000)
    timer.joint_tokens = 100
    assert chosen(timer, prompts(60, 50, 40)) == ([60, 40], 100)
    unmeasured = SliceTimer("cpu")
    assert chosen(unmeasured, prompts(40, 30, 50)) == ([40, 30, 50], CHUNK)


def test_who_cannot_share_a_slice() -> None:
    for number in range(3):
        distils, foreign, *rest = prompts(40, 40, 40, 40)
        distils.distils = True
        foreign.runner = "its own"
        jobs = [*rest[:number], distils, foreign]
        piece = timer_of(10_000).choose(jobs)
        assert piece is not None
        assert {id(job) for job in (piece.reader, *piece.beside)} in (
            {id(distils)},
            {id(foreign)},
            {id(job) for job in rest[:number]},
        )


@pytest.mark.parametrize(
    ("speed", "answers", "together"),
    [
        (10_000, 0, 4),
        (100, 0, 2),
        (10_000, 1, 4),
        (400, 1, 1),
        (150, 1, 2),
    ],
)
def test_prompts_share_a_slice_within_its_time(speed: int, answers: int, together: int) -> None:
    """Beside answers within the time between two steps. Where one prompt alone takes longer than
    that, or without answers, within three times the time of one."""
    timer = timer_of(speed)
    timer._step_s = 0.1
    jobs = [*prompts(60, 60, 60, 60), *(answer() for _ in range(answers))]
    own, tokens = chosen(timer, jobs)
    assert len(own) == together
    if not answers or 64 / speed > 0.2:
        assert tokens / speed <= max(ALONE_S, JOINT_TIMES * 64 / speed)
    else:
        assert tokens / speed <= 0.2


def test_prompts_share_no_slice_that_takes_longer_than_one_after_the_other() -> None:
    """On a GPU a row of a step costs as much as a step for few rows."""
    timer = timer_of(10_000)
    few = prompts(60, 60)
    many = prompts(*[6] * 20)
    piece = timer.choose(few)
    assert piece is not None
    assert piece.beside
    note(timer, piece, 0.05, 120)
    assert timer._alone.seconds == timer_of(10_000)._alone.seconds, (
        "a joint slice is no measure of one"
    )
    assert chosen(timer, few) == ([60], CHUNK)
    assert chosen(timer, many) == ([6] * 20, CHUNK), "one by one takes 20 times as long as one"


def test_a_joint_slice_counts_for_all_its_jobs() -> None:
    timer = timer_of(1000)
    jobs = prompts(40, 30)
    before = time.perf_counter()
    piece = timer.choose(jobs)
    assert piece is not None
    note(timer, piece, 0.1, 70)
    assert all(job.last_slice_s >= before for job in jobs)


def test_sizes_that_were_not_measured_lie_between_those_that_were() -> None:
    timer = SliceTimer("cpu")
    assert timer._alone.estimate(100) == 0.0
    timer._alone.seconds = {128: 0.2, 512: 0.8}
    for tokens, seconds in ((60, 0.2), (128, 0.2), (200, 0.4), (512, 0.8), (1024, 1.6)):
        assert timer._alone.estimate(tokens) == pytest.approx(seconds)


def test_prompts_that_come_at_once_are_read_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Questions to a named pot and chats, each answered as alone. One that fails takes no other with it."""
    questions = [f"Who hid letter {number}?" + " Say it." * number for number in range(4)]
    calls = [{"pot": "book"}, {}, {"pot": "book"}, {}]
    read = ModelRunner.read
    own = SliceTimer.choose
    pots_read: list[int] = []
    waits_for: list[int] = []
    config = PotConfig(pot_size=256, distill_to=128, chunk_tokens=256)
    with live({"max_sessions": 8, "config": config}) as here:
        here.http.post("/v1/pots", json={"name": "book", "text": "The keeper hid the letter. " * 9})
        bad: list[int] = []

        def noting(self: ModelRunner, ids: torch.Tensor, pots: Any, *rest: Any) -> torch.Tensor:
            if ids.shape[1] > len(pots):  # no step of answers
                pots_read.append(len(pots))
            if set(bad) & set(ids[0].tolist()):
                raise RuntimeError("boom")
            return read(self, ids, pots, *rest)

        def say(number: int) -> str:
            reply = here.chat(questions[number], **calls[number])
            return str(reply.choices[0].message.content)

        def choose(self: SliceTimer, running: Sequence[Any]) -> Slice | None:
            """Nothing until all have come."""
            if waits_for and len(running) < waits_for[0]:
                return None
            waits_for.clear()
            return own(self, running)

        def say_at_once() -> list[Future[str]]:
            waits_for.append(4)
            with ThreadPoolExecutor(4) as pool:
                return [pool.submit(say, number) for number in range(4)]

        alone = [say(number) for number in range(4)]
        monkeypatch.setattr(ModelRunner, "read", noting)
        monkeypatch.setattr(SliceTimer, "choose", choose)
        assert [answer.result() for answer in say_at_once()] == alone
        assert max(pots_read) == 4
        encode = here.service.engine.tokenizer.encode
        used = {*encode("".join((*alone, *questions))), *encode(TEMPLATE)}
        mark = next(mark for mark in string.printable if not used & {*encode(mark)})
        bad += encode(mark)
        questions[1] += mark
        pots_read.clear()
        answers = say_at_once()
        assert [answers[number].result() for number in (0, 2, 3)] == [alone[0], *alone[2:]]
        with pytest.raises(openai.InternalServerError):
            answers[1].result()
        assert max(pots_read) == 4
        here.wait("infinipot_running", 0)


def test_joint_prompts_fit_a_recorded_step() -> None:
    """Otherwise a step would be recorded while clients wait."""
    for sessions, rows in ((1, 64), (64, 64), (65, 96), (256, 256), (1000, 256)):
        assert most_rows(sessions) == rows
        assert SliceTimer("cuda", step_rows=most_rows(sessions)).joint_tokens == rows
    assert SliceTimer("cpu", step_rows=64).joint_tokens == SliceTimer("cpu").joint_tokens
