"""CaP: scores from the attention of a catalyst prompt (paper, section 3.3.1, Eq. 2)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Scoring:
    """How a layer computes attention from the products of queries and keys.

    scaling: factor of the scores. softcap: tanh cap of the scores. sinks: a learnt extra logit per
    head [H]; it takes part in the softmax, and its share is dropped. hidden: entries [start, stop)
    that get no attention.
    """

    scaling: float
    softcap: float | None = None
    sinks: Tensor | None = None
    hidden: tuple[int, int] = (0, 0)


def capped(queries: Tensor, keys: Tensor, scoring: Scoring) -> Tensor:
    """The scores [B, H, T, N] float32 before the softmax, scaled and capped as in the model.

    queries: rotated, [B, H, T, D]. keys: rotated, [B, K, N, D].
    """
    grouped = queries.float().unflatten(1, (keys.shape[1], -1))  # [B, K, H/K, T, D]
    products = torch.einsum("bkgtd,bknd->bkgtn", grouped, keys.float()).flatten(1, 2)
    scores = products * scoring.scaling
    if scoring.softcap is None:
        return scores
    return scoring.softcap * torch.tanh(scores / scoring.softcap)


def weigh(scores: Tensor, scoring: Scoring) -> Tensor:
    """Softmax over the entries [B, H, T, N], with the model's sinks as an extra entry."""
    if scoring.sinks is None:
        return scores.softmax(dim=-1)
    extra = scoring.sinks.float().view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
    return torch.cat((scores, extra), dim=-1).softmax(dim=-1)[..., :-1]


def causal_softmax(queries: Tensor, keys: Tensor, scoring: Scoring) -> Tensor:
    """Causal attention of the last T entries over all N, [B, H, T, N] float32, as in the model.

    queries: rotated, [B, H, T, D], of the last T entries. keys: rotated, [B, K, N, D].
    """
    scores = capped(queries, keys, scoring)
    rows, entries = scores.shape[-2:]
    visible = torch.ones(rows, entries, dtype=torch.bool, device=scores.device).tril(entries - rows)
    visible[:, slice(*scoring.hidden)] = False
    return weigh(scores.masked_fill(~visible, -torch.inf), scoring)


def contrasted(catalyst: Tensor, contrast: Tensor) -> Tensor:
    """The catalyst's ids [1, |P|] above the contrast's ids [1, n], as [2, |P|].

    The contrast is repeated and cut to the length of the catalyst, so that the two can be compared.
    """
    return torch.cat((catalyst, contrast.repeat(1, catalyst.shape[1])[:, -catalyst.shape[1] :]))


def representativeness(attention: Tensor) -> Tensor:
    """Eq. 2: the attention that each entry receives from the catalyst, [B, H, P].

    attention: the catalyst's rows, [B, H, |P|, P + |P|]. The rows are summed. The catalyst's own
    columns are left out.
    """
    catalyst = attention.shape[-2]
    return attention[..., :-catalyst].sum(dim=-2)


def received(queries: Tensor, keys: Tensor, scoring: Scoring, rows: int = 64) -> Tensor:
    """The attention that each of N entries receives from the last T together, [B, H, N] float32.

    At most `rows` rows of attention are in memory at a time.
    """
    total = torch.zeros(*queries.shape[:2], keys.shape[2], device=keys.device)
    before = keys.shape[2] - queries.shape[2]
    for start in range(0, queries.shape[2], rows):
        part = queries[:, :, start : start + rows]
        stop = before + start + part.shape[2]
        total[..., :stop] += causal_softmax(part, keys[:, :, :stop], scoring).sum(dim=-2)
    return total
