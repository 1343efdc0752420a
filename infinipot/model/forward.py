"""What a forward pass over pots does in attention: entries go into the pot, and queries rotate by
slot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from infinipot.cache.batch import BatchedCache, BatchedLayer
from infinipot.model.attention import Visible, Worker, attention, plain, visible
from infinipot.model.self_extend import grouped_attention
from infinipot.scoring.representativeness import Scoring

QKV = tuple[Tensor, Tensor, Tensor]
"""Rotated queries [B, H, T, D], rotated keys and values [B, K, N, D]."""


@dataclass(frozen=True)
class Observer:
    """look: called for every bounded layer with its number, the new queries [B, H, T, D] and the keys
    of all entries [B, K, P, D], both as attention uses them. alone: this many last rows do not see
    the survivors in the bounded layers, only pinned entries, new entries and each other."""

    look: Callable[[int, Tensor, Tensor, Scoring], None]
    alone: int = 0


class PotForward(Worker):
    """A forward pass over one pot."""

    def __init__(
        self,
        pot: Any,
        observer: Observer | None,
        scorings: dict[int, Scoring],
        modules: dict[int, nn.Module],
    ) -> None:
        """scorings, modules: get those of each bounded layer, by its number."""
        self.pot = self.cache = pot
        self.observer = observer
        self.scorings = scorings
        self.modules = modules
        self.masks: dict[Visible, Tensor | None] = {}

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scaling: float,
        options: dict[str, Any],
    ) -> Tensor:
        layer = self.pot.layers[module.layer_idx]
        rotated = layer.rotate_queries(query)
        return self.attend_rotated(module, query, (rotated, key, value), scaling, options)

    def attend_rotated(
        self, module: nn.Module, raw: Tensor, qkv: QKV, scaling: float, options: dict[str, Any]
    ) -> Tensor:
        """raw: the queries before rotation. Returns [B, T, H, D]."""
        number: int = module.layer_idx  # type: ignore[assignment]
        layer = self.pot.layers[number]
        if layer.window is not None:
            return self._attend(module, qkv, (0, 0), scaling, options)
        query, key, value = qkv
        scoring = Scoring(scaling, options.get("softcap"), options.get("s_aux"))
        self.scorings[number] = scoring
        self.modules[number] = module
        layer.note_attention(raw, query, key, scoring)
        hidden = (0, 0)
        alone = 0
        if self.observer is not None:
            alone = self.observer.alone
            if alone:
                hidden = (self.pot.pinned, layer.index.shape[-1])
            self.observer.look(number, query, key, replace(scoring, hidden=hidden))
        if self.pot.grouping is not None:
            keys = layer.keys[:, :, : layer.length]
            return grouped_attention(raw, keys, value, layer.rotation, self.pot.grouping, scoring)
        if not alone:
            return self._attend(module, qkv, hidden, scaling, options)
        parts = [(query[:, :, -alone:], (key, value), hidden)]
        if query.shape[2] > alone:
            others = [x[:, :, :-alone] for x in qkv]
            parts.insert(0, (others[0], (others[1], others[2]), (0, 0)))
        outputs = [
            self._attend(module, (part, *entries), unseen, scaling, options)
            for part, entries, unseen in parts
        ]
        return torch.cat(outputs, dim=1)

    def _attend(
        self,
        module: nn.Module,
        qkv: QKV,
        hidden: tuple[int, int],
        scaling: float,
        options: dict[str, Any],
    ) -> Tensor:
        """Attention of the last T of N entries. hidden: entries [start, stop) that they do not see."""
        query, key, _ = qkv
        window = self.pot.layers[module.layer_idx].window
        mask = Visible(
            query.shape[-2],
            key.shape[-2],
            window,
            hidden,
            query.device,
            query.dtype,
            plain(options),
        )
        if mask not in self.masks:
            self.masks[mask] = visible(mask)
        return attention(module, qkv, scaling, self.masks[mask], options)


class BatchedForward(Worker):
    """A forward pass over several pots. Each pot's part of the row has its own attention."""

    def __init__(self, forwards: list[PotForward], counts: Sequence[int]) -> None:
        """counts: the tokens of each pot."""
        self.forwards = forwards
        self.cache = BatchedCache([forward.pot for forward in forwards], counts)

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scaling: float,
        options: dict[str, Any],
    ) -> Tensor:
        layer: BatchedLayer = self.cache.layers[module.layer_idx]  # type: ignore[index, assignment]
        outputs = []
        for forward, raw, rotated, entries in zip(
            self.forwards,
            query.split(layer.counts, dim=2),
            layer.rotate_queries(query),
            layer.entries,
            strict=True,
        ):
            qkv = (rotated, *entries)
            outputs.append(forward.attend_rotated(module, raw, qkv, scaling, options))
        return torch.cat(outputs, dim=1)


def positions(pots: Sequence[Any], counts: Sequence[int], device: torch.device) -> Tensor:
    """The slots of each pot's next `counts[b]` entries, one pot behind the other, [1, N] int64."""
    slots = [
        torch.arange(pot.length, pot.length + count, device=device)
        for pot, count in zip(pots, counts, strict=True)
    ]
    return torch.cat(slots)[None]
