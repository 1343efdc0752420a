"""The survivors of a distillation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from infinipot.cache.layer import PotLayer
from infinipot.cache.storage import compact_slots
from infinipot.kernels import distill as kernels


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
