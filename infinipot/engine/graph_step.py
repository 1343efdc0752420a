"""A step of answering, one token for each of several pots, as code that can be recorded."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from infinipot.cache.batch import PassthroughLayer
from infinipot.cache.layer import PotLayer
from infinipot.cache.pot import Pot
from infinipot.compat import Cache
from infinipot.kernels import launch
from infinipot.model.attention import Worker, at_work, attention, plain
from infinipot.model.fused_norms import fused
from infinipot.model.runner import ModelRunner


def addresses(pot: Pot) -> tuple[tuple[int, int], ...]:
    """Where the pot's slots are, and how many."""
    return tuple(
        (slots.data.data_ptr(), slots.size) for layer in pot.bounded for slots in layer.slots
    )


class Recording:
    """One CUDA graph, made of what `run` does; `outputs` are what it returned, at fixed addresses.

    The model may be on another card than the current one, where nothing of what it does would be
    recorded: hence device and stream. how: options of `torch.cuda.graph`.
    """

    def __init__(
        self, run: Callable[[], Any], device: torch.device, stream: torch.cuda.Stream, **how: Any
    ) -> None:
        with torch.cuda.device(device):
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, stream=stream, **how):
                self.outputs = run()


Record = Callable[[Callable[[], Any]], Recording]
"""Makes a recording of a function."""


class Step(Worker):
    """One token for each of several pots, wherever it goes: the slot is a number on the device.

    All slots are attended to, those not taken yet masked. So one recording serves as long as the
    slots are there.
    """

    def __init__(self, runner: ModelRunner, pots: Sequence[Pot]) -> None:
        self.runner = weakref.ref(runner)  # whose recordings this is among
        self.rows = [[weakref.ref(layer) for layer in pot.bounded] for pot in pots]
        self.addresses = [addresses(pot) for pot in pots]
        self.ids = torch.zeros(len(pots), 1, dtype=torch.long, device=runner.device)
        self.indices = torch.zeros(len(pots), dtype=torch.long, device=runner.device)
        self.common = [(layer.rotation, layer.capacity) for layer in pots[0].bounded]
        """Of each layer, what it has in common in all pots; the layers themselves must not be kept
        alive."""
        self.places = [
            self._places(layers) for layers in zip(*(pot.bounded for pot in pots), strict=True)
        ]
        self.masks: dict[tuple[int, int], Tensor] = {}
        """By row and size: what hides the slots not taken yet, [1, size]."""
        self.recording: Recording | None = None
        self.calls = 0

    def _places(self, layers: Sequence[PotLayer]) -> Tensor | None:
        """Addresses [3, B] of a layer's raw keys, rotated keys and values in all pots; None where
        their sizes differ."""
        if len({(layer.capacity, layer.rotated is None) for layer in layers}) > 1:
            return None
        raw = [layer.slots[0].data for layer in layers]
        rotated = [
            keys if layer.rotated is None else layer.rotated
            for layer, keys in zip(layers, raw, strict=True)
        ]
        buffers = [raw, rotated, [layer.slots[1].data for layer in layers]]
        if not all(x.shape == raw[0].shape and x.is_contiguous() for row in buffers for x in row):
            return None
        return torch.tensor(
            [[x.data_ptr() for x in row] for row in buffers], device=self.ids.device
        )

    def serves(self, pots: Sequence[Pot]) -> bool:
        same = len(pots) == len(self.rows) and all(
            row[0]() is pot.bounded[0] for row, pot in zip(self.rows, pots, strict=True)
        )
        return same and [addresses(pot) for pot in pots] == self.addresses

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scaling: float,
        options: dict[str, Any],
    ) -> Tensor:
        number: int = module.layer_idx  # type: ignore[assignment]
        places = self.places[number]
        if places is not None and plain(options) and launch.attends(query, key.shape[1]):
            rotation, capacity = self.common[number]
            # [1, heads, B, D]: each row is rotated by its own slot
            rows = [x.transpose(0, 2) for x in (query, key)]
            query, rotated = (
                x if rotation is None else rotation.covered(x, self.indices) for x in rows
            )
            launch.append(key, rotated.transpose(0, 2), value, places, self.indices, capacity)
            return launch.attend(
                query.transpose(0, 2), places, self.indices, capacity, key.shape[1], scaling
            )
        return torch.cat(
            [
                self._attend(row, module, query, key, value, scaling, options)
                for row in range(len(self.rows))
            ]
        )

    def _attend(
        self,
        row: int,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scaling: float,
        options: dict[str, Any],
    ) -> Tensor:
        layer = self.rows[row][module.layer_idx]()  # type: ignore[index]
        own = slice(row, row + 1)
        slot = self.indices[row : row + 1]
        assert layer is not None
        for slots, x in zip(layer.slots, (key, value), strict=True):
            slots.data.index_copy_(2, slot, x[own])
        if layer.rotated is not None and layer.rotation is not None:
            layer.rotated.index_copy_(2, slot, layer.rotation.covered(key[own], slot))
        if layer.rotation is None:
            query = query[own]
        else:
            query = layer.rotation.covered(query[own], slot)
        keys = layer.read_keys(0, layer.capacity)
        values = layer.slots[1].data
        size = layer.capacity
        if (row, size) not in self.masks:
            taken = torch.arange(size, device=query.device) <= slot
            self.masks[row, size] = torch.zeros_like(taken, dtype=query.dtype).masked_fill(
                ~taken, -torch.inf
            )[None]
        mask = self.masks[row, size]
        if not plain(options):
            return attention(module, query, keys, values, scaling, mask, options)
        # the query heads of a KV head as rows: no kernel repeats keys
        grouped = query.reshape(1, keys.shape[1], -1, query.shape[-1])
        out = F.scaled_dot_product_attention(
            grouped, keys, values, attn_mask=mask.expand(1, 1, grouped.shape[2], -1), scale=scaling
        )
        return out.reshape(1, 1, query.shape[1], -1)

    @torch.no_grad()
    def _run(self) -> tuple[Tensor, Tensor]:
        self.masks.clear()
        runner = self.runner()
        assert runner is not None
        cache = {runner.cache_argument: Cache(layers=[PassthroughLayer() for _ in runner.windows])}
        with at_work(runner.model, self), fused(runner.norms):
            output = runner.model.base_model(
                input_ids=self.ids, position_ids=self.indices[:, None], use_cache=True, **cache
            )
        return output.last_hidden_state, runner.head(output.last_hidden_state)[:, -1].float()

    def __call__(
        self, pots: Sequence[Pot], ids: Tensor, record: Record | None = None
    ) -> tuple[Tensor, Tensor]:
        """Read ids [B, 1], a token into each pot, which must have room.

        Returns hidden states [B, 1, hidden] and the logits [B, V] of what comes next, float32.
        record: makes a recording of a function; None where nothing is to be recorded.
        """
        self.ids.copy_(ids)
        self.indices.copy_(torch.tensor([pot.length for pot in pots]))
        self.calls += 1
        # the first call is as it is: it loads what must not be loaded while recording
        if record is not None and self.calls > 1:
            if self.recording is None:
                self.recording = record(self._run)
            self.recording.graph.replay()
            # the next replay writes there again
            hidden, logits = (x.clone() for x in self.recording.outputs)
        else:
            hidden, logits = self._run()
        for pot in pots:
            pot.advance(1)
        return hidden, logits
