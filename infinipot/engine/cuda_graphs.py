"""CUDA graphs of chunks and of decoding steps, one set for all pots of a model.

A recording contains the code that runs without it, so results are the same. Models that cannot be
recorded (for example, if the runner chooses their experts) run without recordings; so do pots with
layers other than slots.
"""

from __future__ import annotations

import copy
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
from infinipot.engine.graph_chunk import Chunk
from infinipot.engine.graph_step import ROWS, AddressForward, Step
from infinipot.engine.observe import ByLayer, CatalystLook
from infinipot.engine.recording import Recording
from infinipot.kernels import distill, pots
from infinipot.kernels.launch import next_power_of_2
from infinipot.machine import out_of_memory
from infinipot.model.attention import IN_USE
from infinipot.model.runner import ModelRunner
from infinipot.parallel.ranks import on_all_ranks

log = logging.getLogger("infinipot")

STEPS = 32
"""Most recorded steps of a model, by number of rows, size of the pots and type of their entries."""
CHUNKS = 64
"""Most recorded chunks of a model, by number of rows, size of the pot, kind of catalyst and type of
entries."""
CHUNK_ROWS = (16, 32, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
"""Rows of recorded chunks. A chunk with other rows uses the next larger one."""
CATALYST_ROWS = (64, distill.ROWS)
"""Rows of catalysts in recorded chunks."""
F = TypeVar("F", bound=AddressForward)
T = TypeVar("T")


def next_above(sizes: Sequence[int], count: int) -> int:
    """The smallest of the sizes that is not below `count`; above all of them a multiple of the
    largest."""
    for size in sizes:
        if size >= count:
            return size
    return -(-count // sizes[-1]) * sizes[-1]


def seen_by_kernel(look: CatalystLook | None, pot: Pot) -> bool:
    """Whether a recorded chunk can do what `look` does."""
    if look is None:
        return True
    if look.once or look.rows > CATALYST_ROWS[-1]:
        return False
    vectors = pot.bounded[0].slots[0].read(0, 0)  # of the type that attention reads
    return not pots.supports(vectors) or distill.supports_vectors(vectors)


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
        # a recording covers neither state-space layers nor layers on a CPU
        kinds = {weight.device.type for weight in runner.model.parameters()}
        self.unrecordable = any(runner.states) or len(kinds) > 1
        self.streams: list[torch.cuda.Stream] = []
        """One for each GPU of the model."""
        self.pools: list[torch.cuda.MemPool] = []
        """Memory of all recordings, on each GPU but the first."""
        self.first: torch.cuda.CUDAGraph | None = None
        self.steps: Recent[Step] = Recent(STEPS)
        self.chunks: Recent[Chunk] = Recent(CHUNKS)

    @property
    def followers(self) -> Any:
        runner = self.runner()
        return runner and runner.followers

    def __reduce__(self) -> tuple[Any, ...]:
        """For another rank: that of its own runner."""
        return graph_cache, (self.runner(),)

    def possible(self, ids: Tensor) -> bool:
        """Whether reading these ids can be recorded."""
        return ids.is_cuda and not self.unrecordable

    def record(self, run: Callable[[], Any]) -> Recording:
        runner = self.runner()
        assert runner is not None
        # the shared memory of all recordings lives as long as one of them: this one
        if self.first is None:
            for device in dict.fromkeys([runner.device, *runner.devices, runner.ending]):
                with torch.cuda.device(device):
                    self.streams.append(torch.cuda.Stream())
                    self.pools.append(torch.cuda.MemPool())
            del self.pools[0]
            first = self.streams[:1]
            self.first = Recording(lambda: [torch.zeros(1, device=runner.device)], first).graph
        # thread_local: CUDA calls of other threads do not end the recording
        how = {"pool": self.first.pool(), "capture_error_mode": "thread_local"}
        return Recording(run, self.streams, self.pools, **how)

    @on_all_ranks
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
        kind = pots[0].kind
        if len(ids) > ROWS[-1] or not self.possible(ids):
            return None
        for pot in pots:
            self.allocate(pot)
        usable = all(
            pot.by_address
            and not (watched and pot.watched)
            and pot.rotations is rotations
            and pot.kind == kind
            for pot in pots
        )
        if not usable:
            return None
        for pot, count in zip(pots, counts, strict=True):
            pot.reserve(count)
        rows = next_above(ROWS, len(ids))
        capacity = max(pot.bounded[0].capacity for pot in pots)
        size = next_power_of_2(capacity)

        key = (rows, size, id(rotations), kind)
        step = self.steps.take(key, pots[0]) or Step(runner, pots[0], rows, size)
        self.steps.keep(key, step)
        return self._run(step, lambda: step(pots, counts, ids, self.record))

    def chunk(
        self, pot: Pot, ids: Tensor, look: CatalystLook | None, watched: bool
    ) -> tuple[Tensor, ByLayer] | None:
        """Read ids [1, T] into a pot by a `Chunk`, and return its result. None, and nothing is read,
        if this pot has no chunks. A chunk is recorded when it comes a second time.

        look: observes the attention from the last ids. watched: as for `step`.
        """
        count = ids.shape[1]
        if not self.possible(ids) or (watched and pot.watched):
            return None
        self.allocate(pot)
        if not pot.by_address or not seen_by_kernel(look, pot):
            return None
        pot.reserve(count)
        return self.chunk_of(next_above(CHUNK_ROWS, count), pot, ids, look)

    @on_all_ranks
    def chunk_of(
        self, rows: int, pot: Pot, ids: Tensor, look: CatalystLook | None
    ) -> tuple[Tensor, ByLayer] | None:
        """Read ids [1, T] into a pot by the `Chunk` of `rows` rows, at least T."""
        runner = self.runner()
        assert runner is not None
        catalyst = 0
        most = look
        if look is not None:
            catalyst = look.rows
            most = dataclasses.replace(look, rows=next_above(CATALYST_ROWS, catalyst))
        size = next_power_of_2(pot.bounded[0].capacity)
        key = (rows, size, most, id(pot.rotations), pot.kind)
        chunk = self.chunks.take(key, pot) or Chunk(runner, pot, rows, size, most)
        self.chunks.keep(key, chunk)
        return self._run(chunk, lambda: chunk(pot, ids, catalyst, self.record))

    def allocate(self, pot: Pot) -> None:
        """Allocate the slots of an empty pot, which else happens when the first tokens come."""
        runner = self.runner()
        assert runner is not None
        if not pot.length and not pot.by_address:
            runner.allocate(pot)

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
        for forwards in (self.steps, self.chunks):
            forwards.clear()


_CACHES: WeakKeyDictionary[ModelRunner, GraphCache] = WeakKeyDictionary()


def graph_cache(runner: ModelRunner) -> GraphCache:
    """The model's recordings."""
    with IN_USE:
        if runner not in _CACHES:
            _CACHES[runner] = GraphCache(runner)
        return _CACHES[runner]


def unrecorded(runner: ModelRunner) -> ModelRunner:
    """Another runner of the same model, which makes no recordings."""
    twin = copy.copy(runner)
    graph_cache(twin).record_nothing()
    return twin
