"""The Triton kernels against their naive twins: on a GPU, or anywhere with Triton's interpreter (TRITON_INTERPRET=1)."""

from __future__ import annotations

import os

import pytest
import torch
from helpers import assert_close

from infinipot.cache.rope import rotate
from infinipot.kernels import launch
from infinipot.model.fused_norms import KINDS, rms_norm
from infinipot.scoring.novelty import add_losses

pytest.importorskip("triton", reason="needs Triton, which comes with torch for CUDA")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = pytest.mark.skipif(
    DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1",
    reason="needs a CUDA device, or TRITON_INTERPRET=1",
)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("style", ["half", "half_reversed", "interleaved"])
@pytest.mark.parametrize(("rows", "width", "rotary"), [(1, 64, 64), (37, 64, 16), (16, 48, 24)])
def test_turn(dtype: torch.dtype, style: str, rows: int, width: int, rotary: int) -> None:
    random = torch.Generator().manual_seed(0)
    x = (
        torch.randn(2, rows, 3, width, generator=random).transpose(1, 2).to(DEVICE, dtype)
    )  # strided, as models project it
    angles = torch.randn(50, rotary // 2, generator=random).to(DEVICE)
    places = torch.randint(0, 50, (rows,), generator=random).to(DEVICE)
    got = launch.rotate(x, angles.cos(), angles.sin(), places, style)
    expected = rotate(x, angles.cos()[places], angles.sin()[places], style)
    assert got.dtype == dtype
    assert_close(style, got, expected, tolerance=1e-5 if dtype == torch.float32 else 8e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_losses(dtype: torch.dtype) -> None:
    random = torch.Generator().manual_seed(0)
    logits = (5 * torch.randn(9, 10_000, generator=random)).to(DEVICE, dtype)
    targets = torch.randint(0, 10_000, (9,), generator=random).to(DEVICE)
    total, own = torch.full((9,), -torch.inf, device=DEVICE), torch.zeros(9, device=DEVICE)
    for start in range(0, 10_000, 4100):
        launch.add_losses(logits[:, start : start + 4100], targets, start, total, own)
    expected = torch.nn.functional.cross_entropy(logits.float(), targets, reduction="none")
    assert_close("losses", total - own, expected, tolerance=1e-5)
    naive = torch.full((1, 9), -torch.inf, device=DEVICE), torch.zeros(1, 9, device=DEVICE)
    for start in range(0, 10_000, 4100):
        naive = add_losses(logits[None, :, start : start + 4100], targets[None], start, *naive)
    assert_close("twin", total - own, (naive[0] - naive[1])[0], tolerance=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [64, 100, 896])
def test_rms_norm(kind: int, width: int) -> None:
    random = torch.Generator().manual_seed(0)
    x = (3 * torch.randn(2, 7, width, generator=random)).to(DEVICE, torch.bfloat16)
    weight = torch.rand(width, generator=random).to(DEVICE, torch.bfloat16)
    # the interpreter cuts where a GPU rounds
    assert_close(
        "norm",
        launch.rms_norm(x, weight, 1e-6, kind),
        rms_norm(x, weight, 1e-6, kind),
        tolerance=8e-3 if DEVICE == "cuda" else 2e-2,
    )


@pytest.mark.parametrize(
    ("heads", "kv_heads", "size", "width"), [(4, 2, 200, 32), (6, 1, 64, 64), (3, 3, 1000, 16)]
)
def test_one_token_for_several_pots(heads: int, kv_heads: int, size: int, width: int) -> None:
    """Entries go where they belong, and attention is that over the slots taken."""
    random = torch.Generator().manual_seed(0)
    dtype = torch.float16
    slots = torch.tensor([0, size // 3, size - 1], device=DEVICE)
    buffers = [
        [
            torch.randn(1, kv_heads, size, width, generator=random).to(DEVICE, dtype)
            for _ in range(3)
        ]
        for _ in range(3)
    ]
    expected = [[x.clone() for x in row] for row in buffers]
    new = [
        torch.randn(3, 1, kv_heads, width, generator=random).transpose(1, 2).to(DEVICE, dtype)
        for _ in range(3)
    ]
    query = torch.randn(3, 1, heads, width, generator=random).transpose(1, 2).to(DEVICE, dtype)
    places = torch.tensor(
        [[x.data_ptr() for x in row] for row in buffers], device=DEVICE
    ).T.contiguous()
    launch.append(*new, places, slots, size)
    got = launch.attend(query, places, slots, size, kv_heads, 0.3)
    for row, slot in enumerate(slots.tolist()):
        for buffer, entry in zip(expected[row], new, strict=True):
            buffer[0, :, slot] = entry[row, :, 0]
        assert all(torch.equal(a, b) for a, b in zip(buffers[row], expected[row], strict=True))
        keys, values = (
            x[:, :, : slot + 1].float().repeat_interleave(heads // kv_heads, dim=1)
            for x in expected[row][1:]
        )
        weights = (0.3 * query[row].float() @ keys[0].transpose(1, 2)).softmax(dim=-1)
        assert_close(f"row {row}", got[row, 0], (weights @ values[0])[:, 0], tolerance=5e-3)
