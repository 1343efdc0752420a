"""CUDA graphs of chunks and of decoding steps, one set for all pots of a model.

A recording contains the code that runs without it, so results are the same. Models that cannot be
recorded (for example, if the runner chooses their experts) run without recordings; so do pots with
layers other than slots.
"""

from __future__ import annotations

import dataclasses
import logging
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from infinipot.cache.pot import Pot
from infinipot.engine.graph_chunk import Chunk, any_catalyst
from infinipot.engine.graph_step import ROWS, AddressForward, Recording, Step
from infinipot.engine.observe import ByLayer, CatalystLook
from infinipot.machine import out_of_memory
from infinipot.model.attention import IN_USE
from infinipot.model.runner import ModelRunner

log = logging.getLogger("infinipot")

STEPS = 32
"""Most recorded steps of a model, by number of rows and size of the pots."""
CHUNKS = 64
"""Most recorded chunks of a model, by their place in the pot."""
FIRST_CHUNKS = 64
"""Most chunks that are remembered without a recording."""
PART = 128
"""Texts are read in parts of this length times a power of two. Shorter ones are rows of a step."""
TAIL = 1024
"""The end of a text, up to this length, is read in one pass. It is padded to a multiple of PART."""
F = TypeVar("F", bound=AddressForward)
T = TypeVar("T")


