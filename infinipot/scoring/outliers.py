"""How far entries stand out from their chunk, alone and as part of their sentence."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

LONGEST = 64
"""Most tokens of a span. Longer sentences are cut."""
LEAST = 1e-6
"""Least standard deviation, against a division by 0."""


def standard_scores(scores: Tensor) -> Tensor:
    """Scores less their mean, in standard deviations, along the last dimension, float32."""
    scores = scores.float()
    mean = scores.mean(dim=-1, keepdim=True)
    deviation = scores.std(dim=-1, keepdim=True, correction=0)
    return (scores - mean) / deviation.clamp_min(LEAST)


def outlier_scores(
    signals: Sequence[Tensor],
    weights: Sequence[float],
    spans: Tensor | None,
    by_sentence: float,
    mean_of_ranks: Callable[[Tensor], Tensor] = lambda x: x,
) -> Tensor:
    """One score for each entry from several signals [L, K, P], with their weights.

    An entry counts by its own standard score in its head, plus `by_sentence` times that of its
    sentence, which is the mean over its entries, all heads and all layers. spans: [P], as from
    `span_numbers`; None: entries count alone. mean_of_ranks: the mean of a tensor over the processes
    that share out the heads.
    """
    total = torch.zeros_like(signals[0], dtype=torch.float32)
    for signal, weight in zip(signals, weights, strict=True):
        total = total + weight * standard_scores(signal)
    own = standard_scores(total)
    if spans is None:
        return own
    everywhere = mean_of_ranks(total.mean(dim=(0, 1), keepdim=True))
    return own + by_sentence * standard_scores(span_means(everywhere, spans))


def span_numbers(ends: Tensor, longest: int = LONGEST) -> Tensor:
    """The number of the span in which each token stands, from 0, [F] int64.

    ends: [F], whether a token ends a sentence. A span is a sentence, or a part of a sentence that is
    longer than `longest` tokens.
    """
    places = torch.arange(len(ends), device=ends.device)
    begins = torch.ones_like(ends, dtype=torch.bool)
    begins[1:] = ends[:-1]
    starts = torch.where(begins, places, 0).cummax(dim=0).values
    return ((places - starts) % longest == 0).long().cumsum(dim=0) - 1


def joined(parts: Sequence[Tensor]) -> Tensor:
    """Tensors of some layers, [l, K, P] each, as one [L, K, P]. A single one is not copied. Without
    any there are no entries: P is 0."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return torch.empty(0, 0, 0)
    return torch.cat(list(parts))


def span_means(scores: Tensor, spans: Tensor) -> Tensor:
    """Each entry gets the mean of its span. scores: [L, K, P]. spans: [P]."""
    index = spans.expand_as(scores)
    means = torch.zeros_like(scores)
    means = means.scatter_reduce(-1, index, scores, "mean", include_self=False)
    return means.gather(-1, index)
