"""SelfExtend (arXiv 2401.01325): near entries keep their own positions, distant ones share
positions by groups."""

from __future__ import annotations

import torch
from torch import Tensor

from infinipot.cache.rope import Rotation
from infinipot.scoring.representativeness import Scoring, capped, weigh

ROWS = 64
"""Rows of scores alive at a time."""


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

    grouping: G entries share a distant position, W newest ones do not. An entry nearer than W to a
    query is seen at its own position; any other at its position // G, by a query at position // G +
    W - W // G, so that distances go on from W without a gap.
    """
    group, window = grouping
    entries = key.shape[2]
    rows = query.shape[2]
    places = torch.arange(entries, device=key.device)

    def at(x: Tensor, positions: Tensor) -> Tensor:
        if rotation is None:
            return x
        return rotation.at(x, positions)

    near_keys = at(key, places)
    far_keys = at(key, places // group)
    out = []
    for start in range(0, rows, ROWS):
        part = query[:, :, start : start + ROWS]
        here = places[entries - rows + start :][: part.shape[2]]
        near = capped(at(part, here), near_keys, scoring)
        far = capped(at(part, here // group + window - window // group), far_keys, scoring)
        distance = here[:, None] - places
        scores = torch.where(distance < window, near, far).masked_fill(distance < 0, -torch.inf)
        attention = weigh(scores, scoring).to(value.dtype)
        out.append(
            torch.einsum(
                "bkgtn,bknd->bkgtd", attention.unflatten(1, (value.shape[1], -1)), value
            ).flatten(1, 2)
        )
    return torch.cat(out, dim=2).transpose(1, 2).contiguous()
