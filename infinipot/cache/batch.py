"""Several pots as one cache: one forward pass for all rows, with separate attention for each row.

There is no padding. Rows may differ in length, and each row has the same result as alone.
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
    """The same layer of several pots. `entries`: the rotated keys and the values of each row."""

    def __init__(self, layers: Sequence[Any]) -> None:
        super().__init__()
        self.layers = layers
        self.is_sliding = layers[0].is_sliding
        self.entries: list[tuple[Tensor, Tensor]] = []

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append row b of the new entries [B, K, T, D] to pot b. Attention reads `entries` instead
        of the return value."""
        rows = zip(
            self.layers,
            key_states.split(1),
            value_states.split(1),
            rotate_rows(self.layers, key_states, 0),
            strict=True,
        )
        self.entries = [
            layer.update(key, value, rotated=ready) for layer, key, value, ready in rows
        ]
        return key_states, value_states

    def get_seq_length(self) -> int:
        return max(layer.get_seq_length() for layer in self.layers)


class BatchedCache(Cache):
    """The cache argument of a model that reads a row into each of several pots."""

    def __init__(self, pots: Sequence[Any]) -> None:
        by_layer = zip(*(pot.layers for pot in pots), strict=True)
        super().__init__(layers=[BatchedLayer(layers) for layers in by_layer])


def rotate_rows(layers: Sequence[Any], x: Tensor, ahead: int) -> Sequence[Tensor | None]:
    """Rotate x [B, heads, 1, D], one vector for each layer, in one operation. Returns B tensors [1,
    heads, 1, D].

    A vector's position is that of the layer's next entry, minus `ahead`. All results are None if
    each layer must rotate its own: for several tokens, or for layers that rotate differently.
    """
    first = layers[0]
    if x.shape[2] > 1 or not all(_alike(first, layer) for layer in layers):
        return [None] * len(layers)
    places = torch.tensor([layer.position - ahead for layer in layers], device=x.device)
    return first.rotation.rotate_to(x.transpose(0, 2), places).transpose(0, 2).split(1)


def _alike(one: Any, other: Any) -> bool:
    """Whether both layers rotate a slot alike: by slot, and with equal tables."""
    if not all(
        x.window is None
        and x.is_initialized
        and x.reset
        and x.size
        and x.rotation is not None
        and x.length < x.capacity  # else it grows first, and its table with it
        for x in (one, other)
    ):
        return False
    return one.rotation is other.rotation or len(one.rotation.tables[one.device].places) == len(
        other.rotation.tables[other.device].places
    )
