"""SelfExtend (arXiv 2401.01325): near entries have their own positions, groups of distant entries
share one."""

from __future__ import annotations

import torch
from torch import Tensor

from infinipot.cache.rope import Rotation
from infinipot.scoring.representativeness import Scoring, capped, weigh

ROWS = 64
"""Number of rows of scores in memory at a time."""


def grouped_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    rotation: Rotation | None,
    grouping: tuple[int, int],
    scoring: Scoring,
) -> Tensor:
    """Attention of the last T of N entries, [B, H, T, D], all before rotary embedding -> [B, T, H,
    D].

    grouping: (G, W). An entry nearer than W to a query has its own position. Any other is at its
    position // G, with the query at position // G + W - W // G, so that distances continue from W.
    """
    group, window = grouping
    window = min(window, key.shape[2])  # then all are near, at no position beyond the text
    places = torch.arange(key.shape[2], device=key.device)
    query_places = places[key.shape[2] - query.shape[2] :]

    def at(x: Tensor, positions: Tensor) -> Tensor:
        if rotation is None:
            return x
        return rotation.rotate_beyond(x, positions)

    near_keys = at(key, places)
    far_keys = at(key, places // group)
    out = []
    for part, here in zip(query.split(ROWS, dim=2), query_places.split(ROWS), strict=True):
        near = capped(at(part, here), near_keys, scoring)
        far = capped(at(part, here // group + window - window // group), far_keys, scoring)
        distance = here[:, None] - places
        scores = torch.where(distance < window, near, far).masked_fill(distance < 0, -torch.inf)
        attention = weigh(scores, scoring).to(value.dtype)
        grouped = attention.unflatten(1, (value.shape[1], -1))
        out.append(torch.einsum("bkgtn,bknd->bkgtd", grouped, value).flatten(1, 2))
    return torch.cat(out, dim=2).transpose(1, 2).contiguous()
