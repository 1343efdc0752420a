"""The pot: a transformers cache whose full-attention layers hold at most |M| entries. It knows no policy."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from infinipot.compat import Cache
from infinipot.layers import PotLayer, WindowLayer
from infinipot.positions import Rotation

NEWEST = 32
"""How many of the last token ids are remembered, for the catalyst that is the text itself."""


@dataclass(frozen=True)
class Mark:
    """A state to return to, as long as nothing has been distilled since."""

    layers: tuple[Any, ...]
    hidden: Tensor | None
    novelty: Tensor
    newest: Tensor
    tokens_read: int
    distillations: int


class Pot(Cache):
    """All layers' entries, and what goes with them from one chunk to the next.

    size: |M|, None without a bound. pinned: entries at the start that no distillation touches. hidden: the last token's final hidden
    state [B, 1, hidden], which predicts the next one. novelty: NuC [B, F] of the F entries read since the last distillation. newest: the
    last token ids [B, 32], written in place.
    """

    def __init__(self, windows: list[int | None], rotations: list[Rotation | None], size: int | None, reset: bool = True) -> None:
        layers = [
            PotLayer(size, rotation, reset) if window is None else WindowLayer(window, rotation)
            for window, rotation in zip(windows, rotations, strict=True)
        ]
        super().__init__(layers=layers)
        self.size = size
        self.pinned = 0
        self.tokens_read = 0
        self.distillations = 0
        self.distill_s = 0.0
        self.hidden: Tensor | None = None
        self.novelty = torch.zeros(1, 0)
        self.newest = torch.zeros(1, NEWEST, dtype=torch.long)

    @property
    def bounded(self) -> list[PotLayer]:
        """The layers that the size bounds: full attention, not the sliding windows."""
        return [layer for layer in self.layers if isinstance(layer, PotLayer)]

    @property
    def length(self) -> int:
        """Entries per layer and head now."""
        return self.bounded[0].length

    @property
    def peak(self) -> int:
        """Most entries any bounded layer ever held at one moment."""
        return max(layer.peak for layer in self.bounded)

    @property
    def entry_bytes(self) -> int:
        return sum(layer.entry_bytes() for layer in self.layers)

    @property
    def bytes_per_token(self) -> int:
        """What one token's keys and values take in all layers of an ordinary cache."""
        ready = [layer for layer in self.layers if layer.is_initialized]
        return sum(x.shape[1] * x.shape[3] * x.element_size() for layer in ready for x in (layer.keys, layer.values))

    def described(self, layer: PotLayer) -> tuple[Tensor, Tensor]:
        """Place in the text and NuC of all entries of a layer, [B, K, P] each. Fresh entries are the newest tokens, in order."""
        fresh = layer.length - layer.index.shape[-1]
        shape = (*layer.index.shape[:2], fresh)
        places = torch.arange(self.tokens_read - fresh, self.tokens_read, device=layer.index.device)
        novelty = self.novelty.to(layer.novelty.device)
        return (
            torch.cat((layer.index, places.expand(shape)), dim=-1),
            torch.cat((layer.novelty, novelty[:, None].expand(shape)), dim=-1),
        )

    def copy(self) -> Pot:
        """An independent twin: what happens to one leaves the other as it is."""
        twin = copy.copy(self)
        twin.layers = [layer.copy() for layer in self.layers]
        twin.newest = self.newest.clone()
        return twin

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors by name and plain numbers, from which `restore` makes an equal pot."""
        tensors = {f"layers.{n}.{name}": x for n, layer in enumerate(self.layers) for name, x in layer.state().items()}
        tensors |= {"novelty": self.novelty, "newest": self.newest, "hidden": self.hidden}
        numbers = {
            "pinned": self.pinned,
            "tokens_read": self.tokens_read,
            "distillations": self.distillations,
            "positions": [layer.position for layer in self.layers],
            "peaks": [layer.peak for layer in self.layers],
        }
        return tensors, numbers

    def restore(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        """Fill an empty pot with a saved state."""
        for n, layer in enumerate(self.layers):
            prefix = f"layers.{n}."
            own = {name.removeprefix(prefix): x for name, x in tensors.items() if name.startswith(prefix)}
            layer.restore(own, numbers["positions"][n], numbers["peaks"][n])
        self.novelty, self.newest, self.hidden = tensors["novelty"], tensors["newest"], tensors["hidden"]
        self.pinned, self.tokens_read = numbers["pinned"], numbers["tokens_read"]
        self.distillations = numbers["distillations"]

    def mark(self) -> Mark:
        return Mark(
            tuple(layer.mark() for layer in self.layers), self.hidden, self.novelty, self.newest.clone(), self.tokens_read, self.distillations
        )

    def rollback(self, mark: Mark) -> None:
        """Forget every entry taken since the mark."""
        if mark.distillations != self.distillations:
            raise AssertionError("a pot cannot go back to before a distillation")
        for layer, state in zip(self.layers, mark.layers, strict=True):
            layer.rollback(state)
        self.hidden, self.novelty, self.tokens_read = mark.hidden, mark.novelty, mark.tokens_read
        self.newest.copy_(mark.newest)

    def crop(self, *args: Any, **kwargs: Any) -> None:
        raise ValueError("a pot cannot be cropped: what was distilled is gone; fork the session before a trial instead")

    def reorder_cache(self, *args: Any, **kwargs: Any) -> None:
        raise ValueError("beam search is not possible on a pot: beams would share one; use sampling or greedy decoding")
