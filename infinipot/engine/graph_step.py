"""A decoding step, one token for each of several rows, as code that a CUDA graph can record.

Nothing in a recording depends on a certain pot: kernels find the slots by addresses that are written
before each replay.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from infinipot.cache.batch import PassthroughLayer
from infinipot.cache.pot import Pot
from infinipot.compat import Cache
from infinipot.engine.recording import Record, Recording
from infinipot.kernels import pots as kernels
from infinipot.machine import on_device
from infinipot.model.attention import Worker, at_work, attention
from infinipot.model.fused_norms import fused
from infinipot.model.runner import ModelRunner

ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Rows of recorded steps. A step with other rows uses the next larger one."""


class AddressForward(Worker):
    """A forward pass over pots that are found by address.

    places: [L, 3, rows] int64 on the device, [L, 5, rows] for pots in eight bits, as the kernels take
    them. The twin in plain torch, for tests on a CPU, uses the pots themselves.
    """

    def __init__(self, runner: ModelRunner, pot: Pot, rows: int) -> None:
        self.runner = weakref.ref(runner)  # which owns this
        self.rotations = pot.rotations
        self.devices = runner.devices
        self.tables = self._tables_of(pot)
        self.inputs: dict[torch.device, tuple[Tensor, ...]] = {}
        """What a pass tells the kernels, on the devices of all layers."""
        self.kind = pot.kind
        self.places = pot.places.new_zeros(*pot.places.shape, rows, device=runner.device)
        self.recording: Recording | None = None
        self.calls = 0

    def trunk(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Hidden states of ids at these positions, [B, T, hidden]."""
        runner = self.runner()
        assert runner is not None
        cache = {runner.cache_argument: Cache(layers=[PassthroughLayer() for _ in runner.windows])}
        with at_work(runner.model, self), fused(runner.norms):
            output = runner.model.base_model(
                input_ids=ids, position_ids=positions, use_cache=True, return_dict=True, **cache
            )
        hidden: Tensor = output.last_hidden_state
        return hidden

    def serves(self, pot: Pot) -> bool:
        """Whether a pot rotates by the tables of this pass. A table that grows is a new one."""
        return all(
            own is other or (own and other and own.cos is other.cos)
            for own, other in zip(self.tables, self._tables_of(pot), strict=True)
        )

    def _tables_of(self, pot: Pot) -> list[kernels.Rotary | None]:
        """The rotary tables of each layer, on its device; None for a layer that rotates nothing."""
        tables: list[kernels.Rotary | None] = []
        for rotation, device in zip(pot.rotations, self.devices, strict=True):
            if rotation is None:
                tables.append(None)
            else:
                tables.append(rotation.rotary(device))
        return tables

    def spread(self, *inputs: Tensor) -> None:
        """Copy the inputs of a pass to the devices of all layers."""
        self.inputs = {
            device: tuple(x.to(device, non_blocking=True) for x in inputs)
            for device in dict.fromkeys(self.devices)
        }

    def run(self, work: Callable[[], Any], record: Record | None) -> Any:
        """The results of `work`, by its recording after the first call. Results are copies, because
        the next replay overwrites the outputs. record: None to record nothing."""
        self.calls += 1
        # the first call is not recorded: kernels must not be loaded during a recording
        if record is None or self.calls == 1:
            return work()
        if self.recording is None:
            self.recording = record(work)
        return self.recording.replay()


class Step(AddressForward):
    """A decoding step for up to `rows` tokens, each for a slot of its own in a pot.

    Several rows may belong to one pot: a short text. size: of the largest pot.
    """

    def __init__(self, runner: ModelRunner, pot: Pot, rows: int, size: int) -> None:
        super().__init__(runner, pot, rows)
        self.size = size
        self.ids = torch.zeros(rows, 1, dtype=torch.long, device=runner.device)
        self.slots = torch.full((rows,), -1, dtype=torch.long, device=runner.device)
        self.pots: list[Pot] = []
        """For the twin in plain torch, during a call: the pot of each row."""
        self._placed: list[Tensor] = []

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
        if not kernels.supports(query):
            return self.attend_plainly(module, (query, key, value), scaling, options)
        all_places, slots = self.inputs[query.device]
        places = kernels.Places(all_places[number], self.kind)
        kernels.append(key, value, places, slots)
        return kernels.attend(
            query,
            places,
            slots,
            self.tables[number],
            kernels.Entries(key.shape[1], value.shape[-1], self.size),
            kernels.Softmax(scaling, options.get("softcap"), options.get("s_aux")),
        )

    def attend_plainly(
        self,
        module: nn.Module,
        qkv: tuple[Tensor, Tensor, Tensor],
        scaling: float,
        options: dict[str, Any],
    ) -> Tensor:
        """The twin of the kernels `append` and `attend`, row by row."""
        query, key, value = qkv
        number: int = module.layer_idx  # type: ignore[assignment]
        slots = self.slots.tolist()
        layers = [pot.layers[number] for pot in self.pots]
        for row, layer in enumerate(layers):
            layer.write(slots[row], key[row : row + 1], value[row : row + 1])
        outputs = []
        for row, layer in enumerate(layers):
            rotated = layer.rotate_from(query[row : row + 1], slots[row])
            stop = slots[row] + 1
            entries = (layer.read_keys(0, stop), layer.read_values(0, stop))
            outputs.append(attention(module, (rotated, *entries), scaling, None, options))
        unused = len(query) - len(layers)
        return F.pad(torch.cat(outputs), (0, 0, 0, 0, 0, 0, 0, unused))

    @torch.no_grad()
    def _run(self) -> tuple[Tensor, Tensor]:
        runner = self.runner()
        assert runner is not None
        self.spread(self.places, self.slots)
        hidden = self.trunk(self.ids, self.slots[:, None].clamp(min=0))
        return hidden, runner.head(hidden)[:, -1].float()

    def __call__(
        self, pots: Sequence[Pot], counts: Sequence[int], ids: Tensor, record: Record | None = None
    ) -> tuple[Tensor, Tensor]:
        """Read ids [N, 1]: the next `counts[b]` of them into pot b, which must have room.

        Returns hidden states [N, 1, hidden] and next-token logits [N, V] float32. record: makes a
        recording; None to record nothing.
        """
        self._place(pots, counts)
        slots = [
            slot
            for pot, count in zip(pots, counts, strict=True)
            for slot in range(pot.length, pot.length + count)
        ]
        unused = len(self.slots) - len(slots)
        self.slots.copy_(on_device(slots + [-1] * unused, self.slots.device), non_blocking=True)
        self.ids[: len(ids)].copy_(ids)
        hidden, logits = self.run(self._run, record)
        self.pots = []  # or they would live as long as this step
        for pot, count in zip(pots, counts, strict=True):
            pot.advance(count)
        return hidden[: len(ids)], logits[: len(ids)]

    def _place(self, pots: Sequence[Pot], counts: Sequence[int]) -> None:
        """Write the addresses of the pots, unless they are the same as before."""
        rows = [pot for pot, count in zip(pots, counts, strict=True) for _ in range(count)]
        placed = [pot.places for pot in rows]
        self.pots = rows
        if len(placed) == len(self._placed) and all(map(operator.is_, placed, self._placed)):
            return
        self._placed = placed
        places = torch.stack(placed, dim=2)
        if self.places.is_cuda:
            places = places.pin_memory()
        self.places[:, :, : len(rows)].copy_(places, non_blocking=True)
