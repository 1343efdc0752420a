"""The survivors of a distillation, and the keys among which they are chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from infinipot.cache.layer import PotLayer
from infinipot.cache.storage import compact_slots, read_slots
from infinipot.kernels import distill as kernels


def rotated_keys(layers: Sequence[PotLayer], start: int) -> Tensor:
    """The keys of L layers of one shape as attention reads them, from slot `start` on, [L, K, P, D].

    Without stored rotated keys, layers that rotate alike are rotated in one operation.
    """
    first = layers[0]
    alike = all(layer.rotation is first.rotation for layer in layers)
    if alike and first.reset and first.rotated is None:
        keys = read_slots([layer.slots[0] for layer in layers], start, first.length)
        return first.rotate_from(keys, start)
    return torch.cat([layer.read_keys(start, layer.length) for layer in layers])


@dataclass(frozen=True)
class Choice:
    """What L layers of a pot keep. places: their numbers among the bounded ones. indices: [L, K, C]
    int64, ascending, with the pinned entries. index, novelty, past: place in the text, NuC and score
    of all entries before, [L, K, P]; past None if scores are not stored."""

    places: list[int]
    indices: Tensor
    index: Tensor
    novelty: Tensor
    past: Tensor | None

    def apply(self, layers: Sequence[PotLayer], pinned: int, by_address: bool) -> None:
        """Evict all other entries of these layers. The first `pinned` ones stay where they are.

        by_address: whether kernels can use the slots by address.
        """
        indices = self.indices
        moved = by_address and kernels.supports_compaction(indices)
        if moved:
            for slots in zip(*(layer.slots for layer in layers), strict=True):
                compact_slots(slots, indices, pinned)
        kept = [self.index.gather(2, indices).int(), self.novelty.gather(2, indices)]
        if self.past is not None:
            kept.append(self.past.gather(2, indices))
        rows = zip(indices.split(1), *(x.split(1) for x in kept), strict=True)
        for layer, (own, *records) in zip(layers, rows, strict=True):
            layer.keep(own, pinned, records, moved)
