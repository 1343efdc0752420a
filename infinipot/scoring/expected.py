"""Expected attention (arXiv 2510.00636): the attention of queries that are still to come."""

from __future__ import annotations

import torch
from torch import Tensor

from infinipot.scoring.representativeness import Scoring


def statistics(queries: Tensor) -> tuple[Tensor, Tensor]:
    """Mean [H, D] and covariance [H, D, D] of queries [H, T, D] before rotation, float32."""
    queries = queries.float()
    mean = queries.mean(dim=1)
    rest = queries - mean[:, None]
    return mean, rest.transpose(1, 2) @ rest / queries.shape[1]


def expected_attention(
    mean: Tensor, covariance: Tensor, keys: Tensor, values: Tensor, scoring: Scoring
) -> Tensor:
    """The attention that entries are expected to receive, times the length of their values, [K, P].

    mean: [H, D], covariance: [H, D, D], of normally distributed queries, rotated. keys, values:
    [K, P, D], keys rotated. It is the mean over the query heads of a KV head.
    """
    keys = keys.float()
    grouped = mean.unflatten(0, (len(keys), -1))  # [K, H/K, D]
    spread = covariance.unflatten(0, (len(keys), -1))
    turned = torch.einsum("kpd,kgde->kgpe", keys, spread)
    variance = torch.einsum("kgpe,kpe->kgp", turned, keys)
    scores = torch.einsum("kpd,kgd->kgp", keys, grouped) * scoring.scaling
    scores = scores + variance * scoring.scaling**2 / 2
    return scores.softmax(dim=-1).mean(dim=1) * values.float().norm(dim=-1)
