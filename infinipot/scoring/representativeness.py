"""CaP: a prompt that is read only to see what it attends to (paper, section 3.3.1, Eq. 2)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Scoring:
    """How a layer turns products of queries and keys into attention: its scale, its tanh cap on the
    scores, and its learnt extra logit per head [H], which takes its share and is dropped. hidden:
    entries [start, stop) that are not seen."""

    scaling: float
    softcap: float | None = None
    sinks: Tensor | None = None
    hidden: tuple[int, int] = (0, 0)


def capped(queries: Tensor, keys: Tensor, scoring: Scoring) -> Tensor:
    """Scores of queries [B, H, T, D] for keys [B, K, N, D], both rotated: [B, H, T, N] float32, as
    the model scales and caps them."""
    grouped = queries.float().unflatten(1, (keys.shape[1], -1))  # [B, K, H/K, T, D]
    scores = (
        torch.einsum("bkgtd,bknd->bkgtn", grouped, keys.float()).flatten(1, 2) * scoring.scaling
    )
    if scoring.softcap is None:
        return scores
    return scoring.softcap * torch.tanh(scores / scoring.softcap)


def weigh(scores: Tensor, scoring: Scoring) -> Tensor:
    """Softmax over the entries [B, H, T, N], a share going to the model's sinks."""
    if scoring.sinks is None:
        return scores.softmax(dim=-1)
    extra = scoring.sinks.float().view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
    return torch.cat((scores, extra), dim=-1).softmax(dim=-1)[..., :-1]


def causal_softmax(queries: Tensor, keys: Tensor, scoring: Scoring) -> Tensor:
    """Attention of the last T positions over all N, [B, H, T, N] float32, exactly as the model
    would compute it.

    queries [B, H, T, D] and keys [B, K, N, D] are rotated; the T rows are the last T of the N
    entries.
    """
    scores = capped(queries, keys, scoring)
    rows, entries = scores.shape[-2:]
    visible = torch.ones(rows, entries, dtype=torch.bool, device=scores.device).tril(entries - rows)
    visible[:, slice(*scoring.hidden)] = False
    return weigh(scores.masked_fill(~visible, -torch.inf), scoring)


def contrasted(catalyst: Tensor, contrast: Tensor) -> Tensor:
    """Ids [1, |P|] and those of a contrast [1, n] as [2, |P|]: as many rows of both, the latter
    repeated and cut, so that they compare."""
    return torch.cat((catalyst, contrast.repeat(1, catalyst.shape[1])[:, -catalyst.shape[1] :]))


def representativeness(attention: Tensor) -> Tensor:
    """Eq. 2: what each entry receives from the catalyst, [B, H, P].

    attention: the catalyst's rows [B, H, |P|, P + |P|]; its own columns are left out, its rows are
    summed.
    """
    catalyst = attention.shape[-2]
    return attention[..., :-catalyst].sum(dim=-2)


def received(queries: Tensor, keys: Tensor, scoring: Scoring, rows: int = 64) -> Tensor:
    """What each of the N entries receives from the last T of them together, [B, H, N] float32;
    never more than `rows` rows at a time."""
    total = torch.zeros(*queries.shape[:2], keys.shape[2], device=keys.device)
    before = keys.shape[2] - queries.shape[2]
    for start in range(0, queries.shape[2], rows):
        part = queries[:, :, start : start + rows]
        stop = before + start + part.shape[2]
        total[..., :stop] += causal_softmax(part, keys[:, :, :stop], scoring).sum(dim=-2)
    return total
