"""The pot: a transformers cache whose full-attention layers hold at most |M| entries. It is
independent of the policy."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from infinipot.cache.at_work import GuardedCache
from infinipot.cache.bookkeeping import NEWEST, SAVED, Bookkeeping
from infinipot.cache.choice import Choice
from infinipot.cache.layer import PotLayer
from infinipot.cache.layout import Layout
from infinipot.cache.recurrent import new_layer
from infinipot.cache.rope import Rotation, copies
from infinipot.cache.sizes import PotSizes
from infinipot.cache.storage import Block
from infinipot.parallel.ranks import on_all_ranks


@dataclass(frozen=True)
class Mark:
    """A state that `rollback` restores, until the next distillation."""

    layers: tuple[Any, ...]
    books: Bookkeeping

    @property
    def distillations(self) -> int:
        return self.books.distillations


class Pot(PotSizes, Bookkeeping, GuardedCache):
    """The entries of all layers and their bookkeeping. Only the pot writes to them."""

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
        GuardedCache.__init__(self, layers=layers)
        newest = torch.zeros(1, NEWEST, dtype=torch.long, device=device)
        Bookkeeping.__init__(self, last_ids=newest)
        self.rotations = rotations
        self.followers = layout.followers
        self.size = layout.size
        self.kind = layout.kind
        self.grouping = layout.grouping
        self.distils = layout.distils
        self.scores = layout.scores
        self.scores_at_once = False
        self._by_address = False
        self._places: tuple[Any, Tensor] | None = None
        """The addresses, and the slots that they are of."""
        self._find_bounded()
        self.block: Block | None = None
        if (
            layout.alike
            and layout.kind is None
            and len({layer.size for layer in self.bounded}) == 1
        ):
            self.block = Block(len(self.bounded))
            for number, layer in enumerate(self.bounded):
                layer.share(self.block, number)

    def _find_bounded(self) -> None:
        self.bounded = [layer for layer in self.layers if isinstance(layer, PotLayer)]
        """The layers with full attention, which the size bounds."""

    def described(self, layers: Sequence[PotLayer]) -> tuple[Tensor, Tensor]:
        """Place in the text, int64, and NuC of all entries of L layers of one shape, [L, K, P] each.
        Tokens without NuC get 0."""
        index = torch.cat([layer.index for layer in layers])
        fresh = layers[0].length - index.shape[-1]
        shape = (*index.shape[:2], fresh)
        places = torch.arange(-fresh, 0, device=index.device) + self.tokens_read
        novelty = torch.zeros(1, fresh, device=index.device)
        if self.novelty.shape[1]:  # a copy from the CPU would wait for the GPU
            novelty[:, : self.novelty.shape[1]] = self.novelty
        novelty = novelty[:, None].expand(shape)
        places = torch.cat((index.long(), places.expand(shape)), dim=-1)
        before = torch.cat([layer.novelty for layer in layers])
        return places, torch.cat((before, novelty), dim=-1)

    def keep(self, choice: Choice) -> None:
        """Evict all entries of some layers but those chosen."""
        layers = [self.bounded[place] for place in choice.places]
        choice.apply(layers, self.pinned, self.by_address)

    def follow(
        self, ids: Tensor, hidden: Tensor, predicted: tuple[Tensor, int] | None = None
    ) -> None:
        """Note new entries: ids [B, T], hidden states [B, T, hidden], and next-token logits if
        known."""
        if self.scores or self.scores_at_once:
            if not self.unscored:
                self.before = self.hidden
            self.unscored = (*self.unscored, (ids, hidden))
        if self.distils:
            self.fresh_parts = (*self.fresh_parts, ids)
        self.unmerged = (*self.unmerged, ids)
        self.hidden = hidden
        if hidden.shape[1] > 1:  # a view would keep all of them in memory
            self.hidden = hidden[:, -1:].clone()
        self.predicted = predicted
        self.tokens_read += ids.shape[1]
        if len(self.unmerged) > NEWEST:
            self.unmerged = self.unmerged[-NEWEST:]

    def note_novelty(self, novelty: Tensor) -> None:
        """Note the NuC [B, F] of the tokens in `unscored`."""
        self.novelty = torch.cat((self.novelty.to(novelty.device), novelty), dim=1)
        self.unscored = ()
        self.before = None

    def distilled(self, seconds: float) -> None:
        """Note a distillation of all layers, and its duration."""
        self.novelty = self.novelty[:, :0]
        self.fresh_parts = ()
        self.distillations += 1
        self.distill_s += seconds

    @on_all_ranks
    def pin(self, count: int) -> None:
        """Keep the first entries at every distillation."""
        self.pinned = count

    @on_all_ranks
    def score_at_once(self) -> None:
        """From now on compute the NuC of every token when it is read."""
        self.scores_at_once = True

    def note_logits(self, predicted: tuple[Tensor, int]) -> None:
        """Keep next-token logits of several pots [rows, V], and this pot's row."""
        self.predicted = predicted

    def forget_logits(self) -> None:
        self.predicted = None

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

    def reserve(self, count: int) -> None:
        """Make sure of slots for `count` more entries in every layer. Raises PotOverflow. Only for
        pots with `by_address`."""
        first = self.bounded[0]
        if first.length + count > first.capacity:  # all layers have equally many
            for layer in self.bounded:
                layer.reserve(count)

    @property
    def places(self) -> Tensor:
        """`PotLayer.place` of each bounded layer, [L, 3] or [L, 5] int64 on the CPU. The same tensor
        until the slots move. Only for pots with `by_address`."""
        slots = self.bounded[0].slots
        if self._places is None or self._places[0] is not slots:
            self._places = slots, torch.tensor([layer.place for layer in self.bounded])
        return self._places[1]

    @property
    def by_address(self) -> bool:
        """Whether all layers are slots that kernels can use by address, and have equally many."""
        if not self._by_address:
            self._by_address = (
                self.grouping is None
                and all(layer.window is None and layer.by_address for layer in self.layers)
                and len({layer.size for layer in self.bounded}) == 1
            )
        return self._by_address

    @property
    def watched(self) -> bool:
        """Whether layers collect attention statistics."""
        return any(layer.attention_stats is not None for layer in self.bounded)

    @on_all_ranks
    def copy(self) -> Pot:
        """An independent copy."""
        twin = copy.copy(self)
        if self.block is None:
            twin.layers = [layer.copy() for layer in self.layers]
        else:
            twin.block = self.block.copy()
            twin.layers = [
                layer.copy(twin.block) if isinstance(layer, PotLayer) else layer.copy()
                for layer in self.layers
            ]
        if self.size is None and any(r and r.depends_on_length for r in self.rotations):
            # the tables grow with the pot
            twin.rotations = copies(self.rotations)
            for layer, rotation in zip(twin.layers, twin.rotations, strict=True):
                layer.rotation = rotation
        twin.last_ids = self.newest.clone()
        twin.unmerged = ()
        twin._places = None
        twin._find_bounded()
        return twin

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors by name and plain numbers, from which `restore` makes an equal pot. All tokens must
        have their NuC."""
        if self.unscored:
            raise AssertionError("tokens of this pot wait for their novelty")
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
        state: dict[str, Any] = {**numbers, **tensors}
        if state["newest"].shape != self.last_ids.shape:
            raise ValueError("its newest tokens have another shape")
        books = {name: state[name] for name in SAVED}
        books["last_ids"] = books.pop("newest")
        books["fresh_parts"] = (books.pop("fresh"),)
        self.note(Bookkeeping(**books))

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
            places, novelty = self.described([layer])
            shapes = {(*slots.data.shape[:2], layer.length) for slots in layer.slots}
            if shapes != {tuple(places.shape)} or novelty.shape != places.shape:
                raise ValueError("its layers have other shapes")

    @on_all_ranks
    def mark(self) -> Mark:
        return Mark(tuple(layer.mark() for layer in self.layers), self.snapshot())

    @on_all_ranks
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
