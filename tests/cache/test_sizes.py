"""What a pot says of its layers together, where they differ."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from infinipot.cache.sizes import PotSizes


def pot(*layers: tuple[int | None, int, int]) -> Any:
    """Of layers with (size, length, peak)."""
    sizes = PotSizes()
    sizes.bounded = [
        SimpleNamespace(size=size, length=length, peak=peak, entry_bytes=lambda: 100)  # type: ignore[misc]
        for size, length, peak in layers
    ]
    sizes.layers = [*sizes.bounded, SimpleNamespace(entry_bytes=lambda: 7)]
    sizes.block = None
    sizes.hidden = None
    return sizes


@pytest.mark.parametrize(
    ("layers", "length", "entries", "room", "peak"),
    [
        ([(8, 3, 5)], 3, 3, 5, 5),
        ([(8, 3, 5), (8, 4, 7)], 4, 4, 4, 7),
        ([(8, 3, 5), (9, 3, 6)], 3, 3, 5, 6),
        ([(8, 3, 5), (12, 8, 10), (10, 5, 5)], 8, 6, 4, 7),
        ([(8, 8, 8), (12, 8, 12)], 8, 8, 0, 10),
        ([(None, 3, 5), (8, 7, 8)], 7, 5, 1, 7),
        ([(None, 3, 5), (None, 4, 6)], 4, 4, math.inf, 6),
    ],
)
def test_sizes(layers: list[Any], length: int, entries: int, room: float, peak: int) -> None:
    """The longest layer, the mean rounded up, the least room, and the peak: the mean if sizes differ."""
    sizes = pot(*layers)
    assert (sizes.length, sizes.entries, sizes.room, sizes.peak) == (length, entries, room, peak)
    assert sizes.entry_bytes == 100 * len(layers) + 7
    sizes.block = object()
    assert sizes.entry_bytes == 100 * len(layers) + 7, "not all layers are in the block"
    sizes.layers = sizes.bounded
    assert sizes.entry_bytes == 100 * len(layers)


def test_layers_without_common_memory_are_added_up() -> None:
    sizes = pot((8, 3, 5), (8, 3, 5))
    sizes.layers = sizes.bounded
    sizes.bounded[1].entry_bytes = lambda: 20
    assert sizes.entry_bytes == 120
