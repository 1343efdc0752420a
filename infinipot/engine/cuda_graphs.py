"""A fixed pot has fixed shapes: on a GPU a cycle of reading, and a step of answering, are recorded once and replayed as CUDA graphs.

What is recorded is the code that runs otherwise, so results are its own. A model that cannot be recorded (its experts are chosen on the
host, say) goes on without; so does one that does not stand in slots alone.
"""

from __future__ import annotations

import copy
import logging
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from infinipot.cache.batch import Passing
from infinipot.cache.layer import PotLayer
from infinipot.cache.pot import Layout, Pot
from infinipot.compat import Cache
from infinipot.kernels import launch
from infinipot.model.attention import IN_USE, Worker, at_work, attention, plain
from infinipot.model.fused_norms import fused
from infinipot.model.runner import Host

log = logging.getLogger("infinipot")

CYCLES = 4
"""Recordings of cycles kept for a pot: of the methods and lengths of catalyst in use."""


def slotted(pot: Pot, watched: bool) -> bool:
    """Whether all of the pot's layers are slots in the model's own type, read as they are. watched: and remember no attention."""
    return pot.grouping is None and all(
        layer.window is None and layer.is_initialized and layer.kind is None and layer.reset and not (watched and layer.witness)
        for layer in pot.layers
    )


def steady(pot: Pot) -> bool:
    """Whether all of the pot's layers are slots that stay where they are for good, and remember nothing else."""
    return pot.size is not None and slotted(pot, watched=True)


def addresses(pot: Pot) -> tuple[int, ...]:
    return tuple(slots.data.data_ptr() for layer in pot.bounded for slots in layer.slots)


def new_pot(host: Host, layout: Layout) -> Pot:
    """An empty pot. What was recorded for the pot dropped last serves this one, if it has the same layout and so can take its slots."""
    with IN_USE:  # two threads must not take the same one
        spare, host.spare = host.spare, None
    pot = host.new_pot(layout) if spare is None or spare[0] != layout else spare[1]
    pot.clear()
    weakref.finalize(pot, _dropped, host, layout, copy.copy(pot)).atexit = False
    return pot


def _dropped(host: Host, layout: Layout, parts: Pot) -> None:
    """Keep what a pot was made of. parts: a copy that shares all of it."""
    if layout.size is not None and layout.witness is None and (parts.cycles or parts.steps):
        host.spare = (layout, parts)


class Recording:
    """One CUDA graph, made of what `run` does; `outputs` are what it returned, at fixed addresses.

    The model may be on another card than the current one, where nothing of what it does would be recorded: hence device and stream.
    """

    def __init__(self, host: Host, run: Callable[[], Any]) -> None:
        with torch.cuda.device(host.device):
            if host.first_graph is None:  # the memory that recordings share lives as long as one of them: this one
                host.first_graph = torch.cuda.CUDAGraph(), torch.cuda.Stream()
                with torch.cuda.graph(host.first_graph[0], stream=host.first_graph[1]):
                    torch.zeros(1, device=host.device)
            first, stream = host.first_graph
            self.graph = torch.cuda.CUDAGraph()
            # thread_local: what other threads do meanwhile (pick a token, say) does not end the recording
            with torch.cuda.graph(self.graph, pool=first.pool(), stream=stream, capture_error_mode="thread_local"):
                self.outputs = run()


class Cycle:
    """From one distillation to the next: `run` reads a chunk [1, T] that fills the pot, with a catalyst [1, |P|] or None, and distils it.

    It must be called when the pot has just been distilled.
    """

    def __init__(self, host: Host, pot: Pot, count: int, catalyst: Tensor | None, run: Callable[[Tensor, Tensor | None], None]) -> None:
        self.ids = torch.zeros(1, count, dtype=torch.long, device=host.device)
        self.catalyst = None if catalyst is None else catalyst.clone()
        self.clock = torch.zeros((), dtype=torch.long, device=host.device)
        assert pot.hidden is not None
        self.hidden = pot.hidden.clone()
        self.kept = [{name: x for name in ("index", "novelty", "past") if (x := getattr(layer, name)) is not None} for layer in pot.bounded]
        numbers = [(layer.length, layer.position, layer.peak) for layer in pot.bounded]
        before = (pot.tokens_read, pot.distillations, pot.distill_s, pot.novelty, pot.fresh, pot.hidden)

        def record() -> None:
            pot.tokens_read, pot.hidden = self.clock, self.hidden  # type: ignore[assignment]
            run(self.ids, self.catalyst)
            self.hidden.copy_(pot.hidden)
            for layer, kept in zip(pot.bounded, self.kept, strict=True):
                for name, static in kept.items():
                    static.copy_(getattr(layer, name))

        try:
            self.recording = Recording(host, record)
        finally:  # nothing has been read yet: recording runs nothing
            pot.tokens_read, pot.distillations, pot.distill_s, pot.novelty, pot.fresh, pot.hidden = before
            for layer, kept, known in zip(pot.bounded, self.kept, numbers, strict=True):
                layer.length, layer.position, layer.peak = known
                for name, static in kept.items():
                    setattr(layer, name, static)

    def __call__(self, pot: Pot, ids: Tensor, catalyst: Tensor | None) -> None:
        assert pot.hidden is not None
        self.ids.copy_(ids)
        if self.catalyst is not None and catalyst is not None:
            self.catalyst.copy_(catalyst)
        self.clock.fill_(pot.tokens_read)
        self.hidden.copy_(pot.hidden)
        for layer, kept in zip(pot.bounded, self.kept, strict=True):
            layer.peak = max(layer.peak, layer.size or 0)
            for name, static in kept.items():
                if getattr(layer, name) is not static:  # distilled otherwise in between
                    static.copy_(getattr(layer, name))
                    setattr(layer, name, static)
        self.recording.graph.replay()
        pot.hidden, pot.logits = self.hidden.clone(), None
        pot.tokens_read += ids.shape[1]
        pot.distillations += 1


