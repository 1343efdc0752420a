"""Entries that stand out from their chunk, alone and as part of their sentence: for texts whose
question is not known while they are read.

Keys unlike the others (KeyDiff) and novel tokens (NuC) stand out. An entry gets its score once, beside
the entries of its own chunk, so that old entries do not lose against new ones as the pot fills. No
prompt is read (docs/log.md, 2026-11-29).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from infinipot.checks import finite_number
from infinipot.policies.base import Observation, fixed
from infinipot.policies.keydiff import unlike
from infinipot.policies.options import Ends
from infinipot.scoring.outliers import joined, outlier_scores


@dataclass(frozen=True, kw_only=True)
class Outliers(Ends):
    name = "outliers"
    summary = (
        "entries that stand out from their chunk, and their sentences; the question comes later"
    )
    stacks = True

    by_novelty: float = 0.33
    """Weight of the tokens' novelty (NuC), beside 1 for unlike keys (KeyDiff)."""
    by_sentence: float = 1.0
    """Weight of how far an entry's sentence stands out, beside 1 for the entry itself."""

    score_memory = fixed(1.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        finite_number("by_novelty", self.by_novelty, 0)
        finite_number("by_sentence", self.by_sentence, 0)

    def needs(self) -> frozenset[str]:
        needs = set()
        if self.by_novelty:
            needs.add("novelty")
        if self.by_sentence:
            needs.add("sentences")
        return frozenset(needs)

    def default_recent(self, budget: int) -> int:
        return budget // 12

    def judge(self, layer: Observation) -> Tensor:
        return self.judge_layers([layer])

    def judge_layers(self, layers: Sequence[Observation]) -> Tensor:
        """Scores of all entries, [L, K, P]. Older survivors keep the scores that they have. A
        sentence counts by all of these layers: those judged apart (on several GPUs, with `--spread`,
        or of several shapes) go by their own."""
        past = joined([layer.past for layer in layers if layer.past is not None])
        start = past.shape[-1]
        signals = [torch.cat([unlike(layer.rotated)[..., start:] for layer in layers])]
        weights = [1.0]
        if self.by_novelty:
            signals.append(torch.cat([layer.require("novelty")[..., start:] for layer in layers]))
            weights.append(self.by_novelty)
        spans = None
        if self.by_sentence:
            spans = layers[0].require("sentences")[-signals[0].shape[-1] :]
        across = layers[0].mean_of_ranks
        new = outlier_scores(signals, weights, spans, self.by_sentence, across)
        if start:
            return torch.cat((past, new), dim=-1)
        return new
