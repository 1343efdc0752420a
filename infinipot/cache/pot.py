"""The pot: a transformers cache whose full-attention layers hold at most |M| entries. It knows no
policy."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from infinipot.cache.attention_stats import AttentionStats
from infinipot.cache.layer import PotLayer
from infinipot.cache.recurrent import new_layer
from infinipot.cache.rope import Rotation
from infinipot.compat import Cache

NEWEST = 32
"""How many of the last token ids are remembered, for the catalyst that is the text itself."""


@dataclass(frozen=True)
class Layout:
    """What a pot is made of.

    size: |M|, None without a bound. sizes: each bounded layer's own |M|, in order, where they
    differ. reset: CR-RoPE. kind: the eight-bit type of stored entries, None for the model's own.
    attention_stats: what layers remember of attention. grouping: how many distant entries share a
    position, and how many newest do not (SelfExtend). distils: whether there is ever a
    distillation.
    """

    size: int | None
    sizes: tuple[int, ...] | None = None
    reset: bool = True
    kind: str | None = None
    attention_stats: AttentionStats | None = None
    grouping: tuple[int, int] | None = None
    distils: bool = True


UNSAVED = {"saved": False}
"""Marks a field that a pot file does not hold."""


@dataclass(eq=False, repr=False)
class Bookkeeping:
    """What goes with a pot's entries from one chunk to the next. Whoever adds a field adds it here,
    and nowhere else.

    Tensors are replaced, never written to, except `newest`.
    """

    pinned: int = 0
    """Entries at the start that no distillation touches."""
    tokens_read: int = 0
    """While a cycle is recorded: since the beginning of the recording."""
    distillations: int = 0
    distill_s: float = field(default=0.0, metadata=UNSAVED)
    hidden: Tensor | None = None
    """The last token's final hidden state [B, 1, hidden], which predicts the next token."""
    logits: Tensor | None = field(default=None, metadata=UNSAVED)
    """The next token's [1, V], where a step has computed them already."""
    novelty: Tensor = field(default_factory=lambda: torch.zeros(1, 0))
    """NuC [B, F] of the F tokens read since the last distillation."""
    fresh: Tensor = field(default_factory=lambda: torch.zeros(1, 0, dtype=torch.long))
    """Ids [B, F] of these tokens, only where there are distillations."""
    newest: Tensor = field(default_factory=lambda: torch.zeros(1, NEWEST, dtype=torch.long))
    """The last token ids [B, 32], written in place."""

    def note(self, books: Bookkeeping) -> None:
        """Take over all of `books`."""
        newest = self.newest.copy_(books.newest)
        vars(self).update(vars(books))
        self.newest = newest

    def snapshot(self) -> Bookkeeping:
        """A copy of all of it, without the logits, which are known again from the hidden state."""
        fields_now = {name: getattr(self, name) for name in FIELDS}
        return Bookkeeping(**{**fields_now, "logits": None, "newest": self.newest.clone()})


FIELDS = [known.name for known in fields(Bookkeeping)]
SAVED = [known.name for known in fields(Bookkeeping) if known.metadata.get("saved", True)]


@dataclass(frozen=True)
class Mark:
    """A state to return to, as long as nothing has been distilled since."""

    layers: tuple[Any, ...]
    books: Bookkeeping

    @property
    def distillations(self) -> int:
        return self.books.distillations


