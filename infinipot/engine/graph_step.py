"""A decoding step, one token for each of several pots, as code that a CUDA graph can record."""

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
    """Address and size of the pot's slots, two for each bounded layer."""
    return tuple(
        (slots.data.data_ptr(), slots.size) for layer in pot.bounded for slots in layer.slots
    )


class Recording:
    """A CUDA graph of `run`. `outputs`: its return value, at fixed addresses.

    device, stream: those of the model, which need not be the current ones. how: options of
    `torch.cuda.graph`.
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
    """A decoding step for several pots. The slot of each pot is a number on the device.

    Attention covers all slots and masks the free ones, so that one recording serves every length.
    """

    def __init__(self, runner: ModelRunner, pots: Sequence[Pot]) -> None:
        self.runner = weakref.ref(runner)  # which owns this step
        self.rows = [[weakref.ref(layer) for layer in pot.bounded] for pot in pots]
        self.addresses = [addresses(pot) for pot in pots]
        self.ids = torch.zeros(len(pots), 1, dtype=torch.long, device=runner.device)
        self.indices = torch.zeros(len(pots), dtype=torch.long, device=runner.device)
        self.common = [(layer.rotation, layer.capacity) for layer in pots[0].bounded]
        """Rotation and capacity of each layer. The layers themselves must not be kept alive."""
        self.places = [
            self._places(layers) for layers in zip(*(pot.bounded for pot in pots), strict=True)
        ]
        self.masks: dict[tuple[int, int], Tensor] = {}
        """By row and size: an additive mask of the free slots, [1, size]."""
        self.recording: Recording | None = None
        self.calls = 0

    def _places(self, layers: Sequence[PotLayer]) -> Tensor | None:
        """Addresses [3, B] of a layer's raw keys, rotated keys and values in all pots; None if their
        sizes differ."""
        if len({(layer.capacity, layer.rotated is None) for layer in layers}) > 1:
            return None
        raw = [layer.slots[0].data for layer in layers]
        rotated = [layer.rotated for layer in layers if layer.rotated is not None] or raw
        buffers = [raw, rotated, [layer.slots[1].data for layer in layers]]
        if not all(x.shape == raw[0].shape and x.is_contiguous() for row in buffers for x in row):
            return None
        return torch.tensor(
            [[x.data_ptr() for x in row] for row in buffers], device=self.ids.device
        )

    def serves(self, pots: Sequence[Pot]) -> bool:
        """Whether this step is for these pots, and their slots have not moved."""
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
            if rotation is not None:
                rows = [rotation.covered(x, self.indices) for x in rows]
            query, rotated = rows
            launch.append(key, rotated.transpose(0, 2), value, places, self.indices, capacity)
            return launch.attend(
                query.transpose(0, 2), places, self.indices, capacity, key.shape[1], scaling
            )
        own = zip(query.split(1), key.split(1), value.split(1), strict=True)
        return torch.cat(
            [self._attend(row, module, qkv, scaling, options) for row, qkv in enumerate(own)]
        )

    def _attend(
        self,
        row: int,
        module: nn.Module,
        qkv: tuple[Tensor, Tensor, Tensor],
        scaling: float,
        options: dict[str, Any],
    ) -> Tensor:
        """Attention of one pot's new token, [1, 1, H, D]. qkv: its query, key and value, raw."""
        query, key, value = qkv
        layer = self.rows[row][module.layer_idx]()  # type: ignore[index]
        slot = self.indices[row : row + 1]
        assert layer is not None
        for slots, x in zip(layer.slots, (key, value), strict=True):
            slots.data.index_copy_(2, slot, x)
        if layer.rotation is not None:
            query = layer.rotation.covered(query, slot)
            if layer.rotated is not None:
                layer.rotated.index_copy_(2, slot, layer.rotation.covered(key, slot))
        keys = layer.read_keys(0, layer.capacity)
        values = layer.slots[1].data
        mask = self._mask(row, layer.capacity, query)
        if not plain(options):
            return attention(module, (query, keys, values), scaling, mask, options)
        # the query heads of a KV head as rows: no kernel repeats keys
        grouped = query.reshape(1, keys.shape[1], -1, query.shape[-1])
        out = F.scaled_dot_product_attention(
            grouped, keys, values, attn_mask=mask.expand(1, 1, grouped.shape[2], -1), scale=scaling
        )
        return out.reshape(1, 1, query.shape[1], -1)

    def _mask(self, row: int, size: int, query: Tensor) -> Tensor:
        """An additive mask [1, size] of the free slots of a pot, in the query's dtype."""
        if (row, size) not in self.masks:
            free = torch.arange(size, device=query.device) > self.indices[row : row + 1]
            mask = torch.zeros_like(free, dtype=query.dtype)
            self.masks[row, size] = mask.masked_fill(free, -torch.inf)[None]
        return self.masks[row, size]

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

        Returns hidden states [B, 1, hidden] and next-token logits [B, V] float32. record: makes a
        recording; None to record nothing.
        """
        self.ids.copy_(ids)
        self.indices.copy_(torch.tensor([pot.length for pot in pots]))
        self.calls += 1
        # the first call is not recorded: kernels must not be loaded during a recording
        if record is not None and self.calls > 1:
            if self.recording is None:
                self.recording = record(self._run)
            self.recording.graph.replay()
            # the next replay overwrites the outputs
            hidden, logits = (x.clone() for x in self.recording.outputs)
        else:
            hidden, logits = self._run()
        for pot in pots:
            pot.advance(1)
        return hidden, logits
