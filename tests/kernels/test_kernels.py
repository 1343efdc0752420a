"""The Triton kernels against their naive twins: on a GPU, or anywhere with Triton's interpreter (TRITON_INTERPRET=1)."""

from __future__ import annotations

import os

import pytest
import torch
from helpers import assert_close

from infinipot.cache.rope import rotate
from infinipot.cache.slot_pair import SlotPair
from infinipot.cache.storage import QUANTISED, Slots
from infinipot.kernels import chunks, launch, pots
from infinipot.model.fused_norms import KINDS, rms_norm
from infinipot.scoring.novelty import add_losses
from infinipot.scoring.representativeness import Scoring, causal_softmax

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


SHAPES = [(4, 2, 200, 32, 16), (6, 1, 64, 64, 32), (3, 3, 1000, 16, 8), (4, 4, 300, 80, 24)]
"""Query heads, KV heads, slots, elements of a key, rotated pairs."""


def rotary(size: int, half: int, style: str) -> pots.Rotary | None:
    if not half:
        return None
    angles = torch.arange(size)[:, None] * torch.rand(half, generator=torch.Generator())
    cos = angles.cos().to(DEVICE)
    sin = angles.sin().to(DEVICE)
    return pots.Rotary(cos, sin, pots.packed(cos, sin), style)


def turned(x: torch.Tensor, table: pots.Rotary | None, places: slice) -> torch.Tensor:
    if table is None:
        return x
    return rotate(x, table.cos[places], table.sin[places], table.style)


STORED = [(style, None) for style in ("half", "half_reversed", "interleaved", None)]
STORED += [("half", "int8"), ("interleaved", "fp8")]
"""How keys are rotated, and how entries are stored."""


def filled(
    shape: tuple[int, int, int], random: torch.Generator, dtype: torch.dtype, kind: str | None
) -> SlotPair:
    """A layer's keys and values of KV heads, slots and elements of a key. Values have 16 more."""
    kv_heads, size, width = shape
    pair = SlotPair()
    pair.kind = kind
    x = [
        torch.randn(1, kv_heads, size, n, generator=random).to(DEVICE, dtype)
        for n in (width, width + 16)
    ]
    pair.slots = pair.new_slots(size, *x)
    for slots, own in zip(pair.slots, x, strict=True):
        slots.write(0, own)
    return pair


def places_of(pairs: list[SlotPair]) -> pots.Places:
    addresses = torch.tensor([pair.place for pair in pairs]).T.contiguous()
    return pots.Places(addresses.to(DEVICE), pairs[0].kind)


def assert_equal_slots(got: Slots, expected: Slots) -> None:
    """Bit for bit."""
    for x, y in zip(got.tensors, expected.tensors, strict=True):
        assert torch.equal(x.view(torch.uint8), y.view(torch.uint8))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize(("style", "kind"), STORED)
