"""One layer's entries, in slots allocated once.

Keys are stored raw. On a GPU, and for eight-bit entries, they are rotated whenever attention reads
them. Elsewhere that would cost too much: a rotated copy of them is stored, too. Every distillation
makes it anew from the raw keys, so errors do not accumulate.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from infinipot.cache.attention_stats import AttentionStats
from infinipot.cache.rope import Rotation
from infinipot.cache.slot_pair import SlotPair
from infinipot.cache.storage import Block, Slots
from infinipot.cache.survivors import SurvivorRecords
from infinipot.compat import CacheLayerMixin
from infinipot.kernels import pots
from infinipot.scoring.representativeness import Scoring

GROWTH = 1024
"""Least number of slots by which a layer without a bound grows, and of a restored layer."""


class PotOverflow(AssertionError):
    """More entries than a layer's size: a bug of this library, never of its user."""


class PotLayer(SlotPair, SurvivorRecords, CacheLayerMixin):
    """Entries of one layer in `size` slots, [B, K, size, D]. Slots 0 .. length-1 contain entries, in
    text order.

    size None: no bound. reset False: an entry keeps the position at which it was read (the paper's
    ablation of CR-RoPE). kind: the eight-bit type of stored entries, None for the model's own.
    attention_stats: what is remembered of attention.
    """

    is_sliding = is_compileable = is_croppable = False
    window: int | None = None
    rotated: Tensor | None

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

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self._initialize(self.size or GROWTH, key_states, value_states)

    def _initialize(self, slots: int, key_states: Tensor, value_states: Tensor) -> None:
        self.device = key_states.device
        self.dtype = key_states.dtype
        self._allocate(slots, key_states, value_states)
        batch, heads = key_states.shape[:2]
        self._new_survivors(batch, heads, self.device)
        self.is_initialized = True

    def _allocate(self, size: int, key: Tensor, value: Tensor) -> None:
        if self.rotation is not None:
            self.rotation.reserve(size, key.device)
        self.slots = self.new_slots(size, key, value)
        self.rotated = None
        if self.rotation is not None and self.kind is None and not self._rotates_when_read(key):
            self.rotated = Slots(key, size).data

    def _rotates_when_read(self, key: Tensor) -> bool:
        """Whether keys are rotated when attention reads them. The ablation with growing positions
        must store them rotated."""
        return self.reset and pots.supports(key)

    def _rotate(self, x: Tensor, start: int) -> Tensor:
        if self.rotation is None:
            return x
        if self.reset:
            return self.rotation.rotate(x, start)
        return self.rotation.rotate_untabled(x, start)

    def read_keys(self, start: int, stop: int) -> Tensor:
        """Keys of the slots start .. stop-1 as attention reads them, [B, K, stop-start, D]."""
        if self.rotated is not None:
            return self.rotated[:, :, start:stop]
        return self._rotate(self.slots[0].read(start, stop), start)

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        *args: Any,
        rotated: Tensor | None = None,
        **more: Any,
    ) -> tuple[Tensor, Tensor]:
        """Append entries [B, K, T, D], keys raw. Returns rotated keys and values of all entries.

        rotated: the new keys rotated, if already computed.
        """
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        count = key_states.shape[-2]
        self.reserve(count)
        self.write(self.length, key_states, value_states, rotated)
        self.advance(count)
        return self.read_keys(0, self.length), self.read_values(0, self.length)

    def write(self, start: int, key: Tensor, value: Tensor, rotated: Tensor | None = None) -> None:
        """Write entries [B, K, T, D], keys raw, to the slots from `start` on. They are not counted."""
        for slots, x in zip(self.slots, (key, value), strict=True):
            slots.write(start, x)
        if self.rotated is not None:
            if rotated is None:
                rotated = self._rotate(key, self._position(start))
            self.rotated[:, :, start : start + key.shape[-2]] = rotated

    def _position(self, slot: int) -> int:
        """The position of a slot that is being written."""
        if self.reset:
            return slot
        return self.position + slot - self.length

    def advance(self, count: int) -> None:
        """Count `count` more entries; fewer if negative. Their slots are written."""
        self.length += count
        self.position += count
        if self.length > self.peak:
            self.peak = self.length

    @property
    def by_address(self) -> bool:
        """Whether a kernel can use the slots by their address: dense, with positions that are slots."""
        return (
            self.is_initialized
            and self.reset
            and all(slots.data.shape[0] == 1 for slots in self.slots)
        )

    def note_peak(self, peak: int) -> None:
        """Note a number of entries at one moment."""
        self.peak = max(self.peak, peak)

    def note_attention(self, raw: Tensor, query: Tensor, key: Tensor, scoring: Scoring) -> None:
        """Update the attention statistics with T new tokens. raw, query: their queries before and after
        rotation, [B, H, T, D]. key: rotated keys of all entries, [B, K, N, D]."""
        if self.attention_stats is not None:
            self.attention_stats = self.attention_stats.after(raw, query, key, scoring)

    def note_hidden(self, states: Tensor) -> None:
        """Remember the hidden states of T new tokens [B, T, hidden], if they are asked for."""
        if self.attention_stats is not None:
            self.attention_stats = self.attention_stats.with_hidden(states)

    def reserve(self, count: int) -> None:
        """Make sure of slots for `count` more entries. Raises PotOverflow beyond the size."""
        stop = self.length + count
        if self.size is not None and stop > self.size:
            raise PotOverflow(f"{stop} entries in a pot of {self.size}")
        if stop > self.capacity:
            slots = max(stop, 2 * self.capacity)
            self._grow(min(slots, self.size or slots))

    def _grow(self, size: int) -> None:
        old = self.slots
        rotated = self.rotated
        length = self.length
        self._allocate(size, self.keys, self.values)
        for slots, before in zip(self.slots, old, strict=True):
            slots.restore(before.state(length))
        if self.rotated is None or rotated is None or not length:
            return
        if self.reset:  # some frequencies depend on the length
            rotated = self._rotate(self.slots[0].read(0, length), 0)
        self.rotated[:, :, :length] = rotated[:, :, :length]

    def rotate_queries(self, query: Tensor) -> Tensor:
        """Rotate the queries [B, H, T, D] of the T newest entries."""
        return self._rotate(query, self.position - query.shape[-2])

    def rotate_from(self, query: Tensor, slot: int) -> Tensor:
        """Rotate the queries [B, H, T, D] of the entries from a slot on."""
        return self._rotate(query, self._position(slot))

    def keep(self, indices: Tensor, pinned: int, records: list[Tensor], moved: bool) -> None:
        """Distil in place: keep the entries at `indices` [B, K, C], ascending. The first `pinned`
        indices are those of the pinned entries.

        records: place in the text, NuC, and the score if it is stored, of what is kept, [B, K, C].
        moved: the slots are compacted already.
        """
        length = indices.shape[-1]
        if not moved:
            for stored in self.slots:
                stored.move(pinned, indices[..., pinned:])
        self.index, self.novelty, *past = records
        self.past = next(iter(past), None)
        if self.attention_stats is not None:
            self.attention_stats = self.attention_stats.select(indices)
        self.length = length
        if self.reset:
            self.position = length
        if self.rotated is not None and self.reset:
            keys = self.slots[0].read(pinned, length)
            self.rotated[:, :, pinned:length] = self._rotate(keys, pinned)
        elif self.rotated is not None:
            rows = indices[..., None].expand(*indices.shape, self.rotated.shape[-1])
            self.rotated[:, :, :length] = self.rotated.gather(2, rows)

    def mark(self) -> Any:
        return self.length, self.position, self.attention_stats

    def rollback(self, mark: Any) -> None:
        self.length, self.position, self.attention_stats = mark

    def copy(self, block: Block | None = None) -> PotLayer:
        """block: a copy of the layer's block, with its slots."""
        twin = copy.copy(self)
        twin.block = block
        if self.is_initialized:
            with torch.inference_mode(False):
                twin.slots = self.copy_slots(block)
                if self.rotated is not None:
                    twin.rotated = self.rotated.clone()
        return twin

    def state(self) -> dict[str, Tensor]:
        """All tensors that cannot be recomputed, without the empty slots."""
        state: dict[str, Tensor] = {}
        for name, slots in zip(("keys", "values"), self.slots, strict=True):
            for suffix, x in slots.state(self.length).items():
                state[name + suffix] = x
        if not self.reset and self.rotated is not None:
            state["rotated"] = self.rotated[:, :, : self.length]
        state |= self.survivors()
        state["index"] = self.index.long()
        if self.attention_stats is not None:
            state |= self.attention_stats.state()
        return state

    def restore(
        self, state: dict[str, Tensor], position: int, peak: int, dtype: torch.dtype
    ) -> None:
        """dtype: the model's, which need not be that of the stored entries. Allocates few more slots than
        the state has entries. Raises ValueError for more entries than the size."""
        length = state["keys"].shape[2]
        if self.size is not None and length > self.size:
            raise ValueError(f"{length} entries in a pot of {self.size}")
        like = [state[name][:, :, :0].to(dtype) for name in ("keys", "values")]
        first = max(length, GROWTH)  # a file may name any size: more come with more entries
        self._initialize(min(first, self.size or first), *like)
        for name, slots in zip(("keys", "values"), self.slots, strict=True):
            slots.restore({suffix: state[name + suffix] for suffix in slots.state(0)})
        self.restore_survivors(state)
        if self.attention_stats is not None:
            self.attention_stats = self.attention_stats.with_state(state)
        if self.rotated is not None and self.reset:
            self.rotated[:, :, :length] = self._rotate(state["keys"], 0)
        elif self.rotated is not None:
            self.rotated[:, :, :length] = state["rotated"]
        self.length = length
        self.position = position
        self.peak = peak

    def entry_bytes(self) -> int:
        """Bytes of all allocated slots (raw keys, rotated keys, values), of the records about
        survivors and of the attention statistics."""
        if not self.is_initialized:
            return 0
        tensors = [x for slots in self.slots for x in slots.tensors]
        tensors += self.survivors().values()
        if self.rotated is not None:
            tensors.append(self.rotated)
        if self.attention_stats is not None:
            tensors += self.attention_stats.state().values()
        return sum(x.nbytes for x in tensors)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        if self.size is None:
            return -1
        return self.size