class Step(Worker):
    """One token for each of several pots, wherever it goes: the slot is a number on the device, and all slots are looked at, those not
    taken yet masked. So one recording serves as long as their slots are there."""

    def __init__(self, host: Host, pots: Sequence[Pot]) -> None:
        self.host = weakref.ref(host)  # which may hold this step, in its spare pot
        self.rows = [[weakref.ref(layer) for layer in pot.bounded] for pot in pots]
        self.addresses = [addresses(pot) for pot in pots]
        self.ids = torch.zeros(len(pots), 1, dtype=torch.long, device=host.device)
        self.slots = torch.zeros(len(pots), dtype=torch.long, device=host.device)
        self.layers = pots[0].bounded
        """One pot's, for what all have in common."""
        self.places = [self._places(layers) for layers in zip(*(pot.bounded for pot in pots), strict=True)]
        self.unseen: dict[tuple[int, int], Tensor] = {}
        """By row and size: what hides the slots not taken yet, [1, size]."""
        self.recording: Recording | None = None
        self.calls = 0

    def _places(self, layers: Sequence[PotLayer]) -> Tensor | None:
        """Addresses [3, B] of a layer's raw keys, rotated keys and values in all pots; None where their sizes differ."""
        if len({(layer.capacity, layer.rotated is None) for layer in layers}) > 1:
            return None
        raw = [layer.slots[0].data for layer in layers]
        turned = [keys if layer.rotated is None else layer.rotated for layer, keys in zip(layers, raw, strict=True)]
        buffers = [raw, turned, [layer.slots[1].data for layer in layers]]
        if not all(x.shape == raw[0].shape and x.is_contiguous() for row in buffers for x in row):
            return None
        return torch.tensor([[x.data_ptr() for x in row] for row in buffers], device=self.ids.device)

    def serves(self, pots: Sequence[Pot]) -> bool:
        same = len(pots) == len(self.rows) and all(row[0]() is pot.bounded[0] for row, pot in zip(self.rows, pots, strict=True))
        return same and [addresses(pot) for pot in pots] == self.addresses

    def attend(self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, scaling: float, options: dict[str, Any]) -> Tensor:
        number: int = module.layer_idx  # type: ignore[assignment]
        places = self.places[number]
        if places is not None and plain(options) and launch.attends(query, key.shape[1]):
            layer = self.layers[number]
            rows = [x.transpose(0, 2) for x in (query, key)]  # [1, heads, B, D]: each row turns by its own slot
            query, turned = (x if layer.rotation is None else layer.rotation.covered(x, self.slots) for x in rows)
            launch.append(key, turned.transpose(0, 2), value, places, self.slots, layer.capacity)
            return launch.attend(query.transpose(0, 2), places, self.slots, layer.capacity, key.shape[1], scaling)
        return torch.cat([self._attend(row, module, query, key, value, scaling, options) for row in range(len(self.rows))])

    def _attend(
        self, row: int, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, scaling: float, options: dict[str, Any]
    ) -> Tensor:
        layer, own, slot = self.rows[row][module.layer_idx](), slice(row, row + 1), self.slots[row : row + 1]  # type: ignore[index]
        assert layer is not None
        for slots, x in zip(layer.slots, (key, value), strict=True):
            slots.data.index_copy_(2, slot, x[own])
        if layer.rotated is not None and layer.rotation is not None:
            layer.rotated.index_copy_(2, slot, layer.rotation.covered(key[own], slot))
        query = query[own] if layer.rotation is None else layer.rotation.covered(query[own], slot)
        keys, values, size = layer.read_keys(0, layer.capacity), layer.slots[1].data, layer.capacity
        if (row, size) not in self.unseen:
            taken = torch.arange(size, device=query.device) <= slot
            self.unseen[row, size] = torch.zeros_like(taken, dtype=query.dtype).masked_fill(~taken, -torch.inf)[None]
        mask = self.unseen[row, size]
        if not plain(options):
            return attention(module, query, keys, values, scaling, mask, options)
        grouped = query.reshape(1, keys.shape[1], -1, query.shape[-1])  # the query heads of a KV head as rows: no kernel repeats keys
        out = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=mask.expand(1, 1, grouped.shape[2], -1), scale=scaling)
        return out.reshape(1, 1, query.shape[1], -1)

    @torch.no_grad()
    def _run(self) -> tuple[Tensor, Tensor]:
        self.unseen.clear()
        host = self.host()
        assert host is not None
        given = {host.cache_argument: Cache(layers=[Passing() for _ in host.windows])}
        with at_work(host.model, self), fused(host.norms):
            output = host.model.base_model(input_ids=self.ids, position_ids=self.slots[:, None], use_cache=True, **given)
        return output.last_hidden_state, host.head(output.last_hidden_state)[:, -1].float()

    def __call__(self, pots: Sequence[Pot], ids: Tensor) -> tuple[Tensor, Tensor]:
        """Read ids [B, 1], a token into each pot, which must have room. Returns hidden states [B, 1, hidden] and the logits [B, V] of what
        comes next, float32."""
        self.ids.copy_(ids)
        self.slots.copy_(torch.tensor([pot.length for pot in pots]))
        self.calls += 1
        if ids.is_cuda and self.calls > 1:  # the first call is as it is: it loads what must not be loaded while recording
            if self.recording is None:
                host = self.host()
                assert host is not None
                self.recording = Recording(host, self._run)
            self.recording.graph.replay()
            hidden, logits = (x.clone() for x in self.recording.outputs)  # the next replay writes there again
        else:
            hidden, logits = self._run()
        for pot in pots:
            for layer in pot.bounded:
                layer.length, layer.position = layer.length + 1, layer.position + 1
                layer.peak = max(layer.peak, layer.length)
        return hidden, logits


