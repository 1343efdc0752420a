"""The Triton kernels for weights in groups against unpacked weights: on a GPU, or anywhere with Triton's interpreter (TRITON_INTERPRET=1)."""

from __future__ import annotations

import os

import pytest
import torch
import torch.nn.functional as F
from helpers import assert_close

from infinipot.kernels import groups as kernels
from infinipot.kernels import native
from infinipot.model import groups
from infinipot.model.groups import GroupedWeight

pytest.importorskip("triton", reason="needs Triton, which comes with torch for CUDA")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = pytest.mark.skipif(
    DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1",
    reason="needs a CUDA device, or TRITON_INTERPRET=1",
)
TOLERANCE = {torch.float32: 3e-6, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}
SHAPES = [(20, 50), (37, 1100)]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several tiles, shares, loops and blocks also for small weights; the kernels run for any device."""
    monkeypatch.setattr(kernels, "supports", lambda x: not x.requires_grad)
    monkeypatch.setattr(native, "fits", lambda x: False)
    monkeypatch.setattr(kernels, "PROGRAMS", 6)
    monkeypatch.setattr(kernels, "ROW_PROGRAMS", 6)
    monkeypatch.setattr(kernels, "FLOAT32_ALONE", 3)
    monkeypatch.setattr(kernels, "QUADS", 32)
    monkeypatch.setattr(groups, "BLOCK", {})
    monkeypatch.setattr(groups, "OTHER_BLOCK", 1)
    monkeypatch.setattr(groups, "LEAST_ROWS", 16)


def weight_of(outputs: int, width: int, form: str) -> GroupedWeight:
    random = torch.Generator().manual_seed(0)
    return GroupedWeight.of(torch.randn(outputs, width, generator=random) + 0.1, form).to(DEVICE)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("rows", [1, 3, 16, 17, 65])
@pytest.mark.parametrize("form", ["int8", "int4"])
@pytest.mark.parametrize(("outputs", "width"), SHAPES)
def test_products_are_those_of_the_unpacked_weights(
    outputs: int, width: int, form: str, rows: int, dtype: torch.dtype
) -> None:
    """With and without a bias, for all outputs and for some."""
    weight = weight_of(outputs, width, form)
    plain = weight.dequantize()
    random = torch.Generator().manual_seed(1)
    x = torch.randn(1, rows, width, generator=random).to(DEVICE, dtype)
    bias = torch.randn(outputs, generator=random).to(DEVICE, dtype)
    got = weight.linear(x, bias)
    assert got.dtype == dtype
    expected = F.linear(x.float(), plain, bias.float())
    assert_close("all", got.float(), expected, TOLERANCE[dtype])
    some = slice(3, 18)
    got = weight.linear(x, rows=some)
    assert_close("some", got.float(), F.linear(x.float(), plain[some]), TOLERANCE[dtype])


@pytest.mark.parametrize(("rows", "alone"), [(2, 0), (65, 0), (5, 5)])
def test_a_row_is_the_same_beside_others(
    rows: int, alone: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit, in each of the two kernels."""
    monkeypatch.setattr(kernels, "ALONE", alone)
    weight = weight_of(20, 1100, "int4")
    random = torch.Generator().manual_seed(1)
    x = torch.randn(rows, 1100, generator=random).to(DEVICE, torch.bfloat16)
    together = kernels.products(x, weight.part(slice(None)))
    assert torch.equal(kernels.products(x[1:2], weight.part(slice(None))), together[1:2])


@pytest.mark.parametrize("bits", [8, 4])
def test_all_numbers_of_a_byte(bits: int) -> None:
    """Each number that a byte can hold, at each place, in float32: no sign, shift or mask is wrong."""
    count = 1 << bits
    numbers = (torch.arange(count)[:, None] + torch.arange(32)) % count
    if bits == 8:
        stored = (numbers - 128).to(torch.int8)[:, None]
        low = None
    else:
        stored = (numbers[:, :16] | numbers[:, 16:] << 4).to(torch.uint8)[:, None]
        low = torch.full((count, 1), -3.0, dtype=torch.float16)
    scale = torch.full((count, 1), 0.5, dtype=torch.float16)
    weight = GroupedWeight((stored, scale, low), 32).to(DEVICE)
    identity = torch.eye(32, device=DEVICE)
    plain = weight.dequantize()
    y = kernels.products(identity[:5], weight.part(slice(None)))
    assert_close("alone", y, plain.T[:5], 1e-6)
    y = kernels.products(identity.bfloat16(), weight.part(slice(None)))
    assert torch.equal(y.float(), plain.T)
    out = torch.empty(count, 32, device=DEVICE)
    kernels.unpack(weight.part(slice(None)), out)
    assert torch.equal(out, plain)


def test_what_is_not_finite_stays_in_its_row() -> None:
    weight = weight_of(20, 96, "int4")
    for dtype, rows in ((torch.float32, 2), (torch.bfloat16, 4)):
        x = torch.randn(rows, 96, generator=torch.Generator().manual_seed(1)).to(DEVICE, dtype)
        before = kernels.products(x, weight.part(slice(None)))
        x[0, 50] = torch.inf
        y = kernels.products(x, weight.part(slice(None)))
        assert not y[0].isfinite().any()
        assert torch.equal(y[1:], before[1:])


@pytest.mark.parametrize("rows", [1, 4])
def test_activations_may_begin_anywhere(rows: int) -> None:
    """Rows of a view that begin at odd places in memory."""
    weight = weight_of(20, 96, "int4")
    random = torch.Generator().manual_seed(1)
    x = torch.randn(rows, 99, generator=random).to(DEVICE, torch.bfloat16)[:, 1:97]
    y = kernels.products(x, weight.part(slice(None)))
    assert torch.equal(y, kernels.products(x.clone(), weight.part(slice(None))))
    assert_close("view", y, F.linear(x.float(), weight.dequantize()), 1.5e-2)


def test_gradients_take_the_other_way() -> None:
    weight = weight_of(20, 96, "int8")
    x = torch.randn(3, 96, device=DEVICE, requires_grad=True)
    weight.linear(x).sum().backward()
    assert_close("gradient", x.grad, weight.dequantize().sum(dim=0).expand(3, -1), 1e-5)


def test_shares_cover_all_groups() -> None:
    for groups_count in (1, 7, 8, 35, 128, 448):
        for tiles in (1, 16, 64, 2004):
            share, parts = kernels.shares(groups_count, 4, tiles)
            assert share % 4 == 0
            assert (parts - 1) * share < groups_count <= parts * share