@pytest.mark.parametrize(("heads", "kv_heads", "size", "width", "half"), SHAPES)
def test_one_token_for_several_pots(
    heads: int,
    kv_heads: int,
    size: int,
    width: int,
    half: int,
    style: str | None,
    dtype: torch.dtype,
    kind: str | None,
) -> None:
    """Entries go where they belong, pots may differ in size, and attention is that over the slots taken. A row with slot -1 is left
    out."""
    random = torch.Generator().manual_seed(0)
    table = rotary(size, half if style else 0, style or "")
    slots = [0, size // 3, size - 1, -1]
    pairs = [filled((kv_heads, size + 5 * row, width), random, dtype, kind) for row in range(4)]
    expected = [[slots.copy() for slots in pair.slots] for pair in pairs]
    new = [
        torch.randn(4, 1, kv_heads, n, generator=random).transpose(1, 2).to(DEVICE, dtype)
        for n in (width, width + 16)
    ]
    query = torch.randn(4, 1, heads, width, generator=random).transpose(1, 2).to(DEVICE, dtype)
    places = places_of(pairs)
    device_slots = torch.tensor(slots, device=DEVICE)
    sinks = torch.randn(heads, generator=random).to(DEVICE)
    pots.append(*new, places, device_slots)
    entries = pots.Entries(kv_heads, width + 16, size + 20)
    for softmax in (pots.Softmax(0.3), pots.Softmax(0.3, 5.0, sinks)):
        got = pots.attend(query, places, device_slots, table, entries, softmax)
        assert got.shape == (4, 1, heads, width + 16)
        assert not got[3].any()
        for row, slot in enumerate(slots[:3]):
            for twin, own, entry in zip(expected[row], pairs[row].slots, new, strict=True):
                twin.write(slot, entry[row : row + 1])
                assert_equal_slots(own, twin)
            keys, values = (twin.read(0, slot + 1) for twin in expected[row])
            rotated = turned(query[row : row + 1], table, slice(slot, slot + 1))
            keys = turned(keys, table, slice(0, slot + 1))
            scoring = Scoring(softmax.scaling, softmax.softcap, softmax.sinks)
            weights = causal_softmax(rotated, keys, scoring)
            values = values.float().repeat_interleave(heads // kv_heads, dim=1)
            tolerance = 5e-3 if dtype == torch.float16 else 1e-5
            assert_close(f"row {row}", got[row, 0], (weights @ values)[0, :, 0], tolerance)
    assert_equal_slots(pairs[3].slots[0], expected[3][0])


@pytest.mark.parametrize(("style", "kind"), STORED)
@pytest.mark.parametrize(("heads", "kv_heads", "size", "width", "half"), SHAPES)
def test_a_chunk_into_a_pot(
    heads: int,
    kv_heads: int,
    size: int,
    width: int,
    half: int,
    style: str | None,
    kind: str | None,
) -> None:
    random = torch.Generator().manual_seed(0)
    table = rotary(size, half if style else 0, style or "")
    pair = filled((kv_heads, size, width), random, torch.float16, kind)
    expected = [slots.copy() for slots in pair.slots]
    new = [
        torch.randn(1, 41, kv_heads, n, generator=random).transpose(1, 2).to(DEVICE, torch.float16)
        for n in (width, width + 16)
    ]
    places = places_of([pair])
    span = torch.tensor([11, 37], device=DEVICE)
    chunks.store(*new, places, span)
    for own, twin, entries in zip(pair.slots, expected, new, strict=True):
        twin.write(11, entries[:, :, :37])
        assert_equal_slots(own, twin)
    keys, values = chunks.fetch(*new, places, span, table, size + 7)
    assert keys.shape[2] == values.shape[2] == size + 7
    assert torch.equal(values[:, :, :48], expected[1].read(0, 48))
    rotated = turned(expected[0].read(0, 48), table, slice(0, 48))
    assert_close("keys", keys[:, :, :48], rotated, tolerance=1e-3)


def difficult(kind: str) -> torch.Tensor:
    """Vectors [1, 1, 80, 32] of all sizes, with halves between two neighbours, zeros, and numbers
    that fp8 holds with fewer bits or not at all."""
    random = torch.Generator().manual_seed(0)
    largest = QUANTISED[kind][1]
    x = torch.randn(64, 32, generator=random) * torch.logspace(-30, 30, 64)[:, None]
    x[7:9] = 0
    x[8, 5] = -1e-20
    halves = torch.arange(-128, 128).float().view(8, 32) + 0.5
    small = torch.arange(-128, 128).float().view(8, 32) * 2**-11
    halves[:, 0] = largest
    small[:, 31] = -largest
    return torch.cat((x, halves, small))[None, None]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("kind", QUANTISED)
def test_rounding_to_eight_bits(kind: str, dtype: torch.dtype) -> None:
    """As the twin does, bit for bit, whatever the numbers; and back, from every code."""
    if dtype == torch.bfloat16 and DEVICE == "cpu":
        pytest.skip("the interpreter cuts where a GPU rounds")
    x = difficult(kind).clamp(-6e4, 6e4).to(DEVICE, dtype)
    twin = filled((1, 96, 16), torch.Generator(), dtype, kind)
    pair = filled((1, 96, 16), torch.Generator(), dtype, kind)
    for slots in twin.slots:
        slots.write(3, x[..., : slots.data.shape[-1]])
    span = torch.tensor([3, 80], device=DEVICE)
    places = places_of([pair])
    chunks.store(x[..., :16], x, places, span)
    for own, its in zip(pair.slots, twin.slots, strict=True):
        assert_equal_slots(own, its)
    codes = torch.arange(256, dtype=torch.uint8, device=DEVICE).view(8, 32)
    if kind == "fp8":  # those of NaN are never stored
        codes[codes & 0x7F == 0x7F] = 0
    pair.slots[1].data[0, 0, :8] = codes.view(pair.slots[1].data.dtype)
    _, values = chunks.fetch(x[..., :16], x, places, span, None, 96)
    assert torch.equal(values[:, :, :83], pair.slots[1].read(0, 83))


def naive_attention(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, softmax: pots.Softmax
) -> torch.Tensor:
    weights = causal_softmax(query, keys, Scoring(*softmax))
    values = values.float().repeat_interleave(query.shape[1] // keys.shape[1], dim=1)
    return (weights @ values).transpose(1, 2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("capped", [False, True])
@pytest.mark.parametrize("programs", [1, 64], ids=["whole", "shares"])
@pytest.mark.parametrize(
    ("shape", "start", "count"),  # H, K, rows, size, D, V
    [
        ((4, 2, 40, 128, 32, 32), 70, 33),
        ((6, 1, 16, 600, 80, 96), 583, 16),
        ((2, 2, 130, 300, 64, 64), 0, 130),
        ((2, 1, 8, 64, 128, 256), 5, 1),
    ],
)
def test_attention_of_a_chunk(
    shape: tuple[int, ...],
    start: int,
    count: int,
    programs: int,
    capped: bool,
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows see the entries up to their own, whatever lies behind; padding gets finite numbers."""
    monkeypatch.setattr(chunks, "PROGRAMS", programs)
    monkeypatch.setattr(chunks, "LEAST_SHARE", 64)
    heads, kv_heads, rows, size, width, value_width = shape
    random = torch.Generator().manual_seed(0)
    query = torch.randn(1, rows, heads, width, generator=random).transpose(1, 2).to(DEVICE, dtype)
    keys = torch.randn(1, kv_heads, size, width, generator=random).to(DEVICE, dtype)
    values = torch.randn(1, kv_heads, size, value_width, generator=random).to(DEVICE, dtype)
    keys[:, :, start + count :] = torch.nan
    values[:, :, start + count :] = torch.nan
    softmax = pots.Softmax(0.3)
    if capped:
        softmax = pots.Softmax(0.3, 5.0, torch.randn(heads, generator=random).to(DEVICE))
    span = torch.tensor([start, count], device=DEVICE)
    got = chunks.attend(query, keys, values, span, softmax)
    assert got.shape == (1, rows, heads, value_width)
    assert got.isfinite().all()
    filled = (x[:, :, : start + count] for x in (keys, values))
    expected = naive_attention(query[:, :, :count], *filled, softmax)
    tolerance = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
    assert_close("attention", got[:, :count].float(), expected, tolerance=tolerance)
