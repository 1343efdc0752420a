"""A fixed pot has fixed shapes: on a GPU a cycle of reading, and a step of answering, are recorded
once and replayed as CUDA graphs.

What is recorded is the code that runs otherwise, so results are its own. A model that cannot be
recorded (its experts are chosen on the host, say) goes on without; so does one that does not stand
in slots alone.
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
"""Recordings of cycles kept for a pot: of the methods and lengths of catalyst in use."""
STEPS = 4
"""Recordings of steps kept for a pot: of the pots that answer together with it."""
Run = Callable[[Tensor, Tensor | None], None]
"""Reads ids [1, T], with a catalyst [1, |P|] or None, and distils."""


def slotted(pot: Pot, watched: bool) -> bool:
    """Whether all of the pot's layers are slots in the model's own type, read as they are. watched:
    and remember no attention."""
    return pot.grouping is None and all(
        layer.window is None
        and layer.is_initialized
        and layer.kind is None
        and layer.reset
        and not (watched and layer.attention_stats)
        for layer in pot.layers
    )


def steady(pot: Pot) -> bool:
    """Whether all of the pot's layers are slots that stay where they are for good, and remember
    nothing else."""
    return pot.size is not None and slotted(pot, watched=True)


class Cycle:
    """From one distillation to the next: `run` reads a chunk [1, T] that fills the pot, and distils
    it.

    Its catalyst is [1, |P|] or None. It must be called when the pot has just been distilled.
    """

    def __init__(
        self, pot: Pot, ids: Tensor, catalyst: Tensor | None, run: Run, record: Record
    ) -> None:
        self.ids = torch.zeros_like(ids, memory_format=torch.contiguous_format)
        if catalyst is None:
            self.catalyst = None
        else:
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
    """Of one pot, whatever object holds its slots."""

    cycles: dict[Any, Cycle] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)


class GraphCache:
    """All that is recorded of one model, by the pots whose slots it reads and writes.

    unrecordable: this model cannot be recorded, or no more. spare: what the pot dropped last was
    made of, and its layout.
    """

    def __init__(self, runner: ModelRunner) -> None:
        self.runner = weakref.ref(runner)
        # a recording sees neither a state that goes back, nor other processes, nor the streams of
        # other devices
        devices = {weight.device for weight in runner.model.parameters()}
        self.unrecordable = any(runner.states) or runner.sharded or len(devices) > 1
        self.spare: tuple[Layout, Pot] | None = None
        self.first: tuple[torch.cuda.CUDAGraph, torch.cuda.Stream] | None = None
        self.methods: set[Any] = set()
        """The kinds of cycle that have run once as they are."""
        self.by_pot: WeakKeyDictionary[PotLayer, Recordings] = WeakKeyDictionary()
        """By the first layer, which a pot shares with nothing but the parts it leaves behind."""

    def new_pot(self, layout: Layout) -> Pot:
        """An empty pot. It takes the slots, and so the recordings, of the pot dropped last, if that
        had the same layout."""
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
        """Keep what a pot was made of. parts: a copy that shares all of it."""
        if (
            layout.size is not None
            and layout.attention_stats is None
            and parts.bounded[0] in self.by_pot
        ):
            self.spare = (layout, parts)

    def of(self, pot: Pot) -> Recordings:
        """What is recorded for a pot."""
        return self.by_pot.setdefault(pot.bounded[0], Recordings())

    def possible(self, ids: Tensor) -> bool:
        """Whether what reads these ids can be recorded."""
        return ids.is_cuda and not self.unrecordable

    def record(self, run: Callable[[], Any]) -> Recording:
        runner = self.runner()
        assert runner is not None
        # the memory that recordings share lives as long as one of them: this one
        if self.first is None:
            with torch.cuda.device(runner.device):
                stream = torch.cuda.Stream()
            self.first = (
                Recording(
                    lambda: torch.zeros(1, device=runner.device), runner.device, stream
                ).graph,
                stream,
            )
        graph, stream = self.first
        # thread_local: what other threads do meanwhile (pick a token, say) does not end the
        # recording
        return Recording(
            run, runner.device, stream, pool=graph.pool(), capture_error_mode="thread_local"
        )

    def step(self, pots: Sequence[Pot], ids: Tensor, watched: bool) -> tuple[Tensor, Tensor] | None:
        """Read ids [B, 1], a token into each pot, by their step, which is kept for the first of
        them; what `Step` returns.

        watched: whether attention must be remembered where the policy asks for it: not for an
        answer that is forgotten again. None, and nothing read, where there is no step.
        """
        runner = self.runner()
        assert runner is not None
        if not self.possible(ids) or not all(slotted(pot, watched) for pot in pots):
            return None
        for layer in (layer for pot in pots for layer in pot.bounded):
            layer.reserve(1)
        steps = self.of(pots[0]).steps
        own = next((known for known in steps if known.serves(pots)), None)
        if own is None:
            own = Step(runner, pots)
            steps[:] = [own, *steps[: STEPS - 1]]
        try:
            with IN_USE:  # recordings share their memory
                return own(pots, ids, self.record)
        except RuntimeError as problem:
            if own.recording is not None or own.calls < 2:  # not for being recorded
                raise
            self._give_up(problem)
            return None

    def cycle(self, pot: Pot, key: Any, ids: Tensor, catalyst: Tensor | None, run: Run) -> bool:
        """Do what `run` does with ids [1, T] and a catalyst, by a recording that is kept for the
        pot.

        False, and nothing done, where there is none. A model's first such cycle runs as it is and
        loads what must not be loaded while recording; from the next on there is one for each pot.
        key: what the recording depends on, beside where the pot's slots are.
        """
        if not self.possible(ids) or not (
            pot.distillations and not pot.fresh.shape[1] and steady(pot)
        ):
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
        """Run everything as it is from now on."""
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
