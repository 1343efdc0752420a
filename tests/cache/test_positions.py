"""Rotation: exact by slot, and as exact after 500 distillations as after one."""

from __future__ import annotations

import pytest
import torch
from helpers import CATALYST, random_ids
from tiny import make_tiny

from infinipot import PotConfig, Session
from infinipot.cache.rope import Rotation, rotate


def naive(x: torch.Tensor, positions: list[int], inverse: torch.Tensor, style: str) -> torch.Tensor:
    """Rotary embedding number by number, in float64."""
    out = x.double().clone()
    half = len(inverse)
    for row, position in enumerate(positions):
        for i, frequency in enumerate(inverse.double()):
            first, second = (2 * i, 2 * i + 1) if style == "interleaved" else (i, i + half)
            cos, sin = torch.cos(position * frequency), torch.sin(position * frequency)
            if style == "half_reversed":
                sin = -sin
            a, b = x[..., row, first].double(), x[..., row, second].double()
            out[..., row, first], out[..., row, second] = a * cos - b * sin, b * cos + a * sin
    return out


@pytest.mark.parametrize("style", ["half", "half_reversed", "interleaved"])
@pytest.mark.parametrize("rotary", [16, 8])
def test_turn_equals_naive(style: str, rotary: int) -> None:
    x = torch.randn(2, 3, 5, 16, generator=torch.Generator().manual_seed(0))
    inverse = 1.0 / 10000 ** (torch.arange(0, rotary, 2).float() / rotary)
    positions = torch.tensor([0, 3, 1, 70, 9])
    angles = positions[:, None].float() * inverse
    got = rotate(x, angles.cos(), angles.sin(), style)
    torch.testing.assert_close(
        got.double(), naive(x, positions.tolist(), inverse, style), atol=2e-5, rtol=0
    )
    assert torch.equal(got[..., rotary:], x[..., rotary:])


def test_no_drift_over_500_distillations_in_bfloat16() -> None:
    model = make_tiny("llama").to(torch.bfloat16)
    session = Session(model, None, PotConfig(pot_size=32, distill_to=16, novelty=0.5, sinks=4))
    text, count = random_ids(4000), 0
    first_keys = None
    while session.stats.distillations < 500:
        session.append(text[count % 3900 : count % 3900 + 50], question=CATALYST)
        count += 50
        if first_keys is None:
            first_keys = [layer.keys[:, :, :4].clone() for layer in session.pot.bounded]
    inverse = 1.0 / 10000 ** (torch.arange(0, 16, 2).float() / 16)
    for layer, first in zip(session.pot.bounded, first_keys, strict=True):
        assert torch.equal(layer.keys[:, :, :4], first), "a raw key changed"
        exact = naive(
            layer.keys[:, :, : layer.length].float(), list(range(layer.length)), inverse, "half"
        )
        error = (layer.rotated[:, :, : layer.length].double() - exact).norm(dim=-1) / exact.norm(
            dim=-1
        )
        assert float(error.max()) < 0.003


def test_positions_start_again_at_zero() -> None:
    """A pot that was distilled predicts like a pot with the same entries that never saw the evicted ones."""
    seen: list[tuple[int, int]] = []

    class Watch(Rotation):
        def rotate(self, x: torch.Tensor, start: int) -> torch.Tensor:
            seen.append((start, start + x.shape[-2]))
            return super().rotate(x, start)

    model = make_tiny("llama")
    session = Session(model, None, PotConfig(pot_size=64, distill_to=16))
    for layer in session.pot.bounded:
        layer.rotation = Watch(layer.rotation.style, layer.rotation.table)
    session.append(random_ids(1000), question=CATALYST)
    assert max(stop for _, stop in seen) <= 64
