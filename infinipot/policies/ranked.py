"""Ranks that an entry gets once: each entry is compared with those of its own chunk only, so that old
entries do not lose against new ones as the pot fills.

The difference of keys (KeyDiff) and the tokens' novelty (NuC) say what may matter. No prompt is read, so
the survivors do not depend on the question (docs/log.md, 2026-11-29).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from infinipot.checks import finite_number
from infinipot.policies.base import Observation
from infinipot.policies.keydiff import unlike
from infinipot.policies.options import Attended, Prompted, check_name
from infinipot.scoring.ranks import REDUCTIONS, pool_spans, ranks, union
from infinipot.scoring.selection import pool


@dataclass(frozen=True, kw_only=True)
class Ranked(Prompted, Attended):
    """Each signal ranks the new entries of a head. A weight of 0 leaves a signal out."""

    name = "ranked"
    summary = "entries of the highest ranks in their chunk, by unlike keys and novelty"
    stacks = True

    by_keys: float = 1.0
    """Weight of the difference of keys from the head's mean key (KeyDiff). A high rank by one signal
    is enough; signals get places in proportion to their weights, and 0 leaves a signal out."""
    by_novelty: float = 0.33
    """Weight of the tokens' novelty (NuC)."""
    by_catalyst: float = 0.0
    """Weight of the attention from the catalyst (CaP). With 0 no catalyst is read."""
    sentences: str | None = None
    """Smooth over whole sentences instead of `pool` slots: `mean` or `max` of each."""
    shared_layers: bool = False
    """Whether all heads of all layers of one size keep the same entries, by the mean of their ranks."""
    score_memory: float | str = 1.0
    """How much of its rank an entry keeps at every later distillation: 1 keeps it for ever, 0 ranks all
    entries anew. `once`: as 1, by a catalyst that does not see older survivors."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, weight in self.weights.items():
            finite_number(f"by_{name}", weight, 0)
        if not any(self.weights.values()):
            raise ValueError("all weights are 0, so nothing tells entries apart: give one above 0")
        check_name("sentences", self.sentences, REDUCTIONS, optional=True)
        if not isinstance(self.shared_layers, bool):
            raise TypeError(
                f"shared_layers={self.shared_layers!r} is not allowed: it must be True or False"
            )
        if self.sentences is not None and self.score_memory == 0:
            raise ValueError(
                "sentences needs score_memory above 0: only new entries stand in whole sentences"
            )
        if self.sentences is not None and self.pool:
            raise ValueError(
                f"sentences={self.sentences!r} and pool={self.pool} both smooth: give one of them"
            )

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each signal by its name."""
        return {"keys": self.by_keys, "novelty": self.by_novelty, "catalyst": self.by_catalyst}

    def needs(self) -> frozenset[str]:
        needs = {name for name in ("novelty", "catalyst") if self.weights[name]}
        if self.sentences is not None:
            needs.add("sentences")
        return frozenset(needs)

    def default_recent(self, budget: int) -> int:
        return budget // 12

    def default_smoothing(self, budget: int, asked: bool) -> tuple[int, str]:
        if self.sentences is not None:
            return 0, "avg"
        return 7, "avg"

    @property
    def smooths(self) -> bool:
        return False

    def judge(self, layer: Observation) -> Tensor:
        return self.judge_layers([layer])

    def judge_layers(self, layers: Sequence[Observation]) -> Tensor:
        """Ranks of all entries, 0 .. 1, [L, K, P]. Older survivors keep the ranks that they have."""
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
                scores = torch.cat([signal(layer, name)[..., start:] for layer in layers])
                signals.append(self._rank(scores, layers[0]))
                weights.append(weight)
        ranked = ranks(union(signals, weights))
        ranked = ranked / ranked.shape[-1]
        return ranked.expand(
            sum(len(layer.index) for layer in layers), layers[0].index.shape[1], -1
        )

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
    """One signal, [L, K, P]."""
    if name == "keys":
        return unlike(layer.rotated)
    return layer.require(name)
