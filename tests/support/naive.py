"""InfiniPot in plain loops around any transformers model: the naive twin for the families that `reference.py` does not know.

The model's own modules run, one token at a time, through transformers' own seams: an attention function and a cache of this file. Every
token is given position 0, where rotary embedding only scales; this file takes the scale off and rotates, by formula, with the model's own
frequencies in the style that the family's row states. Sinks, soft-cap and windows are applied here too. Nothing of infinipot is used.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from reference import Entry, Reference
from torch import Tensor
from transformers import AttentionInterface, DynamicCache
from transformers.cache_utils import Cache, CacheLayerMixin, LinearAttentionLayer
from transformers.masking_utils import AttentionMaskInterface


@dataclass
class Rope:
    """How one layer turns its keys: frequencies [d/2], and the factor that some kinds put on cos and sin."""

    style: str
    frequencies: Tensor
    scaling: float = 1.0

    def raw(self, x: Tensor) -> Tensor:
        """What was projected, from what the model turned at position 0. x [..., D]."""
        if self.scaling == 1:
            return x
        d = 2 * len(self.frequencies)
        return torch.cat((x[..., :d] / self.scaling, x[..., d:]), dim=-1)

    def turn(self, x: Tensor, positions: Sequence[int]) -> Tensor:
        """x [N, D], one position a row. half: dimension i turns with i + d/2; interleaved: 2i turns with 2i + 1."""
        half = len(self.frequencies)
        angles = torch.tensor(positions, dtype=torch.float32)[:, None] * self.frequencies
        cos, sin = angles.cos() * self.scaling, angles.sin() * self.scaling
        first, second = slice(half), slice(half, 2 * half)
        if self.style == "interleaved":
            first, second = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
        out = x.clone()
        out[:, first] = x[:, first] * cos - x[:, second] * sin
        out[:, second] = x[:, second] * cos + x[:, first] * sin
        return out


def own_frequencies(model: Any, layer_type: str | None = None) -> tuple[Tensor, float]:
    """Frequencies and factor as the model's rotary module holds them (by layer type, where it has several)."""
    rotary = next(m for m in model.modules() if type(m).__name__.endswith("RotaryEmbedding"))
    prefix = "" if layer_type is None else f"{layer_type}_"
    return getattr(rotary, f"{prefix}inv_freq").float(), float(
        getattr(rotary, f"{prefix}attention_scaling")
    )


class Passing(CacheLayerMixin):
    """Keeps nothing and gives back the new token's key and value: who attends to what is decided in `Naive.attend`."""

    is_sliding = False

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        return key_states, value_states

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return query_length, 0

    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        return -1


class PassingState(Passing, LinearAttentionLayer):
    """The same for a layer that carries a state as well, which transformers' own layer keeps."""

    def __init__(self, states: int) -> None:
        Passing.__init__(self)
        LinearAttentionLayer.__init__(self, number_of_states=states)

    def lazy_initialization(self, *args: Any, **states: Any) -> None:
        LinearAttentionLayer.lazy_initialization(self, **states)


AT_WORK: list[Naive] = []


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Any,
    scaling: float,
    dropout: float = 0.0,
    **options: Any,
) -> tuple[Tensor, None]:
    return AT_WORK[-1].attend(
        module.layer_idx, query[0, :, 0], key[0, :, 0], value[0, :, 0], scaling, options
    ), None


AttentionInterface.register("naive", attend)
AttentionMaskInterface.register("naive", lambda *args, **kwargs: None)


