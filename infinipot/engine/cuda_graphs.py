"""CUDA graphs of reading cycles and decoding steps: a fixed pot has fixed shapes.

A recording contains the code that runs without it, so results are the same. Models that cannot be
recorded (for example, if the runner chooses their experts) run without recordings; so do pots with
layers other than slots.
"""

from __future__ import annotations

import copy
import logging
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from infinipot.cache.layer import PotLayer
from infinipot.cache.pot import Layout, Pot
from infinipot.engine.graph_step import Record, Recording, Step, addresses
from infinipot.model.attention import IN_USE
from infinipot.model.runner import ModelRunner

log = logging.getLogger("infinipot")

CYCLES = 4
"""Most recorded cycles of a pot, one for each method and length of catalyst."""
STEPS = 4
"""Most recorded steps of a pot, one for each group of pots that answer together."""
Run = Callable[[Tensor, Tensor | None], None]
"""Reads ids [1, T], with a catalyst [1, |P|] or None, and distils."""


def slotted(pot: Pot, watched: bool) -> bool:
    """Whether all layers are slots in the model's own type. watched: and have no attention
    statistics."""
    return pot.grouping is None and all(
        layer.window is None
        and layer.is_initialized
        and layer.kind is None
        and layer.reset
        and not (watched and layer.attention_stats)
        for layer in pot.layers
    )


def steady(pot: Pot) -> bool:
    """Whether all layers are slots with fixed addresses, without attention statistics."""
    return pot.size is not None and slotted(pot, watched=True)


class Cycle:
    """A recording of `run`: read ids [1, T] that fill the pot, and distil it.

    The catalyst is [1, |P|] or None. Call it only after a distillation of the pot.
    """

    def __init__(
        self, pot: Pot, ids: Tensor, catalyst: Tensor | None, run: Run, record: Record
    ) -> None:
        self.ids = torch.zeros_like(ids, memory_format=torch.contiguous_format)
        self.catalyst: Tensor | None = None
        if catalyst is not None:
            self.catalyst = catalyst.clone()
        self.start = torch.zeros((), dtype=torch.long, device=ids.device)
        assert pot.hidden is not None
        self.hidden = pot.hidden.clone()
        self.survivors = [layer.survivors() for layer in pot.bounded]

        def whole() -> None:
            run(self.ids, self.catalyst)
            assert pot.hidden is not None
            self.hidden.copy_(pot.hidden)
            for layer, places in zip(pot.bounded, self.survivors, strict=True):
                for name, place in places.items():
                    place.copy_(getattr(layer, name))

        with pot.recording(self.start, self.hidden):
            self.recording = record(whole)

    def __call__(self, pot: Pot, ids: Tensor, catalyst: Tensor | None) -> None:
        assert pot.hidden is not None
        self.ids.copy_(ids)
        if self.catalyst is not None and catalyst is not None:
            self.catalyst.copy_(catalyst)
        self.start.fill_(pot.tokens_read)
        self.hidden.copy_(pot.hidden)
        for layer, places in zip(pot.bounded, self.survivors, strict=True):
            layer.move_survivors(places)
        self.recording.graph.replay()
        pot.replayed(ids.shape[1], self.hidden.clone())


@dataclass
class Recordings:
    """The recordings of one pot."""

    cycles: dict[Any, Cycle] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)


