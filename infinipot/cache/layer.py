"""One layer's entries, in slots allocated once.

Keys are kept raw, with a rotated copy beside them that attention reads; the copy is made anew from
the raw keys after every distillation, so nothing drifts. Entries in eight bits have no such copy:
their keys are rotated whenever attention reads them.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from infinipot.cache.attention_stats import AttentionStats
from infinipot.cache.rope import Rotation
from infinipot.cache.storage import Slots
from infinipot.compat import CacheLayerMixin
from infinipot.scoring.representativeness import Scoring

GROWTH = 1024
"""Slots by which a layer without a bound grows at least."""
DESCRIPTION = ("index", "novelty", "past")
"""What is known about survivors."""


class PotOverflow(AssertionError):
    """A layer was asked to hold more than its size: a fault of this library, never of its user."""


class PotLayer(CacheLayerMixin):
    """Entries of one layer in `size` slots, [B, K, size, D]; slots 0 .. length-1 are taken, in text
    order.

    size None: no bound. reset False: an entry keeps the position at which it was read (the paper's
    ablation of CR-RoPE). kind: the eight-bit type entries are stored in, None for the model's own.
    attention_stats: what is remembered of attention. `index` [B, K, S] int64 and `novelty` [B, K,
    S] float32 tell the survivors' place in the text and their NuC, `past` [B, K, S] float32, where
    a policy wants it, the score they survived with.
    """

    is_sliding = is_compileable = is_croppable = False
    window: int | None = None
    slots: tuple[Slots, Slots]
    rotated: Tensor | None
    index: Tensor
    novelty: Tensor
    past: Tensor | None = None

    def __init__(
        self,
        size: int | None,
        rotation: Rotation | None,
        reset: bool = True,
        kind: str | None = None,
        attention_stats: AttentionStats | None = None,
    ) -> None:
        self.is_initialized = False
        self.size = size
        self.rotation = rotation
        self.reset = reset
        self.kind = kind
        self.attention_stats = attention_stats
        self.length = self.peak = self.position = 0

    @property
    def keys(self) -> Tensor:
        """Raw keys of all slots, [B, K, size, D]."""
        return self.slots[0].read(0, self.slots[0].size)

    @property
    def values(self) -> Tensor:
        return self.slots[1].read(0, self.slots[1].size)

    @property
    def capacity(self) -> int:
        """Slots there are: the size, or where there is none, those allocated so far."""
        return self.slots[0].size

    @property
    def width(self) -> int:
        """Numbers that one token's keys and values are, all heads together."""
        return sum(slots.data.shape[1] * slots.data.shape[3] for slots in self.slots)

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.device = key_states.device
        self.dtype = key_states.dtype
        self._allocate(self.size or GROWTH, key_states, value_states)
        batch, heads = key_states.shape[:2]
        self.index = torch.zeros(batch, heads, 0, dtype=torch.int64, device=self.device)
        self.novelty = torch.zeros(batch, heads, 0, dtype=torch.float32, device=self.device)
        self.is_initialized = True

    def _allocate(self, size: int, key: Tensor, value: Tensor) -> None:
        if self.rotation is not None:
            self.rotation.reserve(size, key.device)
        self.slots = (Slots(key, size, self.kind), Slots(value, size, self.kind))
        mirrored = self.rotation is not None and self.kind is None
        if mirrored:
            self.rotated = Slots(key, size).data
        else:
            self.rotated = None

    def _rotate(self, x: Tensor, start: int) -> Tensor:
        if self.rotation is None:
            return x
        if self.reset:
            return self.rotation.slots(x, start)
        return self.rotation.anywhere(x, start)

    def read_keys(self, start: int, stop: int) -> Tensor:
        """Keys of the slots start .. stop-1 as attention reads them, [B, K, stop-start, D]."""
        if self.rotated is not None:
            return self.rotated[:, :, start:stop]
        return self._rotate(self.slots[0].read(start, stop), start)

    def read_values(self, start: int, stop: int) -> Tensor:
        return self.slots[1].read(start, stop)

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        *args: Any,
        rotated: Tensor | None = None,
        **more: Any,
    ) -> tuple[Tensor, Tensor]:
        """Take new entries [B, K, T, D], keys raw. Returns what attention reads: rotated keys and
        values of all entries.

        rotated: the keys rotated, if that is done already.
        """
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.reserve(key_states.shape[-2])
        start = self.length
        stop = self.length + key_states.shape[-2]
        for slots, x in zip(self.slots, (key_states, value_states), strict=True):
            slots.write(start, x)
        if self.rotated is not None:
            if rotated is None:
                self.rotated[:, :, start:stop] = self._rotate(key_states, self.position)
            else:
                self.rotated[:, :, start:stop] = rotated
        self.advance(stop - start)
        return self.read_keys(0, stop), self.read_values(0, stop)

    def advance(self, count: int) -> None:
        """Count `count` more entries, whose slots have been written; fewer if negative."""
        self.length += count
        self.position += count
        self.note_peak(self.length)

    def note_peak(self, peak: int) -> None:
        """Note that there were so many entries at one moment."""
        self.peak = max(self.peak, peak)

    def note_attention(self, raw: Tensor, query: Tensor, key: Tensor, scoring: Scoring) -> None:
        """Remember what the policy asks for of the attention of T new tokens.

        raw, query: their queries before and after rotation, [B, H, T, D]. key: rotated keys of all
        entries, [B, K, N, D].
        """
        if self.attention_stats is not None:
            self.attention_stats = self.attention_stats.after(raw, query, key, scoring)

    def survivors(self) -> dict[str, Tensor]:
        """What is known about the survivors, by name: [B, K, S] each."""
        return {name: x for name in DESCRIPTION if (x := getattr(self, name, None)) is not None}

    def copy_survivors(self) -> None:
        """Keep what is known about the survivors in tensors of its own: a recorded cycle writes
        into them."""
        for name, x in self.survivors().items():
            setattr(self, name, x.clone())

    def move_survivors(self, places: dict[str, Tensor]) -> None:
        """Keep what is known about the survivors in these tensors, where a recording looks for it."""
        for name, place in places.items():
            if getattr(self, name) is not place:  # distilled otherwise in between
                place.copy_(getattr(self, name))
                setattr(self, name, place)

    def reserve(self, count: int) -> None:
        """Have slots for `count` more entries. Raises PotOverflow if they are more than the size."""
        stop = self.length + count
        if self.size is not None and stop > self.size:
            raise PotOverflow(f"{stop} entries in a pot of {self.size}")
        if stop > self.capacity:
            self._grow(max(stop, 2 * self.capacity))

    def _grow(self, size: int) -> None:
        old = self.slots
        rotated = self.rotated
        length = self.length
        self._allocate(size, self.keys, self.values)
        for slots, before in zip(self.slots, old, strict=True):
            slots.restore(before.state(length))
        if self.rotated is None or rotated is None or not length:
            return
        if self.reset:  # anew: some frequencies depend on the length
            rotated = self._rotate(self.slots[0].read(0, length), 0)
        self.rotated[:, :, :length] = rotated[:, :, :length]

    def rotate_queries(self, query: Tensor) -> Tensor:
        """Turn the queries [B, H, T, D] of the T newest entries."""
        return self._rotate(query, self.position - query.shape[-2])

    def keep(
        self,
        indices: Tensor,
        index: Tensor,
        novelty: Tensor,
        pinned: int,
        past: Tensor | None = None,
    ) -> None:
        """Distil in place: keep the entries at `indices` [B, K, C], ascending; the first `pinned`
        of them stay where they are.

        index, novelty, past [B, K, P] describe all entries before the distillation.
        """
        length = indices.shape[-1]
        for stored in self.slots:
            stored.move(pinned, indices[..., pinned:])
        self.index = index.gather(2, indices)
        self.novelty = novelty.gather(2, indices)
        if past is None:
            self.past = None
        else:
            self.past = past.gather(2, indices)
        if self.attention_stats is None:
            self.attention_stats = None
        else:
            self.attention_stats = self.attention_stats.select(indices)
        self.length = length
        if self.reset:
            self.position = length
        if self.rotated is not None:
            if self.reset:
                self.rotated[:, :, pinned:length] = self._rotate(
                    self.slots[0].read(pinned, length), pinned
                )
            else:
                self.rotated[:, :, :length] = self.rotated.gather(
                    2, indices[..., None].expand(*indices.shape, self.rotated.shape[-1])
                )

    def clear(self) -> None:
        """Forget all entries; the slots stay where they are."""
        self.length = self.peak = self.position = 0
        if self.is_initialized:
            self.index = self.index[..., :0]
            self.novelty = self.novelty[..., :0]
            self.past = None

    def mark(self) -> Any:
        return self.length, self.position, self.attention_stats

    def rollback(self, mark: Any) -> None:
        self.length, self.position, self.attention_stats = mark

    def copy(self) -> PotLayer:
        twin = copy.copy(self)
        if self.is_initialized:
            with torch.inference_mode(False):
                twin.slots = (self.slots[0].copy(), self.slots[1].copy())
                if self.rotated is None:
                    twin.rotated = None
                else:
                    twin.rotated = self.rotated.clone()
                twin.copy_survivors()
        return twin

    def state(self) -> dict[str, Tensor]:
        """Everything that cannot be computed again, without the empty slots."""
        named = zip(("keys", "values"), self.slots, strict=True)
        taken = {
            name + suffix: x
            for name, slots in named
            for suffix, x in slots.state(self.length).items()
        }
        if not self.reset and self.rotated is not None:
            taken["rotated"] = self.rotated[:, :, : self.length]
        return (
            taken
            | self.survivors()
            | ({} if self.attention_stats is None else self.attention_stats.state())
        )

    def restore(
        self, state: dict[str, Tensor], position: int, peak: int, dtype: torch.dtype
    ) -> None:
        """dtype: the model's, in which entries are read, whatever they are stored in."""
        length = state["keys"].shape[2]
        like = [state[name][:, :, :0].to(dtype) for name in ("keys", "values")]
        self.lazy_initialization(*like)
        if length > self.slots[0].size:
            self._allocate(length, *like)
        for name, slots in zip(("keys", "values"), self.slots, strict=True):
            slots.restore({suffix: state[name + suffix] for suffix in slots.state(0)})
        self.index = state["index"]
        self.novelty = state["novelty"]
        self.past = state.get("past")
        if self.attention_stats is None:
            self.attention_stats = None
        else:
            self.attention_stats = self.attention_stats.with_state(state)
        if self.rotated is not None:
            if self.reset:
                self.rotated[:, :, :length] = self._rotate(state["keys"], 0)
            else:
                self.rotated[:, :, :length] = state["rotated"]
        self.length = length
        self.position = position
        self.peak = peak

    def entry_bytes(self) -> int:
        """Bytes of all slots allocated (raw keys, the rotated copy, values) and of what is known
        about survivors."""
        if not self.is_initialized:
            return 0
        stored = [x for slots in self.slots for x in slots.tensors]
        if self.attention_stats is None:
            remembered = []
        else:
            remembered = list(self.attention_stats.state().values())
        if self.rotated is None:
            rotated = []
        else:
            rotated = [self.rotated]
        return sum(x.nbytes for x in (*stored, *rotated, *self.survivors().values(), *remembered))

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        if self.size is None:
            return -1
        return self.size