class Recent(OrderedDict[Hashable, F]):
    """The most recently used forward passes by their key."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def take(self, key: Hashable, pot: Pot) -> F | None:
        """Remove and return a forward pass. None if there is none that serves this pot."""
        forward = self.pop(key, None)
        if forward is not None and forward.serves(pot):
            return forward
        return None

    def keep(self, key: Hashable, forward: F) -> None:
        """Add a forward pass as the most recent. The oldest goes if there are too many."""
        self[key] = forward
        if len(self) > self.most:
            self.popitem(last=False)


class GraphCache:
    """The recordings of one model. unrecordable: this model cannot be recorded."""

    def __init__(self, runner: ModelRunner) -> None:
        self.runner = weakref.ref(runner)
        # a recording covers neither state-space layers, nor other processes, nor other devices
        devices = {weight.device for weight in runner.model.parameters()}
        self.unrecordable = any(runner.states) or runner.sharded or len(devices) > 1
        self.first: tuple[torch.cuda.CUDAGraph, torch.cuda.Stream] | None = None
        self.steps: Recent[Step] = Recent(STEPS)
        self.chunks: Recent[Chunk] = Recent(CHUNKS)
        self.first_chunks: Recent[Chunk] = Recent(FIRST_CHUNKS)
        """Chunks that ran once, and are recorded if they come again."""

    def possible(self, ids: Tensor) -> bool:
        """Whether reading these ids can be recorded."""
        return ids.is_cuda and not self.unrecordable

    def record(self, run: Callable[[], Any]) -> Recording:
        runner = self.runner()
        assert runner is not None
        # the shared memory of all recordings lives as long as one of them: this one
        if self.first is None:
            with torch.cuda.device(runner.device):
                stream = torch.cuda.Stream()
            first = Recording(lambda: torch.zeros(1, device=runner.device), runner.device, stream)
            self.first = (first.graph, stream)
        graph, stream = self.first
        # thread_local: CUDA calls of other threads do not end the recording
        return Recording(
            run, runner.device, stream, pool=graph.pool(), capture_error_mode="thread_local"
        )

    def step(
        self, pots: Sequence[Pot], counts: Sequence[int], ids: Tensor, watched: bool
    ) -> tuple[Tensor, Tensor] | None:
        """Read ids [N, 1], the next `counts[b]` of them into pot b, by a `Step`, and return its
        result. None, and nothing is read, if these pots have no step.

        watched: attention statistics must be updated; not for an answer that is removed again.
        """
        runner = self.runner()
        assert runner is not None
        rotations = pots[0].rotations
        usable = all(
            pot.by_address and not (watched and pot.watched) and pot.rotations is rotations
            for pot in pots
        )
        if len(ids) > ROWS[-1] or not usable or not self.possible(ids):
            return None
        for pot, count in zip(pots, counts, strict=True):
            pot.reserve(count)
        rows = next(rows for rows in ROWS if rows >= len(ids))
        capacity = max(pot.bounded[0].capacity for pot in pots)
        size = 1 << (capacity - 1).bit_length()

        key = (rows, size, id(rotations))
        step = self.steps.take(key, pots[0]) or Step(runner, pots[0], rows, size)
        self.steps.keep(key, step)
        return self._run(step, lambda: step(pots, counts, ids, self.record))

    def part(self, pot: Pot, begin: int, count: int, fills: bool) -> int:
        """How many of `count` tokens to read in one pass.

        Parts begin and end at few places of a pot, so that few recordings serve all texts. begin:
        the slot where reading began, after a distillation or at the start. fills: `count` tokens
        fill the pot, and may be read in one pass.
        """
        if not self.usable(pot) or count < PART:
            return count
        read = pot.length - begin
        beyond = read % PART
        if beyond:
            return min(count, PART - beyond)
        if fills or (count % PART and count < TAIL):
            return count
        part = PART << ((count // PART).bit_length() - 1)
        if read:
            part = min(part, read & -read)
        return part

    def rounded(self, pot: Pot, begin: int, count: int) -> int:
        """At most `count`: a number of tokens after which a part ends. begin: as for `part`."""
        beyond = (pot.length - begin + count) % PART
        if not self.usable(pot) or beyond >= count:
            return count
        return count - beyond

    def short(self, count: int) -> bool:
        """Whether `count` tokens are read as rows of a step."""
        return count < PART

    def usable(self, pot: Pot) -> bool:
        """Whether reading into a pot can be recorded."""
        return self.possible(pot.last_ids) and (pot.by_address or not pot.length)

    def chunk(
        self, pot: Pot, ids: Tensor, look: CatalystLook | None, watched: bool
    ) -> tuple[Tensor, ByLayer] | None:
        """Read ids [1, T] into a pot by a `Chunk`, and return its result. None, and nothing is read,
        if this pot has no chunks. A chunk is recorded when it comes a second time.

        look: observes the attention from the last ids. watched: as for `step`.
        """
        runner = self.runner()
        assert runner is not None
        count = ids.shape[1]
        if not self.possible(ids) or not pot.by_address or (watched and pot.watched):
            return None
        pot.reserve(count)
        start = pot.length
        seen = look
        if look is not None and any_catalyst(pot, look):
            seen = dataclasses.replace(look, rows=0)
        rows = count
        if look is None and count + -count % PART <= pot.bounded[0].capacity - start:
            rows = count + -count % PART
        key = (start, rows, seen, id(pot.rotations))
        chunk = self.chunks.take(key, pot) or self.first_chunks.take(key, pot)
        if chunk is None:
            chunk = Chunk(runner, pot, start, rows, look)
        output = self._run(chunk, lambda: chunk(pot, ids, look.rows if look else 0, self.record))
        if chunk.recording is None:
            self.first_chunks.keep(key, chunk)
        else:
            self.chunks.keep(key, chunk)
        return output

    def _run(self, forward: AddressForward, work: Callable[[], T]) -> T | None:
        """The result of a forward pass; None if it turns out that it cannot be recorded."""
        try:
            with IN_USE:  # recordings share their memory
                return work()
        except RuntimeError as problem:
            if forward.recording is not None or forward.calls < 2 or out_of_memory(problem):
                raise
            self.record_nothing()
            log.info(
                "%s cannot be recorded as a CUDA graph: %s",
                type(getattr(self.runner(), "model", None)).__name__,
                problem,
            )
            return None

    def record_nothing(self) -> None:
        """Use no recordings from now on."""
        self.unrecordable = True
        for forwards in (self.steps, self.chunks, self.first_chunks):
            forwards.clear()


_CACHES: WeakKeyDictionary[ModelRunner, GraphCache] = WeakKeyDictionary()


def graph_cache(runner: ModelRunner) -> GraphCache:
    """The model's recordings."""
    with IN_USE:
        if runner not in _CACHES:
            _CACHES[runner] = GraphCache(runner)
        return _CACHES[runner]
