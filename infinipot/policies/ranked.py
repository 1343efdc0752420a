"""Ranks by several signals, given once: each entry is compared with those of its own chunk only, so
that old entries do not lose against new ones as the pot fills."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from infinipot.checks import finite_number, whole_number
from infinipot.policies.base import Observation
from infinipot.policies.keydiff import unlike
from infinipot.policies.options import Attended, Prompted, check_name
from infinipot.scoring.ranks import REDUCTIONS, UNIONS, pool_spans, ranks, union
from infinipot.scoring.selection import pool


@dataclass(frozen=True, kw_only=True)
class Ranked(Prompted, Attended):
    """Each signal ranks the new entries of a head. A weight of 0 leaves a signal out."""

    name = "ranked"
    summary = "entries of the highest ranks in their chunk, by several signals"

    by_novelty: float = 1.0
    """Weight of the tokens' novelty (NuC)."""
    by_keys: float = 1.0
    """Weight of the difference of keys from the head's mean key (KeyDiff)."""
    by_catalyst: float = 1.0
    """Weight of the attention from the catalyst (CaP)."""
    by_newest: float = 0.0
    """Weight of the attention from the newest `window` tokens."""
    by_expected: float = 0.0
    """Weight of the attention that queries like the newest `window` are expected to pay."""
    by_values: float = 0.0
    """Weight of the length of the values."""
    union: str = "any"
    """How ranks become one score: `any`, a high rank by one signal is enough, with places by weight;
    `mean`, the weighted mean."""
    sentences: str | None = None
    """Instead of a window, smooth over sentences: `mean` or `max` of each. None: by `pool`."""
    shared_layers: bool = False
    """Whether all heads of all layers of one size keep the same entries, by their mean ranks."""
    window: int = 128
    """Number of newest tokens of which `by_newest` and `by_expected` speak."""
    score_memory: float | str = 1.0
    """1: the first rank counts for ever. Below 1 it fades with every distillation. 0: all entries are
    ranked anew. `once`: as 1, by a catalyst that does not see older survivors."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, weight in self.weights.items():
            finite_number(f"by_{name}", weight, 0)
        if not any(self.weights.values()):
            raise ValueError("all weights are 0, so nothing tells entries apart: give one above 0")
        whole_number("window", self.window, 1)
        check_name("union", self.union, UNIONS)
        check_name("sentences", self.sentences, REDUCTIONS, optional=True)
        if not isinstance(self.shared_layers, bool):
            raise TypeError(
                f"shared_layers={self.shared_layers!r} is not allowed: it must be True or False"
            )
        if self.sentences is not None and self.score_memory == 0:
            raise ValueError(
                "sentences needs score_memory above 0: only new entries stand in whole sentences"
            )

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each signal by its name."""
        names = ("novelty", "keys", "catalyst", "newest", "expected", "values")
        return {name: getattr(self, f"by_{name}") for name in names}

    def needs(self) -> frozenset[str]:
        observed = ("novelty", "catalyst", "newest", "expected")
        needs = {name for name in observed if self.weights[name]}
        if self.sentences is not None:
            needs.add("sentences")
        return frozenset(needs)

    def default_recent(self, budget: int) -> int:
        return budget // 12

    def default_smoothing(self, budget: int, asked: bool) -> tuple[int, str]:
        return 7, "avg"

    @property
    def smooths(self) -> bool:
        return False

    def judge(self, layer: Observation) -> Tensor:
        return self.judge_layers([layer])

    def judge_layers(self, layers: Sequence[Observation]) -> Tensor:
        """Older survivors keep the ranks that they have."""
        past = [layer.past for layer in layers if layer.past is not None]
        if not past:
            return self._ranks(layers, 0)
        old = torch.cat(past)
        if self.score_memory != "once":
            old = float(self.score_memory) * old
        return torch.cat((old, self._ranks(layers, old.shape[-1])), dim=-1)

    def _ranks(self, layers: Sequence[Observation], start: int) -> Tensor:
        """The ranks of the entries from `start` on, [L, K, P - start], above 0 and at most 1."""
        signals = []
        weights = []
        for name, weight in self.weights.items():
            if weight:
                scores = torch.cat([signal(layer, name) for layer in layers])
                signals.append(self._rank(scores[..., start:], layers[0]))
                weights.append(weight)
        ranked = ranks(union(signals, weights, self.union))
        ranked = ranked / ranked.shape[-1]
        return ranked.expand(len(layers), layers[0].index.shape[1], -1)

    def _rank(self, scores: Tensor, layer: Observation) -> Tensor:
        """Ranks after smoothing, for each head, or for all together."""
        if self.sentences is not None:
            spans = layer.require("sentences")[-scores.shape[-1] :]
            scores = pool_spans(scores, spans, self.sentences)
        else:
            scores = pool(scores, layer.pool, layer.pool_mode)
        ranked = ranks(scores)
        if self.shared_layers:
            return ranks(ranked.sum(dim=(0, 1), keepdim=True))
        if self.shared_heads:
            return ranks(ranked.sum(dim=1, keepdim=True))
        return ranked


def signal(layer: Observation, name: str) -> Tensor:
    """One signal of a layer, [B, K, P]."""
    if name == "keys":
        return unlike(layer.rotated)
    if name == "values":
        return layer.values.float().norm(dim=-1)
    if name == "newest":  # the newest entries are seen by fewer tokens
        entries = layer.index.shape[-1]
        seen_by = torch.arange(entries, 0, -1, device=layer.index.device).clamp(max=layer.window)
        return layer.require(name) / seen_by
    return layer.require(name)