def step(host: Host, pots: Sequence[Pot], ids: Tensor, watched: bool) -> tuple[Tensor, Tensor] | None:
    """Read ids [B, 1], a token into each pot, by their step, which is kept with the first of them; what `Step` returns.

    watched: whether attention must be remembered where the policy asks for it: not for an answer that is forgotten again. None, and
    nothing read, where there is no step.
    """
    if host.device.type != "cuda" or host.unrecordable or not all(slotted(pot, watched) for pot in pots):
        return None
    for layer in (layer for pot in pots for layer in pot.bounded):
        layer.reserve(1)
    own = next((known for known in pots[0].steps if known.serves(pots)), None)
    if own is None:
        own = Step(host, pots)
        pots[0].steps[:] = [own, *pots[0].steps[:3]]
    try:
        with IN_USE:  # recordings share their memory
            return own(pots, ids)
    except RuntimeError as problem:
        if own.recording is not None or own.calls < 2:  # not for being recorded
            raise
        _unrecordable(host, problem)
        return None


def cycle(host: Host, pot: Pot, key: Any, ids: Tensor, catalyst: Tensor | None, run: Callable[[Tensor, Tensor | None], None]) -> bool:
    """Do what `run` does with ids [1, T] and a catalyst by a recording of it, kept with the pot. False, and nothing done, where there is none.

    A model's first such cycle runs as it is and loads what must not be loaded while recording; from the next on there is one for each pot.
    key: what the recording depends on, beside where the pot's slots are.
    """
    if not ids.is_cuda or host.unrecordable or not (pot.distillations and not pot.fresh.shape[1] and steady(pot)):
        return False
    if key not in host.ran:
        host.ran.add(key)
        run(ids, catalyst)
        return True
    key = (key, addresses(pot))
    if key not in pot.cycles:
        if len(pot.cycles) >= CYCLES:
            pot.cycles.clear()
        try:
            with IN_USE:
                pot.cycles[key] = Cycle(host, pot, ids.shape[1], catalyst, run)
        except RuntimeError as problem:
            _unrecordable(host, problem)
            return False
    with IN_USE:
        pot.cycles[key](pot, ids, catalyst)
    return True


def _unrecordable(host: Host, problem: Exception) -> None:
    """Remember that this model cannot be recorded."""
    host.unrecordable = True
    log.info("%s cannot be recorded as a CUDA graph: %s", type(host.model).__name__, problem)
