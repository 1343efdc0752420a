"""InfiniPot (arXiv 2410.01518) in plain loops: the naive twin the fast code is compared with. Batch 1, float32, CPU.
Reads the weights of a Llama, Mistral, Qwen2 or Qwen3 model (default RoPE, no sliding window) and runs its own forward.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass
class Entry:
    key_raw: Tensor   # [D], before RoPE
    value: Tensor     # [D]
    novelty: float    # Eq. 4: -log p(token | the pot when it was read), kept for ever
    index: int        # which token of the text this is: 0, 1, 2, ...
    position: int     # where RoPE puts it: its slot, or, without context reset, its index


def linear(layer: Any, x: Tensor) -> Tensor:
    return torch.nn.functional.linear(x, layer.weight, layer.bias)


def rms_norm(weight: Tensor, x: Tensor, eps: float) -> Tensor:
    return weight * (x * torch.rsqrt((x * x).mean() + eps))


def rope(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """Rotates the rows of `x` [N, D], half style: dim i turns with dim i + D/2."""
    half = x.shape[-1] // 2
    angle = positions[:, None].float() * (1.0 / theta ** (torch.arange(half).float() / half))  # [N, D/2]
    cos, sin = angle.cos(), angle.sin()
    a, b = x[:, :half], x[:, half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def smooth(scores: list[float], kernel: int, kind: str) -> list[float]:
    """Mean or maximum over the `kernel` slots around each slot; at the edges, over those that exist; 0, 1: as it is.
    trailing: over the slot and those before it."""
    if kind == "trailing" and kernel > 1:
        return [sum(w) / len(w) for w in (scores[max(0, s - kernel + 1): s + 1] for s in range(len(scores)))]
    windows = [scores[max(0, s - kernel // 2): s + kernel // 2 + 1] for s in range(len(scores))]
    return [max(w) if kind == "max" else sum(w) / len(w) for w in windows]


def select(novelties: list[float], scores: list[float], pinned: int, distill_to: int, sinks: int, recent: int,
           novelty: float) -> list[int]:
    """Section 3.3.3, one head: the slots that stay, ascending. Novelty chooses first, then the catalyst's score."""
    n = len(novelties)
    kept = set(range(pinned + sinks)) | set(range(n - recent, n))
    free = distill_to - sinks - recent
    by_novelty = int(novelty * free + 0.5)  # T
    for wanted, measure in ((by_novelty, novelties), (free - by_novelty, scores)):
        left = [s for s in range(n) if s not in kept]
        kept |= set(sorted(left, key=lambda s: (-measure[s], s))[:wanted])  # ties: the lower slot wins
    return sorted(kept)


