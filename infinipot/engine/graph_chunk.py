"""Reading a chunk into one pot, as code that a CUDA graph can record for any pot and any place in it."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from infinipot.cache.pot import Pot
from infinipot.engine.graph_step import AddressForward
from infinipot.engine.observe import ByLayer, CatalystLook
from infinipot.engine.recording import Record
from infinipot.kernels import chunks as kernels
from infinipot.kernels import pots
from infinipot.kernels.distill import Part
from infinipot.machine import on_device
from infinipot.model.attention import Visible, attention, plain, visible
from infinipot.model.runner import ModelRunner
from infinipot.scoring.representativeness import Scoring


class Chunk(AddressForward):
    """Reads at most `rows` tokens into one pot. Fewer tokens are padded at the end.

    size: at least the slots of the pot. look: observes the attention from the last tokens, which are
    the catalyst, at most `look.rows` of them; None: nothing.
    """

    def __init__(
        self, runner: ModelRunner, pot: Pot, rows: int, size: int, look: CatalystLook | None
    ) -> None:
        super().__init__(runner, pot, 1)
        self.size = size
        self.look = look
        self.ids = torch.zeros(1, rows, dtype=torch.long, device=runner.device)
        self.rows = torch.arange(rows, device=runner.device)
        self.span = torch.zeros(3, dtype=torch.long, device=runner.device)
        """The slot of the first token, the number of tokens, and of those of the catalyst."""
        self.slots = self.rows
        """The slot of each row, during a call. Padding has that of the last token."""
        self.place: tuple[Pot, int, int] | None = None
        """For the twin in plain torch, during a call: the pot, and the slots from .. to."""
        self.scores: ByLayer = {}

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
        softmax = pots.Softmax(scaling, options.get("softcap"), options.get("s_aux"))
        if not pots.supports(query):
            return self.attend_plainly(module, (query, key, value), softmax, options)
        all_places, span, slots = self.inputs[query.device]
        rotation = self.rotations[number]
        rotated = query
        if rotation is not None:
            rotated = rotation.rotate_to(query, slots)
        places = pots.Places(all_places[number], self.kind)
        kernels.store(key, value, places, span)
        keys, values = kernels.fetch(key, value, places, span, self.tables[number], self.size)
        if self.look is not None:
            part = Part(span, self.look.rows)
            self.scores[number] = self.look.recorded(rotated, keys, Scoring(*softmax), part)
        return kernels.attend(rotated, keys, values, span, softmax)

    def attend_plainly(
        self,
        module: nn.Module,
        qkv: tuple[Tensor, Tensor, Tensor],
        softmax: pots.Softmax,
        options: dict[str, Any],
    ) -> Tensor:
        """The twin of the kernels."""
        assert self.place is not None
        pot, start, stop = self.place
        number: int = module.layer_idx  # type: ignore[assignment]
        query, key, value = (x[:, :, : stop - start] for x in qkv)
        layer = pot.layers[number]
        layer.write(start, key, value)
        rotated = layer.rotate_from(query, start)
        keys = layer.read_keys(0, stop)
        if self.look is not None:
            self.scores[number] = self._look_plainly(rotated, keys, Scoring(*softmax))
        what = Visible(stop - start, stop, None, (0, 0), query.device, query.dtype, plain(options))
        qkv = (rotated, keys, layer.read_values(0, stop))
        out = attention(module, qkv, softmax.scaling, visible(what), options)
        return F.pad(out, (0, 0, 0, 0, 0, len(self.rows) - (stop - start)))

    def _look_plainly(self, query: Tensor, key: Tensor, scoring: Scoring) -> Tensor:
        """What `look` sees of the catalyst, [1, K, size]; 0 behind the entries before it."""
        assert self.look is not None
        look = CatalystLook(int(self.span[2]), self.look.gqa)
        scores = look(query, key, scoring)
        return F.pad(scores, (0, self.size - scores.shape[-1]))

    @torch.no_grad()
    def _run(self) -> tuple[Tensor, ...]:
        self.scores.clear()
        start, count, _ = self.span
        self.slots = start + torch.minimum(self.rows, count - 1)
        self.spread(self.places, self.span, self.slots)
        hidden = self.trunk(self.ids, self.slots[None])
        scores = [
            torch.stack([self.scores[number] for number in numbers])
            for numbers in self._scored_layers()
        ]
        return hidden, *scores

    def _scored_layers(self) -> list[list[int]]:
        """The numbers of the layers with scores, by their devices."""
        by_device: dict[torch.device, list[int]] = {}
        for number in sorted(self.scores):
            by_device.setdefault(self.devices[number], []).append(number)
        return list(by_device.values())

    def __call__(
        self, pot: Pot, ids: Tensor, catalyst: int = 0, record: Record | None = None
    ) -> tuple[Tensor, ByLayer]:
        """Read ids [1, T], T at most `rows`, into a pot, which must have room. Returns hidden states
        [1, T, hidden], and what `look` saw by layer, [1, K, size].

        catalyst: how many of the last ids are the catalyst. record: as for `Step`.
        """
        start = pot.length
        count = ids.shape[1]
        self.place = (pot, start, start + count)
        self.span.copy_(on_device([start, count, catalyst], self.span.device))
        self.ids[:, :count].copy_(ids)
        places = pot.places
        if self.places.is_cuda:
            places = places.pin_memory()
        self.places.copy_(places[..., None], non_blocking=True)
        hidden, *scores = self.run(self._run, record)
        self.place = None  # or the pot would live as long as this chunk
        pot.advance(count)
        seen: ByLayer = {}
        for numbers, layers in zip(self._scored_layers(), scores, strict=True):
            seen |= zip(numbers, layers, strict=True)
        return hidden[:, :count], seen
