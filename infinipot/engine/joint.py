"""Run readings: one by itself, or several in joint forward passes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from typing import Generic

import torch

from infinipot.engine.distill import take
from infinipot.engine.graph_step import ROWS
from infinipot.engine.observe import ByLayer
from infinipot.engine.passes import Pass, Passes, T
from infinipot.model.runner import ModelRunner

MOST_TOKENS = {"cpu": 512}
"""Most tokens of a joint pass, by kind of device. Elsewhere as many as a recorded step has rows."""


def alone(runner: ModelRunner, passes: Passes[T]) -> T:
    """Run one reading. Returns its result."""
    try:
        one = next(passes)
        while True:
            try:
                seen = take(runner, [one.pot], one.ids, one.suffix)
            except BaseException as problem:
                one = passes.throw(problem)
            else:
                one = passes.send(seen)
    except StopIteration as end:
        result: T = end.value
        return result


def most_tokens(device: str) -> int:
    """Most tokens of a joint pass. device: its type."""
    return MOST_TOKENS.get(device, ROWS[-1])


def read_together(runner: ModelRunner, readings: Sequence[Passes[T]]) -> list[T | Exception]:
    """Run readings into different pots. Passes that are due at the same time become joint passes,
    without padding; those with a catalyst run by themselves.

    Returns their results. A reading that fails has its exception instead, and does not disturb the
    others. If a joint pass fails, each of its readings goes on by itself.
    """
    with ExitStack() as open_readings:
        every = [Reading(open_readings.enter_context(closing(passes))) for passes in readings]
        while due := [reading for reading in every if reading.due is not None]:
            for group in groups(due, most_tokens(runner.device.type)):
                run(runner, group)
        return [reading.__dict__.pop("result") for reading in every]


class Reading(Generic[T]):
    """A reading on its way.

    due: its next pass; None at its end. result: what it returned, or the exception that ended it.
    """

    result: T | Exception

    def __init__(self, passes: Passes[T]) -> None:
        self.passes = passes
        self.go_on(None)

    def go_on(self, seen: ByLayer | Exception | None) -> None:
        """Go on to the next pass. seen: of the last pass; the exception if it failed."""
        self.due: Pass | None = None
        try:
            if isinstance(seen, Exception):
                self.due = self.passes.throw(seen)
            else:
                self.due = self.passes.send(seen)
        except StopIteration as end:
            self.result = end.value
        except Exception as problem:
            self.result = problem
        finally:
            del seen  # an exception keeps this frame, and would keep itself


def groups(due: Iterable[Reading[T]], most: int) -> Iterator[list[Reading[T]]]:
    """Readings whose next passes can be one forward pass of at most `most` tokens."""
    group: list[Reading[T]] = []
    tokens = 0
    for reading in due:
        one = reading.due
        assert one is not None
        count = one.ids.shape[1]
        if one.suffix is not None:
            yield [reading]
            continue
        if group and tokens + count > most:
            yield group
            group = []
            tokens = 0
        group.append(reading)
        tokens += count
    if group:
        yield group


def run(runner: ModelRunner, group: Sequence[Reading[T]]) -> None:
    """Run the next passes of a group."""
    passes = [reading.due for reading in group if reading.due is not None]
    if len(passes) > 1 and joined(runner, passes):
        for reading in group:
            reading.go_on(None)
        return
    for reading, one in zip(group, passes, strict=True):
        try:
            seen = take(runner, [one.pot], one.ids, one.suffix)
        except Exception as problem:
            reading.go_on(problem)
        else:
            reading.go_on(seen)


def joined(runner: ModelRunner, passes: Sequence[Pass]) -> bool:
    """Run passes without a catalyst as one. Returns whether that went well; else the pots are as
    before."""
    ids = torch.cat([one.ids for one in passes], dim=1)
    counts = [one.ids.shape[1] for one in passes]
    try:
        take(runner, [one.pot for one in passes], ids, counts=counts)
    except Exception:  # of one of them, or of memory: each will say by itself
        return False
    return True