class Pot(Bookkeeping, Cache):
    """All layers' entries, and their bookkeeping, which only the pot itself writes.

    by_chunk: whether someone looks at the pot after every chunk, so that no cycle runs as one.
    start: while a cycle is recorded, how many tokens were read before it, a number on the device.
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
        layers = [
            new_layer(
                window,
                carried,
                rotation,
                next(sizes) if window is None else None,
                layout.reset,
                layout.kind,
                layout.attention_stats,
            )
            for window, carried, rotation in zip(windows, states, rotations, strict=True)
        ]
        Cache.__init__(self, layers=layers)
        Bookkeeping.__init__(self, newest=torch.zeros(1, NEWEST, dtype=torch.long, device=device))
        self.size = layout.size
        self.grouping = layout.grouping
        self.distils = layout.distils
        self.by_chunk = False
        self.start: Tensor | None = None

    def clear(self) -> None:
        """Be as new. Slots stay where they are, so what was recorded for them still holds."""
        self.note(Bookkeeping())
        for layer in self.bounded:
            layer.clear()

    @property
    def bounded(self) -> list[PotLayer]:
        """The layers that the size bounds: full attention, not sliding windows, nor layers that
        only carry a state."""
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
        return min(
            torch.inf if layer.size is None else layer.size - layer.length for layer in self.bounded
        )

    @property
    def peak(self) -> int:
        """Most entries a bounded layer ever held at one moment; the mean over layers, rounded up,
        where they have sizes of their own."""
        peaks = [layer.peak for layer in self.bounded]
        if len({layer.size for layer in self.bounded}) > 1:
            return -(-sum(peaks) // len(peaks))
        return max(peaks)

    @property
    def entry_bytes(self) -> int:
        return sum(layer.entry_bytes() for layer in self.layers)

    @property
    def bytes_per_token(self) -> int:
        """What one token's keys and values take in all layers of an ordinary cache."""
        if self.hidden is None:
            return 0
        return sum(layer.width for layer in self.layers) * self.hidden.element_size()

    def described(self, layer: PotLayer) -> tuple[Tensor, Tensor]:
        """Place in the text and NuC of all entries of a layer, [B, K, P] each. Fresh entries are
        the newest tokens, in order."""
        fresh = layer.length - layer.index.shape[-1]
        shape = (*layer.index.shape[:2], fresh)
        places = torch.arange(-fresh, 0, device=layer.index.device) + self.tokens_read
        if self.start is not None:
            places = places + self.start
        novelty = self.novelty.to(layer.novelty.device)[:, None].expand(shape)
        return torch.cat((layer.index, places.expand(shape)), dim=-1), torch.cat(
            (layer.novelty, novelty), dim=-1
        )

    def follow(
        self, ids: Tensor, hidden: Tensor, novelty: Tensor, logits: Tensor | None = None
    ) -> None:
        """Note what goes with the entries just taken: their ids and NuC [B, T], the last one's
        hidden state [B, 1, hidden], and the logits [B, V] of what follows it, if they are known."""
        self.novelty = torch.cat((self.novelty.to(novelty.device), novelty), dim=1)
        if self.distils:
            self.fresh = torch.cat((self.fresh.to(ids.device), ids), dim=1)
        self.hidden = hidden
        self.logits = logits
        self.newest.copy_(
            torch.cat((self.newest, ids.to(self.newest.device)), dim=1)[:, -self.newest.shape[1] :]
        )
        self.tokens_read += ids.shape[1]

    def distilled(self, seconds: float) -> None:
        """Note that all layers have been distilled, which took so long."""
        self.novelty = self.novelty[:, :0]
        self.fresh = self.fresh[:, :0]
        self.distillations += 1
        self.distill_s += seconds

    def replayed(self, count: int, hidden: Tensor) -> None:
        """Note what a recorded cycle has done: it read `count` tokens until the pot was full, and
        distilled it.

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
        """Inside, what is done to the pot is recorded, not run. Afterwards the pot is as before.

        start: how many tokens were read before. hidden: the last one's hidden state [B, 1, hidden].
        Both are read anew, at the same addresses, whenever the recording runs.
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
        """Let no distillation touch the first entries."""
        self.pinned = count

    def read_by_chunk(self) -> None:
        """From now on run no cycle as one: someone looks at the pot after every chunk."""
        self.by_chunk = True

    def note_logits(self, logits: Tensor) -> None:
        """Keep the next token's logits [1, V], computed from the hidden state."""
        self.logits = logits

    def forget_logits(self) -> None:
        self.logits = None

    def note_peaks(self, other: Pot) -> None:
        """Count what another pot of the same layers, a copy, say, held at most as held by this one."""
        for layer, its in zip(self.layers, other.layers, strict=True):
            layer.note_peak(its.peak)

    def advance(self, count: int) -> None:
        """Count `count` more entries of every layer, whose slots have been written; fewer if
        negative.

        Only where every layer has slots: a window has let older entries go.
        """
        for layer in self.bounded:
            layer.advance(count)

    def copy(self) -> Pot:
        """An independent twin: what happens to one leaves the other as it is."""
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
            (tensors if isinstance(value, Tensor) else numbers)[name] = value
        return tensors, {
            **numbers,
            "positions": [layer.position for layer in self.layers],
            "peaks": [layer.peak for layer in self.layers],
        }

    def restore(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        """Fill an empty pot with a saved state."""
        for n, layer in enumerate(self.layers):
            prefix = f"layers.{n}."
            own = {
                name.removeprefix(prefix): x
                for name, x in tensors.items()
                if name.startswith(prefix)
            }
            layer.restore(
                own, numbers["positions"][n], numbers["peaks"][n], tensors["hidden"].dtype
            )
        if tensors["newest"].shape != self.newest.shape:
            raise ValueError("its newest tokens have another shape")
        known: dict[str, Any] = {**numbers, **tensors}
        self.note(Bookkeeping(**{name: known[name] for name in SAVED}))

    def check(self) -> None:
        """Refuse a restored state whose parts do not fit together, before anything is done with it."""
        numbers = (
            self.pinned,
            self.tokens_read,
            self.distillations,
            *(layer.position for layer in self.bounded),
        )
        if not all(type(number) is int and number >= 0 for number in numbers):
            raise ValueError("its numbers are not whole numbers")
        if (
            self.hidden is None
            or self.hidden.ndim != 3
            or self.fresh.ndim != 2
            or self.novelty.ndim != 2
        ):
            raise ValueError("its tensors have other shapes")
        for layer in self.bounded:
            places, novelty = self.described(layer)
            shapes = {(*slots.data.shape[:2], layer.length) for slots in layer.slots}
            if shapes != {tuple(places.shape)} or novelty.shape != places.shape:
                raise ValueError("its layers have other shapes")

    def mark(self) -> Mark:
        return Mark(tuple(layer.mark() for layer in self.layers), self.snapshot())

    def rollback(self, mark: Mark) -> None:
        """Forget every entry taken since the mark."""
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
