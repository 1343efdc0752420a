"""The pot: a transformers cache whose full-attention layers hold at most |M| entries. It is
independent of the policy."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from infinipot.cache.attention_stats import AttentionStats
from infinipot.cache.bookkeeping import NEWEST, SAVED, Bookkeeping
from infinipot.cache.layer import PotLayer
from infinipot.cache.recurrent import new_layer
from infinipot.cache.rope import Rotation
from infinipot.compat import Cache


@dataclass(frozen=True)
class Layout:
    """The shape of a pot.

    size: |M|, None without a bound. sizes: |M| of each bounded layer, if they differ. reset:
    CR-RoPE. kind: the eight-bit type of stored entries, None for the model's own. attention_stats:
    what layers remember of attention. grouping: (number of distant entries that share a position,
    number of newest entries that do not), for SelfExtend. distils: whether it is ever distilled.
    """

    size: int | None
    sizes: tuple[int, ...] | None = None
    reset: bool = True
    kind: str | None = None
    attention_stats: AttentionStats | None = None
    grouping: tuple[int, int] | None = None
    distils: bool = True


@dataclass(frozen=True)
class Mark:
    """A state that `rollback` restores, until the next distillation."""

    layers: tuple[Any, ...]
    books: Bookkeeping

    @property
    def distillations(self) -> int:
        return self.books.distillations


class Pot(Bookkeeping, Cache):
    """The entries of all layers and their bookkeeping. Only the pot writes to them.

    by_chunk: a caller inspects the pot after every chunk, so that no cycle is replayed as a whole.
    start: during a recording, the number of tokens read before it, as a tensor on the device.
    """

    def __init__(
        self,
        windows: list[int | None],
        states: list[int],
        rotations: list[Rotation | None],
        layout: Layout,
        device: torch.device | None = None,
    ) -> None:
        sizes = iter(layout.sizes or (layout.size,) * len(windows))
        how = (layout.reset, layout.kind, layout.attention_stats)
        layers = []
        for window, count, rotation in zip(windows, states, rotations, strict=True):
            size = None
            if window is None:
                size = next(sizes)
            layers.append(new_layer(window, count, rotation, size, *how))
        Cache.__init__(self, layers=layers)
        Bookkeeping.__init__(self, newest=torch.zeros(1, NEWEST, dtype=torch.long, device=device))
        self.size = layout.size
        self.grouping = layout.grouping
        self.distils = layout.distils
        self.by_chunk = False
        self.start: Tensor | None = None

    def clear(self) -> None:
        """Empty the pot. Slots keep their addresses, so recordings stay valid."""
        self.note(Bookkeeping())
        for layer in self.bounded:
            layer.clear()

    @property
    def bounded(self) -> list[PotLayer]:
        """The layers with full attention, which the size bounds."""
        return [layer for layer in self.layers if isinstance(layer, PotLayer)]

    @property
    def length(self) -> int:
        """Entries per head, in the longest bounded layer."""
        return max(layer.length for layer in self.bounded)

    @property
    def entries(self) -> int:
        """Entries per head, the mean over the bounded layers, rounded up."""
        return -(-sum(layer.length for layer in self.bounded) // len(self.bounded))

    @property
    def room(self) -> float:
        """How many more entries fit into every layer; infinite without a bound."""
        rooms = [layer.size - layer.length for layer in self.bounded if layer.size is not None]
        return min(rooms, default=torch.inf)

    @property
    def peak(self) -> int:
        """Most entries of a bounded layer at any moment; the mean over layers, rounded up, if they
        differ in size."""
        peaks = [layer.peak for layer in self.bounded]
        if len({layer.size for layer in self.bounded}) > 1:
            return -(-sum(peaks) // len(peaks))
        return max(peaks)

    @property
    def entry_bytes(self) -> int:
        return sum(layer.entry_bytes() for layer in self.layers)

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one token's keys and values in all layers of an ordinary cache."""
        if self.hidden is None:
            return 0
        return sum(layer.width for layer in self.layers) * self.hidden.element_size()

    def described(self, layer: PotLayer) -> tuple[Tensor, Tensor]:
        """Place in the text and NuC of all entries of a layer, [B, K, P] each."""
        fresh = layer.length - layer.index.shape[-1]
        shape = (*layer.index.shape[:2], fresh)
        places = torch.arange(-fresh, 0, device=layer.index.device) + self.tokens_read
        if self.start is not None:
            places = places + self.start
        novelty = self.novelty.to(layer.novelty.device)[:, None].expand(shape)
        places = torch.cat((layer.index, places.expand(shape)), dim=-1)
        return places, torch.cat((layer.novelty, novelty), dim=-1)

    def follow(
        self, ids: Tensor, hidden: Tensor, novelty: Tensor, logits: Tensor | None = None
    ) -> None:
        """Note new entries: ids and NuC [B, T], the last hidden state [B, 1, hidden], and next-token
        logits [B, V] if known."""
        self.novelty = torch.cat((self.novelty.to(novelty.device), novelty), dim=1)
        if self.distils:
            self.fresh = torch.cat((self.fresh.to(ids.device), ids), dim=1)
        self.hidden = hidden
        self.logits = logits
        newest = torch.cat((self.newest, ids.to(self.newest.device)), dim=1)
        self.newest.copy_(newest[:, -self.newest.shape[1] :])
        self.tokens_read += ids.shape[1]

    def distilled(self, seconds: float) -> None:
        """Note a distillation of all layers, and its duration."""
        self.novelty = self.novelty[:, :0]
        self.fresh = self.fresh[:, :0]
        self.distillations += 1
        self.distill_s += seconds

    def replayed(self, count: int, hidden: Tensor) -> None:
        """Note the replay of a cycle: it read `count` tokens and distilled the full pot.

        hidden: the last token's hidden state [B, 1, hidden].
        """
        for layer in self.bounded:
            layer.note_peak(layer.size or 0)
        self.hidden = hidden
        self.logits = None
        self.tokens_read += count
        self.distillations += 1

    @contextmanager
    def recording(self, start: Tensor, hidden: Tensor) -> Iterator[None]:
        """Inside, operations on the pot are recorded, not run. Afterwards the pot is as before.

        start: the number of tokens read before. hidden: the last hidden state [B, 1, hidden]. Every
        replay reads both at the same addresses.
        """
        parts = (self, *self.layers)
        before = [dict(vars(part)) for part in parts]
        self.start = start
        self.tokens_read = 0
        self.hidden = hidden
        try:
            yield
        finally:
            for part, attributes in zip(parts, before, strict=True):
                vars(part).update(attributes)

    def pin(self, count: int) -> None:
        """Keep the first entries at every distillation."""
        self.pinned = count

    def read_by_chunk(self) -> None:
        """From now on replay no cycle as a whole: a caller inspects the pot after every chunk."""
        self.by_chunk = True

    def note_logits(self, logits: Tensor) -> None:
        """Keep next-token logits [1, V], computed from the hidden state."""
        self.logits = logits

    def forget_logits(self) -> None:
        self.logits = None

    def note_peaks(self, other: Pot) -> None:
        """Include the peaks of another pot with the same layers, such as a copy."""
        for layer, its in zip(self.layers, other.layers, strict=True):
            layer.note_peak(its.peak)

    def advance(self, count: int) -> None:
        """Count `count` more entries of every layer; fewer if negative. Their slots are written.

        Only for pots without sliding windows, which drop older entries.
        """
        for layer in self.bounded:
            layer.advance(count)

    def copy(self) -> Pot:
        """An independent copy."""
        twin = copy.copy(self)
        twin.layers = [layer.copy() for layer in self.layers]
        twin.newest = self.newest.clone()
        return twin

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors by name and plain numbers, from which `restore` makes an equal pot."""
        tensors = {
            f"layers.{n}.{name}": x
            for n, layer in enumerate(self.layers)
            for name, x in layer.state().items()
        }
        numbers: dict[str, Any] = {}
        for name in SAVED:
            value = getattr(self, name)
            if isinstance(value, Tensor):
                tensors[name] = value
            else:
                numbers[name] = value
        return tensors, {
            **numbers,
            "positions": [layer.position for layer in self.layers],
            "peaks": [layer.peak for layer in self.layers],
        }

    def restore(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        """Fill an empty pot with a saved state."""
        for n, layer in enumerate(self.layers):
            prefix = f"layers.{n}."
            own = {name[len(prefix) :]: x for name, x in tensors.items() if name.startswith(prefix)}
            layer.restore(
                own, numbers["positions"][n], numbers["peaks"][n], tensors["hidden"].dtype
            )
        if tensors["newest"].shape != self.newest.shape:
            raise ValueError("its newest tokens have another shape")
        state: dict[str, Any] = {**numbers, **tensors}
        self.note(Bookkeeping(**{name: state[name] for name in SAVED}))

    def check(self) -> None:
        """Raise ValueError for a restored state whose parts do not fit together."""
        positions = [layer.position for layer in self.bounded]
        numbers = (self.pinned, self.tokens_read, self.distillations, *positions)
        if not all(type(number) is int and number >= 0 for number in numbers):
            raise ValueError("its numbers are not whole numbers")
        shaped = self.hidden is not None and self.hidden.ndim == 3
        if not shaped or self.fresh.ndim != 2 or self.novelty.ndim != 2:
            raise ValueError("its tensors have other shapes")
        for layer in self.bounded:
            places, novelty = self.described(layer)
            shapes = {(*slots.data.shape[:2], layer.length) for slots in layer.slots}
            if shapes != {tuple(places.shape)} or novelty.shape != places.shape:
                raise ValueError("its layers have other shapes")

    def mark(self) -> Mark:
        return Mark(tuple(layer.mark() for layer in self.layers), self.snapshot())

    def rollback(self, mark: Mark) -> None:
        """Remove all entries since the mark."""
        if mark.distillations != self.distillations:
            raise AssertionError("a pot cannot go back to before a distillation")
        for layer, state in zip(self.layers, mark.layers, strict=True):
            layer.rollback(state)
        self.note(mark.books)

    def crop(self, *args: Any, **kwargs: Any) -> None:
        raise ValueError(
            "a pot cannot be cropped: what was distilled is gone; fork the session before a trial instead"
        )

    def reorder_cache(self, *args: Any, **kwargs: Any) -> None:
        raise ValueError(
            "beam search is not possible on a pot: beams would share one; use sampling or greedy decoding"
        )
