"""Ranks: scores of different kinds and of different moments on one scale."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

LONGEST = 64
"""Most tokens of a span. Longer sentences are cut."""
REDUCTIONS = ("mean", "max")


def ranks(scores: Tensor) -> Tensor:
    """How many entries of a row score no higher than an entry, 1 .. P, float32.

    scores: [L, K, P]. Equal scores have equal ranks. Sums of ranks are exact, so that the order of
    adding them does not matter.
    """
    ordered = scores.sort(dim=-1).values
    places = torch.searchsorted(ordered, scores.contiguous(), right=True)
    return places.float()


def union(signals: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """One score from the ranks [L, K, P] by several signals.

    An entry needs a high rank by one signal. Signals get places in proportion to their weights, all
    above 0.
    """
    largest = max(weights)
    best = signals[0].shape[-1]
    scores = [
        best - (best - ranked) * (largest / weight)
        for ranked, weight in zip(signals, weights, strict=True)
    ]
    return functools.reduce(torch.maximum, scores)


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


def pool_spans(scores: Tensor, spans: Tensor, how: str) -> Tensor:
    """Each entry gets the `mean` or the `max` of its span. scores: [L, K, P]. spans: [P], as from
    `span_numbers`."""
    index = spans.expand_as(scores)
    reduce = {"mean": "mean", "max": "amax"}[how]
    totals = torch.zeros_like(scores)
    totals = totals.scatter_reduce(-1, index, scores, reduce, include_self=False)
    return totals.gather(-1, index)
