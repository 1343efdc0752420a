"""Several pots as one cache: one forward pass for the texts of all, one behind the other in a single
row, with separate attention for each text.

There is no padding. Pots and texts may differ in length, and each has the same result as alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from infinipot.compat import Cache, CacheLayerMixin


class PassthroughLayer(CacheLayerMixin):
    """Stores nothing: attention has its own entries."""

    is_compileable = is_croppable = is_sliding = False

    def __init__(self) -> None:
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None: ...

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        return key_states, value_states

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0

    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        return -1


class BatchedLayer(PassthroughLayer):
    """The same layer of several pots. The row has `counts[b]` tokens for pot b. `entries`: the
    rotated keys and the values of each pot.

    places: positions of the row's tokens by those of the pots' first ones. All layers share them.
    """

    def __init__(
        self, layers: Sequence[Any], counts: Sequence[int], places: dict[tuple[int, ...], Tensor]
    ) -> None:
        super().__init__()
        self.layers = layers
        self.counts = list(counts)
        self.places = places
        self.is_sliding = layers[0].is_sliding
        self.alike = False
        """Whether the layers rotate alike, so that one operation rotates for all."""
        self.entries: list[tuple[Tensor, Tensor]] = []

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append each pot's own of the new entries [1, K, N, D] to it. Attention reads `entries`
        instead of the return value."""
        self.alike = rotate_alike(self.layers, self.counts)
        parts = zip(
            self.layers,
            key_states.split(self.counts, dim=2),
            value_states.split(self.counts, dim=2),
            self.rotate(key_states, [layer.position for layer in self.layers]),
            strict=True,
        )
        self.entries = [
            layer.update(key, value, rotated=ready) for layer, key, value, ready in parts
        ]
        return key_states, value_states

    def rotate_queries(self, query: Tensor) -> Sequence[Tensor]:
        """Rotate the queries [1, H, N, D] of the newest entries. Returns those of each pot."""
        rows = list(zip(self.layers, self.counts, strict=True))
        rotated = self.rotate(query, [layer.position - count for layer, count in rows])
        parts = zip(self.layers, query.split(self.counts, dim=2), rotated, strict=True)
        return [
            layer.rotate_queries(raw) if ready is None else ready for layer, raw, ready in parts
        ]

    def rotate(self, x: Tensor, starts: Sequence[int]) -> Sequence[Tensor | None]:
        """Rotate x [1, heads, N, D], whose vectors for pot b have the positions from starts[b] on, in
        one operation. Returns a tensor for each pot; None if each layer must rotate its own."""
        if not self.alike:
            return [None] * len(self.layers)
        key = tuple(starts)
        if key not in self.places:
            rows = zip(starts, self.counts, strict=True)
            positions = [place for start, count in rows for place in range(start, start + count)]
            self.places[key] = torch.tensor(positions, device=x.device)
        places = self.places[key].to(x.device)  # layers may be on several devices
        rotated: Tensor = self.layers[0].rotation.rotate_to(x, places)
        return rotated.split(self.counts, dim=2)

    def get_seq_length(self) -> int:
        return max(layer.get_seq_length() for layer in self.layers)


class BatchedCache(Cache):
    """The cache argument of a model that reads `counts[b]` tokens into pot b."""

    def __init__(self, pots: Sequence[Any], counts: Sequence[int]) -> None:
        by_layer = zip(*(pot.layers for pot in pots), strict=True)
        places: dict[tuple[int, ...], Tensor] = {}
        super().__init__(layers=[BatchedLayer(layers, counts, places) for layers in by_layer])


def rotate_alike(layers: Sequence[Any], counts: Sequence[int]) -> bool:
    """Whether all layers rotate a slot alike: by slot, with equal tables, which do not grow with
    `counts[b]` more entries."""
    return all(
        _rotates_as(layers[0], layer, count) for layer, count in zip(layers, counts, strict=True)
    )


def _rotates_as(one: Any, other: Any, count: int) -> bool:
    if not (
        other.window is None
        and other.is_initialized
        and other.reset
        and other.size
        and other.rotation is not None
        and other.length + count <= other.capacity
    ):
        return False
    return one.rotation is other.rotation or len(one.rotation.tables[one.device].places) == len(
        other.rotation.tables[other.device].places
    )
