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
    rotated keys and the values of each pot."""

    def __init__(self, layers: Sequence[Any], counts: Sequence[int]) -> None:
        super().__init__()
        self.layers = layers
        self.counts = list(counts)
        self.is_sliding = layers[0].is_sliding
        self.entries: list[tuple[Tensor, Tensor]] = []

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append each pot's own of the new entries [1, K, N, D] to it. Attention reads `entries`
        instead of the return value."""
        parts = zip(
            self.layers,
            key_states.split(self.counts, dim=2),
            value_states.split(self.counts, dim=2),
            rotate_parts(self.layers, key_states, self.counts),
            strict=True,
        )
        self.entries = [
            layer.update(key, value, rotated=ready) for layer, key, value, ready in parts
        ]
        return key_states, value_states

    def get_seq_length(self) -> int:
        return max(layer.get_seq_length() for layer in self.layers)


class BatchedCache(Cache):
    """The cache argument of a model that reads `counts[b]` tokens into pot b."""

    def __init__(self, pots: Sequence[Any], counts: Sequence[int]) -> None:
        by_layer = zip(*(pot.layers for pot in pots), strict=True)
        super().__init__(layers=[BatchedLayer(layers, counts) for layers in by_layer])


def rotate_parts(
    layers: Sequence[Any], x: Tensor, counts: Sequence[int], stored: bool = False
) -> Sequence[Tensor | None]:
    """Rotate x [1, heads, N, D], `counts[b]` vectors for layer b, in one operation. Returns a tensor
    [1, heads, counts[b], D] for each layer.

    The vectors are those of a layer's next entries; stored: of its newest. All results are None if
    each layer must rotate its own, because they rotate differently.
    """
    first = layers[0]
    places: list[int] = []
    for layer, count in zip(layers, counts, strict=True):
        start = layer.position
        new = count
        if stored:
            start -= count
            new = 0
        if not _alike(first, layer, new):
            return [None] * len(layers)
        places += range(start, start + count)
    rotated: Tensor = first.rotation.rotate_to(x, torch.tensor(places, device=x.device))
    return rotated.split(list(counts), dim=2)


def _alike(one: Any, other: Any, count: int) -> bool:
    """Whether a layer rotates a slot as the first one does: by slot, with an equal table, which does
    not grow with `count` more entries."""
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
