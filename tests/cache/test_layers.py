"""One layer and one pot on small numbers: growth, rotation in half precision, sizes in bytes, what a keeping leaves."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from families import FAMILIES
from helpers import CATALYST, assert_close, random_ids
from tiny import make_tiny

from infinipot import PotConfig, Session
from infinipot.cache import layer as layer_module
from infinipot.cache.attention_stats import AttentionStats
from infinipot.cache.layer import PotLayer, PotOverflow
from infinipot.cache.rope import Rotation, alike, rotate
from infinipot.cache.storage import Slots
from infinipot.model.runner import ModelRunner
from infinipot.scoring.representativeness import Scoring, causal_softmax

FREQUENCIES = 1 / 100 ** (torch.arange(4) / 4)


def table(positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    angles = positions[:, None] * FREQUENCIES
    return angles.cos(), angles.sin()


def lengthened(positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Frequencies that depend on the longest position."""
    angles = positions[:, None] * FREQUENCIES / (1 + positions.max())
    return angles.cos(), angles.sin()


def entries(count: int, seed: int = 0, size: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    keys, values = (torch.randn(1, 2, count, size, generator=random) for _ in range(2))
    return keys, values


def turned(keys: torch.Tensor, start: int = 0) -> torch.Tensor:
    return rotate(keys, *table(torch.arange(start, start + keys.shape[2])), "half")


@pytest.mark.parametrize(
    ("kind", "growing", "reset"),
    [
        (None, True, True),
        (None, False, True),
        (None, False, False),
        ("int8", True, True),
        ("fp8", True, True),
    ],
)
def test_a_layer_without_a_bound_grows(
    kind: str | None, growing: bool, reset: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By doubling, or by what is needed; entries, rotated keys and positions stay what they were."""
    monkeypatch.setattr(layer_module, "GROWTH", 4)
    rotation = Rotation("half", lengthened if growing else table)
    layer = PotLayer(None, rotation, reset, kind)
    keys, values = entries(40)
    capacities = []
    start = 0
    for count in (3, 1, 1, 4, 20, 11):
        part = slice(start, start + count)
        read = layer.update(keys[:, :, part], values[:, :, part])
        start += count
        capacities.append(layer.capacity)
        tolerance = {None: 1e-5, "int8": 0.02, "fp8": 0.07}[kind]
        expected = turned(keys[:, :, :start])
        if growing:
            angles = torch.arange(start)[:, None] * FREQUENCIES / layer.capacity
            expected = rotate(keys[:, :, :start], angles.cos(), angles.sin(), "half")
        assert_close("rotated", read[0], expected, tolerance)
        assert_close("values", read[1], values[:, :, :start], tolerance)
        raw = layer.slots[0].read(0, start)
        assert_close("raw", raw, keys[:, :, :start], tolerance)
    assert capacities == [4, 4, 8, 16, 32, 64]
    assert layer.length == layer.position == layer.peak == 40
    assert (layer.get_seq_length(), layer.get_max_length()) == (40, -1)
    assert layer.get_mask_sizes(5) == (45, 0)


def test_a_layer_takes_as_many_slots_as_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_module, "GROWTH", 4)
    layer = PotLayer(None, None)
    layer.update(*entries(50))
    assert layer.capacity == 50


def test_a_full_layer_takes_no_more() -> None:
    """Exactly its size fits, and nothing beyond; what it has stays."""
    layer = PotLayer(6, Rotation("half", table))
    keys, values = entries(7)
    layer.update(keys[:, :, :2], values[:, :, :2])
    layer.update(keys[:, :, 2:6], values[:, :, 2:6])
    assert layer.capacity == layer.length == layer.get_max_length() == 6
    with pytest.raises(PotOverflow, match="7 entries in a pot of 6"):
        layer.update(keys[:, :, 6:], values[:, :, 6:])
    with pytest.raises(PotOverflow, match="8 entries in a pot of 6"):
        layer.reserve(2)
    layer.reserve(0)
    assert torch.equal(layer.read_keys(0, 6), turned(keys[:, :, :6]))
    assert torch.equal(layer.read_values(1, 4), values[:, :, 1:4])


@pytest.mark.parametrize("style", ["half", "half_reversed", "interleaved"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_rotated_in_float32(style: str, dtype: torch.dtype) -> None:
    """One rounding at the end: not a bit differs from the rotation of the same numbers in float32."""
    x = entries(30, size=16)[0].to(dtype)
    cos, sin = table(torch.arange(30))
    got = rotate(x, cos, sin, style)
    assert got.dtype == dtype
    assert torch.equal(got, rotate(x.float(), cos, sin, style).to(dtype))
    assert torch.equal(got[..., 8:], x[..., 8:]), "the rest passes through"
    layer = PotLayer(30, Rotation(style, table))
    assert torch.equal(layer.update(x, x)[0], got)


@pytest.mark.parametrize("reset", [True, False])
def test_a_keeping_moves_everything_that_belongs_to_an_entry(reset: bool) -> None:
    """Keys, values, rotation, records and attention statistics; other heads keep others."""
    stats = AttentionStats(True, 3)
    layer = PotLayer(12, Rotation("half", table), reset, None, stats)
    keys, values = entries(10)
    random = torch.Generator().manual_seed(1)
    query = torch.randn(1, 4, 10, 8, generator=random)
    read = layer.update(keys, values)
    layer.note_attention(query, layer.rotate_queries(query), read[0], Scoring(0.3))
    assert layer.attention_stats is not None
    before = layer.attention_stats.received
    assert before is not None
    assert_close(
        "received", before, causal_softmax(turned(query), read[0], Scoring(0.3)).sum(dim=2)
    )
    indices = torch.tensor([[[0, 1, 4, 7, 9], [0, 1, 2, 3, 8]]])
    rows = indices[..., None].expand(-1, -1, -1, 8)
    records = [indices.int(), indices.float() / 2, indices.float() * 3]
    layer.keep(indices, 2, records, False)
    assert (layer.length, layer.position, layer.peak) == (5, 5 if reset else 10, 10)
    assert torch.equal(layer.slots[0].read(0, 5), keys.gather(2, rows))
    assert torch.equal(layer.read_values(0, 5), values.gather(2, rows))
    expected = turned(keys.gather(2, rows)) if reset else turned(keys).gather(2, rows)
    assert torch.equal(layer.read_keys(0, 5), expected)
    assert [
        torch.equal(x, y) for x, y in zip(layer.survivors().values(), records, strict=True)
    ] == [True] * 3
    assert torch.equal(
        layer.attention_stats.received, before.gather(2, indices.repeat_interleave(2, dim=1))
    )
    assert torch.equal(layer.attention_stats.queries, query[:, :, -3:])
    names = ["keys", "values", "index", "novelty", "past", "received", "queries"]
    state = layer.state()
    assert sorted(state) == sorted(names if reset else [*names, "rotated"])
    other = PotLayer(12, Rotation("half", table), reset, None, AttentionStats(True, 3))
    other.restore({name: x.clone() for name, x in state.items()}, layer.position, 10, torch.float32)
    assert (other.length, other.position, other.peak) == (5, layer.position, 10)
    assert torch.equal(other.read_keys(0, 5), expected)
    assert all(torch.equal(x, state[name]) for name, x in other.state().items())
    fresh, more = entries(2, seed=3)
    layer.update(fresh, more)
    assert torch.equal(layer.read_keys(5, 7), turned(fresh, 5 if reset else 10))
    asked = torch.randn(1, 4, 2, 8, generator=random)
    assert torch.equal(layer.rotate_queries(asked), turned(asked, 5 if reset else 10))
    assert torch.equal(layer.rotate_from(asked, 6), turned(asked, 6 if reset else 11))


def test_rotated_keys_are_stored_only_where_reading_would_rotate_them_again() -> None:
    for rotation, kind, stored in (
        (Rotation("half", table), None, True),
        (Rotation("half", table), "int8", False),
        (None, None, False),
        (None, "fp8", False),
    ):
        layer = PotLayer(8, rotation, True, kind)
        layer.update(*entries(3))
        assert (layer.rotated is not None) == stored
        assert layer.by_address


@pytest.mark.parametrize("kind", [None, "int8"])
def test_a_copy_of_a_layer_is_its_own(kind: str | None) -> None:
    layer = PotLayer(8, Rotation("half", table), True, kind)
    keys, values = entries(3)
    layer.update(keys, values)
    twin = layer.copy()
    before = [x.clone() for x in (layer.read_keys(0, 3), layer.read_values(0, 3))]
    for tensors in ([x for slots in twin.slots for x in slots.tensors], [twin.rotated]):
        for x in tensors:
            if x is not None:
                x.zero_()
    after = layer.read_keys(0, 3), layer.read_values(0, 3)
    assert all(torch.equal(x, y) for x, y in zip(before, after, strict=True))
    assert twin.read_values(0, 3).count_nonzero() == 0
    layer.update(*entries(2, seed=1))
    assert (layer.length, twin.length) == (5, 3)


def test_what_has_not_begun_can_be_copied_and_costs_nothing() -> None:
    layer = PotLayer(8, None)
    assert layer.entry_bytes() == 0
    assert not layer.by_address
    assert layer.copy().length == 0


def test_rotations_are_alike_as_far_as_both_tables_go() -> None:
    def reserved(table: Any, count: int) -> list[Rotation | None]:
        rotation = Rotation("half", table)
        rotation.reserve(count, torch.device("cpu"))
        return [None, rotation]

    short, long, other = reserved(table, 5), reserved(table, 9), reserved(lengthened, 5)
    assert alike(short, long)
    assert alike(long, short)
    assert not alike(short, other)
    assert alike([None], [None])
    swapped = reserved(lambda positions: (table(positions)[0], -table(positions)[1]), 5)
    assert not alike(short, swapped)
    assert not Rotation("half", table).depends_on_length
    assert Rotation("half", lengthened).depends_on_length
    rotation = Rotation("half", table)
    x = entries(3)[0]
    got = rotation.rotate_beyond(x, torch.tensor([2, 40, 7]))
    assert torch.equal(got, rotate(x, *table(torch.tensor([2, 40, 7])), "half"))
    tables = rotation.tables[torch.device("cpu")]
    assert len(tables.places) == len(tables.rotary.cos) == 41
    rotation.reserve(41, torch.device("cpu"))
    assert rotation.tables[torch.device("cpu")] is tables, "long enough already"
    rotation.reserve(42, torch.device("cpu"))
    assert len(rotation.tables[torch.device("cpu")].places) == 42


@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_zeros_in_eight_bits(kind: str) -> None:
    """A vector of zeros has no largest number to scale by."""
    x = torch.zeros(1, 1, 2, 8)
    x[0, 0, 1, 3] = -5.0
    slots = Slots(x, 4, kind)
    slots.write(1, x)
    assert torch.equal(slots.read(1, 3), x)
    assert torch.equal(slots.read(0, 1), torch.zeros(1, 1, 1, 8))
    for dtype in (torch.float16, torch.bfloat16):
        low = torch.cat((x, entries(2, seed=4)[0][:, :1]), dim=2).to(dtype)
        half, single = Slots(low, 4, kind), Slots(low.float(), 4, kind)
        for one in (half, single):
            one.write(0, low.to(one.dtype))
        assert torch.equal(half.scale, single.scale), "scales are computed in float32"
        assert torch.equal(half.read(0, 4), single.read(0, 4).to(dtype))


LIKE_LLAMA = 2 * 2 * 2 * 16 * 4
"""Bytes of a token in float32: 2 layers, keys and values, 2 KV heads, head dimension 16."""


def test_bytes_of_a_pot_and_of_an_ordinary_cache() -> None:
    """As computed from the model's sizes, however much was evicted, asked, or forked."""
    for dtype, width in ((torch.float32, 1), (torch.bfloat16, 2)):
        session = Session(make_tiny("llama").to(dtype), None, PotConfig(pot_size=64, distill_to=24))
        assert session.stats.full_cache_bytes == session.stats.pot_bytes == 0
        session.append(random_ids(300), question=CATALYST)
        assert session.stats.full_cache_bytes == 300 * LIKE_LLAMA // width
        slots = 64 * LIKE_LLAMA // width
        records = 2 * 2 * 24 * (4 + 4)  # layers, heads, survivors, index and novelty
        assert session.stats.pot_bytes == slots + slots // 2 + records
        assert session.fork().stats.full_cache_bytes == 300 * LIKE_LLAMA // width


def test_bytes_where_layers_differ() -> None:
    """Layers with a window count as in an ordinary cache, too."""
    row: Any = FAMILIES["Gemma-2"]
    model = row.build()
    session = Session(ModelRunner(model), None, PotConfig(pot_size=40, distill_to=16))
    session.append(random_ids(60), question=CATALYST)
    config = model.config
    token = config.num_hidden_layers * 2 * config.num_key_value_heads * config.head_dim * 4
    assert session.stats.full_cache_bytes == 60 * token
    assert session.stats.pot_bytes == sum(layer.entry_bytes() for layer in session.pot.layers) > 0