class Naive(Reference):
    """entries: [bounded layer][kv_head], in text order; layers with a window keep all they were given, in `held`.

    ropes: per layer its rotation, None without. windows: per layer its sliding window, None for full attention, 0 for a layer that attends
    to nothing (its state is kept in transformers' own cache layer, copied before the catalyst and put back).
    """

    def __init__(
        self, model: Any, *, ropes: Callable[[Any], list[Rope | None]], windows: Sequence[int | None], pot_size: int, distill_to: int,
        novelty: float = 0.25, catalyst: Sequence[int] = (), pinned: int = 0, sinks: int = 0, recent: int | None = None, pool: int = 7,
        pool_mode: str = "avg", gqa: str = "mean",
    ) -> None:  # fmt: skip
        self.model = copy.deepcopy(model)
        self.model.set_attn_implementation("naive")
        self.cache_name = (
            "cache"
            if "cache" in inspect.signature(type(model).forward).parameters
            else "past_key_values"
        )
        self.ropes, self.windows = ropes(model), list(windows)
        self.catalyst = list(catalyst) if novelty != 1.0 else []
        self.limit = pot_size - len(self.catalyst)
        self.pool, self.pool_mode, self.gqa, self.context_reset = pool, pool_mode, gqa, True
        recent = distill_to // 12 if recent is None else recent
        self.pinned, self.distill_to, self.sinks, self.recent, self.novelty = (
            pinned,
            distill_to,
            sinks,
            recent,
            novelty,
        )
        self.layers = [number for number, window in enumerate(self.windows) if window is None]
        self.held: dict[int, list[list[Entry]]] = {}
        self.cache = self.new_cache()
        self.rows: list[list[Tensor]] = []
        self.forward(1, 0, 0.0)  # tells how many heads there are; forgotten again
        self.heads, self.kv_heads = len(self.rows[0]), len(self.held[self.layers[0]])
        self.held = {number: [[] for _ in pots] for number, pots in self.held.items()}
        self.cache = self.new_cache()
        self.entries = [self.held[number] for number in self.layers]
        self.distillations = self.tokens_read = 0
        self.hidden = torch.empty(0)

    def new_cache(self) -> Cache:
        """transformers' own layers where no attention is, else nothing at all."""
        pairs = list(zip(DynamicCache(config=self.model.config).layers, self.windows, strict=True))
        passing = [
            PassingState(layer.number_of_states)
            if hasattr(layer, "number_of_states")
            else Passing()
            for layer, _ in pairs
        ]
        return Cache(
            layers=[
                layer if window == 0 else other
                for (layer, window), other in zip(pairs, passing, strict=True)
            ]
        )

    @torch.no_grad()
    def forward(self, token: int, index: int, novelty: float) -> tuple[Tensor, list[list[Tensor]]]:
        """One token. Gives its logits [V] (they stand where the reference has the hidden state) and [bounded layer][query head] attention."""
        self.rows, self.fresh = [], (index, novelty)
        AT_WORK.append(self)
        try:
            zero, ids = torch.zeros(1, 1, dtype=torch.long), torch.tensor([[token]])
            output = self.model(
                input_ids=ids, position_ids=zero, use_cache=True, **{self.cache_name: self.cache}
            )
        finally:
            AT_WORK.pop()
        return output.logits[0, 0], self.rows

    def logits(self) -> Tensor:
        return self.hidden

    def attend(
        self,
        number: int,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        scaling: float,
        options: dict[str, Any],
    ) -> Tensor:
        """queries [H, D], keys and values [K, D] of the new token, turned at position 0 -> [1, 1, H, D]."""
        rope, window, (index, novelty) = self.ropes[number], self.windows[number], self.fresh
        pots = self.held.setdefault(number, [[] for _ in keys])
        group, weights, mixed = len(queries) // len(keys), [], []
        for kv_head, pot in enumerate(pots):
            position = (
                len(pot) if window is None else index
            )  # by slot in the pot, absolute in a window
            key = keys[kv_head] if rope is None else rope.raw(keys[kv_head])
            pot.append(Entry(key, values[kv_head], novelty, index, position))
            seen = (
                pot
                if window is None
                else [entry for entry in pot if entry.position > index - window]
            )
            places = [entry.position for entry in seen]
            turned = torch.stack([entry.key_raw for entry in seen])
            held = torch.stack([entry.value for entry in seen])
            asked = queries[kv_head * group : (kv_head + 1) * group]
            if rope is not None:
                turned = rope.turn(turned, places)
                asked = rope.turn(rope.raw(asked), [position] * group)
            for head, query in enumerate(asked, kv_head * group):
                scores = turned @ query * scaling
                if options.get("softcap") is not None:
                    scores = options["softcap"] * torch.tanh(scores / options["softcap"])
                if (
                    options.get("s_aux") is not None
                ):  # a learnt score that takes its share and gives nothing
                    scores = torch.cat((scores, options["s_aux"][head : head + 1]))
                shares = scores.softmax(dim=0)[: len(seen)]
                weights.append(shares)
                mixed.append(shares @ held)
        if window is None:
            self.rows.append(weights)
        return torch.stack(mixed)[None, None]

    def representativeness(self) -> list[list[list[float]]]:
        states = copy.deepcopy(self.cache)
        lengths = {number: len(pots[0]) for number, pots in self.held.items()}
        scores = super().representativeness()
        self.cache = states
        for number, pots in self.held.items():
            for pot in pots:
                del pot[lengths[number] :]
        return scores