class GraphCache:
    """The recordings of one model, by pot.

    unrecordable: this model cannot be recorded. spare: the layout and the parts of the pot that was
    dropped last, for reuse.
    """

    def __init__(self, runner: ModelRunner) -> None:
        self.runner = weakref.ref(runner)
        # a recording covers neither state-space layers, nor other processes, nor other devices
        devices = {weight.device for weight in runner.model.parameters()}
        self.unrecordable = any(runner.states) or runner.sharded or len(devices) > 1
        self.spare: tuple[Layout, Pot] | None = None
        self.first: tuple[torch.cuda.CUDAGraph, torch.cuda.Stream] | None = None
        self.methods: set[Any] = set()
        """Keys of the cycles that have run once without a recording."""
        self.by_pot: WeakKeyDictionary[PotLayer, Recordings] = WeakKeyDictionary()
        """By the first bounded layer, which belongs to one pot and to the spare made of it."""

    def new_pot(self, layout: Layout) -> Pot:
        """An empty pot. It reuses the slots and the recordings of the pot that was dropped last, if
        the layout is the same."""
        runner = self.runner()
        assert runner is not None
        with IN_USE:  # two threads must not take the same one
            spare = self.spare
            self.spare = None
        if spare is None or spare[0] != layout:
            pot = runner.new_pot(layout)
        else:
            pot = spare[1]
        pot.clear()
        weakref.finalize(pot, self._keep_parts, layout, copy.copy(pot)).atexit = False
        return pot

    def _keep_parts(self, layout: Layout, parts: Pot) -> None:
        """Keep the parts of a dropped pot. parts: a shallow copy of the pot."""
        if (
            layout.size is not None
            and layout.attention_stats is None
            and parts.bounded[0] in self.by_pot
        ):
            self.spare = (layout, parts)

    def of(self, pot: Pot) -> Recordings:
        """The recordings of a pot."""
        return self.by_pot.setdefault(pot.bounded[0], Recordings())

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

    def step(self, pots: Sequence[Pot], ids: Tensor, watched: bool) -> tuple[Tensor, Tensor] | None:
        """Read ids [B, 1], a token into each pot, by a `Step`, and return its result. None, and
        nothing is read, if these pots have no step.

        watched: attention statistics must be updated; not for an answer that is removed again.
        """
        runner = self.runner()
        assert runner is not None
        if not self.possible(ids) or not all(slotted(pot, watched) for pot in pots):
            return None
        for layer in (layer for pot in pots for layer in pot.bounded):
            layer.reserve(1)
        steps = self.of(pots[0]).steps
        own = next((step for step in steps if step.serves(pots)), None)
        if own is None:
            own = Step(runner, pots)
            steps[:] = [own, *steps[: STEPS - 1]]
        try:
            with IN_USE:  # recordings share their memory
                return own(pots, ids, self.record)
        except RuntimeError as problem:
            if own.recording is not None or own.calls < 2:  # not because of the recording
                raise
            self._give_up(problem)
            return None

    def cycle(self, pot: Pot, key: Any, ids: Tensor, catalyst: Tensor | None, run: Run) -> bool:
        """Do `run` with ids [1, T] and a catalyst, by a recording of the pot. False, and nothing is
        done, if it cannot be recorded.

        The first cycle with a key runs without a recording, as kernels must not be loaded during a
        recording. key: what the recording depends on, beside the addresses of the slots.
        """
        distilled = pot.distillations > 0 and not pot.fresh.shape[1]
        if not self.possible(ids) or not distilled or not steady(pot):
            return False
        if key not in self.methods:
            self.methods.add(key)
            run(ids, catalyst)
            return True
        key = (key, addresses(pot))
        cycles = self.of(pot).cycles
        if key not in cycles:
            if len(cycles) >= CYCLES:
                cycles.clear()
            try:
                with IN_USE:
                    cycles[key] = Cycle(pot, ids, catalyst, run, self.record)
            except RuntimeError as problem:
                self._give_up(problem)
                return False
        with IN_USE:
            cycles[key](pot, ids, catalyst)
        return True

    def record_nothing(self) -> None:
        """Use no recordings from now on."""
        self.unrecordable = True

    def _give_up(self, problem: Exception) -> None:
        self.record_nothing()
        log.info(
            "%s cannot be recorded as a CUDA graph: %s",
            type(getattr(self.runner(), "model", None)).__name__,
            problem,
        )


_CACHES: WeakKeyDictionary[ModelRunner, GraphCache] = WeakKeyDictionary()


def graph_cache(runner: ModelRunner) -> GraphCache:
    """The model's recordings."""
    with IN_USE:
        if runner not in _CACHES:
            _CACHES[runner] = GraphCache(runner)
        return _CACHES[runner]
