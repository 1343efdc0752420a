"""Entries by the attention of the question, their own and that of their sentence: for texts whose
question is known while they are read.

Attention of one head to one token is noisy: a sentence that the question is about gets some from
most of its tokens and heads, in the later half of the layers above all. What the early layers look
at hardly depends on the question. An entry gets its score once, beside the entries of its own chunk
(docs/log.md, 2026-11-30).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from infinipot.checks import finite_number
from infinipot.policies.base import Observation, fixed
from infinipot.policies.options import Ends, Prompting
from infinipot.scoring.outliers import joined, span_means

LEAST = 1e-3
"""Added to attention before its logarithm, in shares of what an average entry gets."""


@dataclass(frozen=True, kw_only=True)
class Relevance(Prompting, Ends):
    name = "relevance"
    summary = "entries that the question attends to, with the sentences they stand in"
    stacks = True

    by_sentence: float = 2.0
    """Weight of the logarithm of a sentence's attention, beside 1 for that of the entry's own."""

    score_memory = fixed(1.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        finite_number("by_sentence", self.by_sentence, 0)

    def needs(self) -> frozenset[str]:
        return frozenset({"catalyst", "sentences"})

    def default_recent(self, budget: int) -> int:
        return budget // 12

    def judge(self, layer: Observation) -> Tensor:
        return self.judge_layers([layer])

    def judge_layers(self, layers: Sequence[Observation]) -> Tensor:
        """Scores of all entries, [L, K, P]. Older survivors keep the scores that they have.

        An entry's score is log(own + LEAST) + by_sentence * log(sentence + LEAST). own: the attention
        that it receives in its head, beside 1 for an average entry. sentence: the mean over the
        entries of its sentence, in all heads of the later half of these layers. So layers that are
        judged apart (on several GPUs, with `--spread`, or of several shapes) go by their own later
        half. Of an odd number of layers the middle one is a later one.
        """
        received = joined([layer.require("catalyst") for layer in layers])
        past = joined([layer.past for layer in layers if layer.past is not None])
        old = past.shape[-1]
        own = received[..., old:].float() * received.shape[-1]
        spans = layers[0].require("sentences")[-own.shape[-1] :]
        later = own[len(own) // 2 :].mean(dim=(0, 1), keepdim=True)
        sentence = span_means(layers[0].mean_of_ranks(later), spans)
        scores = own.add_(LEAST).log_()  # in place: made here
        scores += self.by_sentence * (sentence + LEAST).log()
        if old:
            return torch.cat((past, scores), dim=-1)
        return scores
