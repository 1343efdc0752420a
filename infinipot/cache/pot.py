"""The pot: a transformers cache whose full-attention layers hold at most |M| entries. It knows no policy."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from infinipot.cache.attention_stats import Witness
from infinipot.cache.layer import PotLayer
from infinipot.cache.recurrent import new_layer
from infinipot.cache.rope import Rotation
from infinipot.compat import Cache

NEWEST = 32
"""How many of the last token ids are remembered, for the catalyst that is the text itself."""


@dataclass(frozen=True)
class Layout:
    """What a pot is made of.

    size: |M|, None without a bound. sizes: each bounded layer's own |M|, in order, where they differ. reset: CR-RoPE. kind: the eight-bit
    type of stored entries, None for the model's own. witness: what layers remember of attention. grouping: how many distant entries share a
    position, and how many newest do not (SelfExtend). distils: whether there is ever a distillation.
    """

    size: int | None
    sizes: tuple[int, ...] | None = None
    reset: bool = True
    kind: str | None = None
    witness: Witness | None = None
    grouping: tuple[int, int] | None = None
    distils: bool = True


@dataclass(frozen=True)
class Mark:
    """A state to return to, as long as nothing has been distilled since."""

    layers: tuple[Any, ...]
    hidden: Tensor | None
    novelty: Tensor
    fresh: Tensor
    newest: Tensor
    tokens_read: int
    distillations: int


class Pot(Cache):
    """All layers' entries, and what goes with them from one chunk to the next.

    pinned: entries at the start that no distillation touches. hidden: the last token's final hidden state [B, 1, hidden], which predicts
    the next one. novelty, fresh: NuC and ids [B, F] of the F tokens read since the last distillation (ids only where there are distillations).
    newest: the last token ids [B, 32], written in place. logits: the next token's [1, V], where a step has computed them already. cycles,
    steps: what has been recorded for this pot (graphs.py). noted: `novelty` is looked at after every chunk, so no cycle runs as one.
    """

    noted = False

    def __init__(self, windows: list[int | None], states: list[int], rotations: list[Rotation | None], layout: Layout) -> None:
        sizes = iter(layout.sizes or (layout.size,) * len(windows))
        layers = [
            new_layer(window, carried, rotation, next(sizes) if window is None else None, layout.reset, layout.kind, layout.witness)
            for window, carried, rotation in zip(windows, states, rotations, strict=True)
        ]
        super().__init__(layers=layers)
        self.size, self.grouping, self.distils = layout.size, layout.grouping, layout.distils
        self.cycles: dict[Any, Any] = {}
        self.steps: list[Any] = []
        self.newest = torch.zeros(1, NEWEST, dtype=torch.long)
        self.clear()

    def clear(self) -> None:
        """Be as new. Slots stay where they are, so what was recorded for them still holds."""
        self.pinned = self.tokens_read = self.distillations = 0
        self.distill_s = 0.0
        self.hidden: Tensor | None = None
        self.logits: Tensor | None = None
        self.novelty = torch.zeros(1, 0)
        self.fresh = torch.zeros(1, 0, dtype=torch.long)
        self.newest.zero_()
        for layer in self.bounded:
            layer.clear()

    @property
    def bounded(self) -> list[PotLayer]:
        """The layers that the size bounds: full attention, not sliding windows, nor layers that only carry a state."""
        return [layer for layer in self.layers if isinstance(layer, PotLayer)]

    @property
    def length(self) -> int:
        """Entries per head now, in the bounded layer that has most."""
        return max(layer.length for layer in self.bounded)

    @property
    def entries(self) -> int:
        """Entries per head now: the mean over the bounded layers, rounded up, where they differ."""
        return -(-sum(layer.length for layer in self.bounded) // len(self.bounded))

    @property
    def room(self) -> float:
        """How many more entries every layer has room for; infinite without a bound."""
        return min(torch.inf if layer.size is None else layer.size - layer.length for layer in self.bounded)

    @property
    def peak(self) -> int:
        """Most entries a bounded layer ever held at one moment; the mean over layers, rounded up, where they have sizes of their own."""
        peaks = [layer.peak for layer in self.bounded]
        return -(-sum(peaks) // len(peaks)) if len({layer.size for layer in self.bounded}) > 1 else max(peaks)

    @property
    def entry_bytes(self) -> int:
        return sum(layer.entry_bytes() for layer in self.layers)

    @property
    def bytes_per_token(self) -> int:
        """What one token's keys and values take in all layers of an ordinary cache."""
        return 0 if self.hidden is None else sum(layer.width for layer in self.layers) * self.hidden.element_size()

    def described(self, layer: PotLayer) -> tuple[Tensor, Tensor]:
        """Place in the text and NuC of all entries of a layer, [B, K, P] each. Fresh entries are the newest tokens, in order."""
        fresh = layer.length - layer.index.shape[-1]
        shape = (*layer.index.shape[:2], fresh)
        places = (torch.arange(-fresh, 0, device=layer.index.device) + self.tokens_read).expand(shape)
        novelty = self.novelty.to(layer.novelty.device)[:, None].expand(shape)
        return torch.cat((layer.index, places), dim=-1), torch.cat((layer.novelty, novelty), dim=-1)

    def follow(self, ids: Tensor, hidden: Tensor, novelty: Tensor, logits: Tensor | None = None) -> None:
        """Note what goes with the entries just taken: their ids and NuC [B, T], the last one's hidden state [B, 1, hidden], and the logits
        [B, V] of what follows it, if they are known."""
        self.novelty = torch.cat((self.novelty.to(novelty.device), novelty), dim=1)
        if self.distils:
            self.fresh = torch.cat((self.fresh.to(ids.device), ids), dim=1)
        self.hidden, self.logits = hidden, logits
        self.newest.copy_(torch.cat((self.newest, ids.to(self.newest.device)), dim=1)[:, -self.newest.shape[1] :])
        self.tokens_read += ids.shape[1]

    def copy(self) -> Pot:
        """An independent twin: what happens to one leaves the other as it is."""
        twin = copy.copy(self)
        twin.layers = [layer.copy() for layer in self.layers]
        twin.newest = self.newest.clone()
        twin.cycles, twin.steps = {}, []
        return twin

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors by name and plain numbers, from which `restore` makes an equal pot."""
        tensors = {f"layers.{n}.{name}": x for n, layer in enumerate(self.layers) for name, x in layer.state().items()}
        tensors |= {"novelty": self.novelty, "fresh": self.fresh, "newest": self.newest, "hidden": self.hidden}
        numbers = {name: getattr(self, name) for name in ("pinned", "tokens_read", "distillations")}
        return tensors, {**numbers, "positions": [layer.position for layer in self.layers], "peaks": [layer.peak for layer in self.layers]}

    def restore(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        """Fill an empty pot with a saved state."""
        for n, layer in enumerate(self.layers):
            prefix = f"layers.{n}."
            own = {name.removeprefix(prefix): x for name, x in tensors.items() if name.startswith(prefix)}
            layer.restore(own, numbers["positions"][n], numbers["peaks"][n], tensors["hidden"].dtype)
        self.novelty, self.fresh, self.hidden = tensors["novelty"], tensors["fresh"], tensors["hidden"]
        if tensors["newest"].shape != self.newest.shape:
            raise ValueError("its newest tokens have another shape")
        self.newest.copy_(tensors["newest"])
        self.pinned, self.tokens_read = numbers["pinned"], numbers["tokens_read"]
        self.distillations = numbers["distillations"]

    def check(self) -> None:
        """Refuse a restored state whose parts do not fit together, before anything is done with it."""
        numbers = (self.pinned, self.tokens_read, self.distillations, *(layer.position for layer in self.bounded))
        if not all(type(number) is int and number >= 0 for number in numbers):
            raise ValueError("its numbers are not whole numbers")
        if self.hidden is None or self.hidden.ndim != 3 or self.fresh.ndim != 2 or self.novelty.ndim != 2:
            raise ValueError("its tensors have other shapes")
        for layer in self.bounded:
            places, novelty = self.described(layer)
            shapes = {(*slots.data.shape[:2], layer.length) for slots in layer.slots}
            if shapes != {tuple(places.shape)} or novelty.shape != places.shape:
                raise ValueError("its layers have other shapes")

    def mark(self) -> Mark:
        layers = tuple(layer.mark() for layer in self.layers)
        return Mark(layers, self.hidden, self.novelty, self.fresh, self.newest.clone(), self.tokens_read, self.distillations)

    def rollback(self, mark: Mark) -> None:
        """Forget every entry taken since the mark."""
        if mark.distillations != self.distillations:
            raise AssertionError("a pot cannot go back to before a distillation")
        for layer, state in zip(self.layers, mark.layers, strict=True):
            layer.rollback(state)
        self.hidden, self.novelty, self.fresh, self.tokens_read = mark.hidden, mark.novelty, mark.fresh, mark.tokens_read
        self.logits = None
        self.newest.copy_(mark.newest)

    def drop(self, count: int) -> None:
        """Forget the newest `count` entries. Only where every layer has slots: a window has let older ones go."""
        for layer in self.bounded:
            layer.length, layer.position = layer.length - count, layer.position - count

    def crop(self, *args: Any, **kwargs: Any) -> None:
        raise ValueError("a pot cannot be cropped: what was distilled is gone; fork the session before a trial instead")

    def reorder_cache(self, *args: Any, **kwargs: Any) -> None:
        raise ValueError("beam search is not possible on a pot: beams would share one; use sampling or greedy decoding")