class Reference:
    entries: list[list[list[Entry]]]  # [layer][kv_head], in text order
    distillations: int                # those that evicted something

    def __init__(self, model: Any, *, pot_size: int, distill_to: int, novelty: float = 0.25,
                 catalyst: Sequence[int] = (), pinned: int = 0, sinks: int = 0, recent: int | None = None, pool: int = 7,
                 pool_mode: str = "avg", gqa: str = "mean", context_reset: bool = True) -> None:
        self.model, self.layers = model, model.model.layers
        self.eps, self.theta = model.config.rms_norm_eps, model.config.rope_parameters["rope_theta"]
        self.heads, self.kv_heads = model.config.num_attention_heads, model.config.num_key_value_heads
        self.catalyst = list(catalyst) if novelty != 1.0 else []  # nobody would look at its scores
        self.limit = pot_size - len(self.catalyst)  # the catalyst must fit in the pot too
        self.pool, self.pool_mode, self.gqa, self.context_reset = pool, pool_mode, gqa, context_reset
        recent = distill_to // 12 if recent is None else recent
        self.pinned, self.distill_to, self.sinks, self.recent, self.novelty = pinned, distill_to, sinks, recent, novelty
        assert model.config.rope_parameters["rope_type"] == "default" and model.config.hidden_act == "silu"
        assert pinned + distill_to < self.limit, "pot_size leaves no room for reading"
        assert sinks + recent <= distill_to and (pool <= 1 or pool % 2 == 1) and pool_mode in ("avg", "max", "trailing")
        self.entries = [[[] for _ in range(self.kv_heads)] for _ in self.layers]
        self.distillations = self.tokens_read = 0
        self.hidden = torch.empty(0)  # of the last token of the text, after the final norm

    @torch.no_grad()
    def read(self, ids: Sequence[int]) -> None:
        for token in ids:
            if len(self.entries[0][0]) == self.limit:
                self.distil()
            novelty = 0.0 if self.tokens_read == 0 else -torch.log_softmax(self.logits(), dim=0)[token].item()
            self.hidden, _ = self.forward(token, self.tokens_read, novelty)
            self.tokens_read += 1

    def logits(self) -> Tensor:
        """[V], float32: the prediction made when the last token of the text was read."""
        return linear(self.model.lm_head, self.hidden)

    def forward(self, token: int, index: int, novelty: float, unseen: Sequence[tuple[int, int]] = ()
                ) -> tuple[Tensor, list[list[Tensor]]]:
        """One token: appends an entry to every head; gives the last hidden state and [layer][query_head] attention.
        unseen: by layer, slots [start, stop) that it does not look at."""
        x, rows, self.asked = self.model.model.embed_tokens.weight[token], [], []  # asked: [layer] -> queries [H, D], raw
        unseen = unseen or [(0, 0)] * len(self.layers)
        for layer, pots, hidden in zip(self.layers, self.entries, unseen, strict=True):
            attention = layer.self_attn
            y = rms_norm(layer.input_layernorm.weight, x, self.eps)
            queries = linear(attention.q_proj, y).view(self.heads, -1)
            keys, values = (linear(p, y).view(self.kv_heads, -1) for p in (attention.k_proj, attention.v_proj))
            if hasattr(attention, "q_norm"):  # Qwen3: per head, before RoPE
                queries = torch.stack([rms_norm(attention.q_norm.weight, q, self.eps) for q in queries])
                keys = torch.stack([rms_norm(attention.k_norm.weight, k, self.eps) for k in keys])
            self.asked.append(queries)
            position = len(pots[0]) if self.context_reset else index
            asked = rope(queries, torch.full((self.heads,), position), self.theta)  # a query sits where its own entry does
            weights, mixed = [], []  # by query head
            for kv_head, pot in enumerate(pots):
                pot.append(Entry(keys[kv_head], values[kv_head], novelty, index, position))
                places = torch.tensor([e.position for e in pot])
                turned = rope(torch.stack([e.key_raw for e in pot]), places, self.theta)
                stacked = torch.stack([e.value for e in pot])
                group = self.heads // self.kv_heads
                for query in asked[kv_head * group: (kv_head + 1) * group]:
                    scores = turned @ query / len(query) ** 0.5
                    scores[hidden[0]: hidden[1]] = -torch.inf
                    weights.append(scores.softmax(dim=0))
                    mixed.append(weights[-1] @ stacked)
            rows.append(weights)
            x = x + linear(attention.o_proj, torch.cat(mixed))
            y = rms_norm(layer.post_attention_layernorm.weight, x, self.eps)
            gate = linear(layer.mlp.gate_proj, y)
            x = x + linear(layer.mlp.down_proj, gate * torch.sigmoid(gate) * linear(layer.mlp.up_proj, y))
        return rms_norm(self.model.model.norm.weight, x, self.eps), rows

    def representativeness(self, unseen: Sequence[tuple[int, int]] = ()) -> list[list[list[float]]]:
        """Eq. 2: [layer][kv_head][slot], the attention each entry gets from the catalyst, which is then forgotten."""
        held = [len(pots[0]) for pots in self.entries]
        sums = [[torch.zeros(n) for _ in range(self.heads)] for n in held]
        for i, token in enumerate(self.catalyst):
            _, rows = self.forward(token, self.tokens_read + i, 0.0, *([unseen] if unseen else []))
            # The catalyst's own columns are dropped; the rest is not renormalised
            sums = [[s + row[:n] for s, row in zip(*pair, strict=True)] for n, *pair in zip(held, sums, rows, strict=True)]
        for n, pots in zip(held, self.entries, strict=True):
            for pot in pots:
                del pot[n:]
        grouped = [torch.stack(per_head).view(self.kv_heads, -1, n) for n, per_head in zip(held, sums, strict=True)]
        return [{"mean": g.mean(1), "max": g.amax(1), "sum": g.sum(1)}[self.gqa].tolist() for g in grouped]

    @torch.no_grad()
    def distil(self) -> None:
        """Section 3.2: evicts down to `pinned + distill_to` entries, per layer and KV head."""
        if len(self.entries[0][0]) <= self.pinned + self.distill_to:
            return
        for pots, scores in zip(self.entries, self.representativeness(), strict=True):
            for pot, score in zip(pots, scores, strict=True):
                smoothed = score[:self.pinned] + smooth(score[self.pinned:], self.pool, self.pool_mode)
                pot[:] = [pot[slot] for slot in select([e.novelty for e in pot], smoothed, self.pinned, self.distill_to,
                                                       self.sinks, self.recent, self.novelty)]
                if self.context_reset:  # CR-RoPE, section 3.5
                    for slot, entry in enumerate(pot):
                        entry.position = slot
        self.distillations += 1
