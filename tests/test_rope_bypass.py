"""Constants that cost nothing are what they stand for."""

from __future__ import annotations

import pytest
import torch

from infinipot.model.rope_bypass import One, Zero, identity

COS, SIN = torch.randn(1, 5, 8), torch.randn(1, 5, 8)


def test_a_rotation_computes_nothing() -> None:
    cos, sin = (x.unsqueeze(1) for x in identity((COS, SIN)))
    query = torch.randn(1, 3, 5, 8)
    half = torch.cat((-query[..., 4:], query[..., :4]), dim=-1)
    assert query * cos is query
    assert type(half * sin) is Zero
    assert (query * cos) + (half * sin) is query
    assert cos * query is query
    assert (half * sin) + query is query
    narrow = query.bfloat16()
    assert narrow * cos is narrow


@pytest.mark.parametrize(
    "compute",
    [
        lambda q, c, s: q[..., :4] * c[..., :4] - q[..., 4:] * s[..., :4],
        lambda q, c, s: torch.cat((q * c, q * s), dim=-1),
        lambda q, c, s: torch.stack((c, s), dim=0).sum() + q,
        lambda q, c, s: q * c.repeat_interleave(2, dim=-1)[..., :8] + q * s.float(),
        lambda q, c, s: q + c,
        lambda q, c, s: (1 - c) * q + s.cos(),
        lambda q, c, s: q[:, :1, :1, :1] * c,
        lambda q, c, s: torch.einsum("bhtd,bhtd->bht", q, c.expand(1, 3, 5, 8)),
    ],
)
def test_ordinary_elsewhere(compute) -> None:
    query = torch.randn(1, 3, 5, 8)
    ones, zeros = torch.ones(1, 1, 5, 8), torch.zeros(1, 1, 5, 8)
    got = compute(query, ones.as_subclass(One), zeros.as_subclass(Zero))
    assert torch.equal(got.as_subclass(torch.Tensor), compute(query, ones, zeros))
