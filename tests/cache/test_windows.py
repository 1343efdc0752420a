"""Layers with a window, without attention, or with a state, by themselves: what they hold, how they rotate, what a mark restores."""

from __future__ import annotations

import pytest
import torch

from infinipot.cache.batch import BatchedLayer, PassthroughLayer, rotate_alike
from infinipot.cache.layer import PotLayer
from infinipot.cache.recurrent import (
    NoEntries,
    StateLayer,
    StatePotLayer,
    StateWindowLayer,
    new_layer,
)
from infinipot.cache.rope import Rotation, rotate
from infinipot.cache.sliding import WindowLayer

FREQUENCIES = 1 / 100 ** (torch.arange(4) / 4)
WINDOW = 5


def table(positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    angles = positions[:, None] * FREQUENCIES
    return angles.cos(), angles.sin()


def turned(x: torch.Tensor, start: int) -> torch.Tensor:
    return rotate(x, *table(torch.arange(start, start + x.shape[2])), "half")


def text(count: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    query, keys, values = (torch.randn(1, 2, count, 8, generator=random) for _ in range(3))
    return query, keys, values


def pieces(counts: list[int]) -> list[slice]:
    stops = torch.tensor(counts).cumsum(0).tolist()
    return [slice(stop - count, stop) for stop, count in zip(stops, counts, strict=True)]


@pytest.mark.parametrize("rotation", [None, Rotation("half", table)])
def test_a_window_is_read_as_in_an_endless_text(rotation: Rotation | None) -> None:
    """Scores depend on distances alone, also after positions restart; raw keys, values and sizes are exact."""
    layer = WindowLayer(WINDOW, rotation)
    counts = [1, 1, 3, 1, 7, 1, 16, 2, *[1] * 30, 4, 4, 4, 4, 30, 1, 1]
    query, keys, values = text(sum(counts))
    peak = 0
    positions = []
    for part in pieces(counts):
        count = part.stop - part.start
        before = min(part.start, WINDOW - 1)
        assert layer.get_mask_sizes(count) == (before + count, 0)
        read, held = layer.update(keys[:, :, part], values[:, :, part])
        first = part.start - before
        peak = max(peak, before + count)
        assert torch.equal(held, values[:, :, first : part.stop])
        asked = layer.rotate_queries(query[:, :, part])
        scores = asked @ read.transpose(2, 3)
        exact = query[:, :, part] @ keys[:, :, first : part.stop].transpose(2, 3)
        if rotation is not None:
            exact = turned(query[:, :, part], part.start) @ turned(
                keys[:, :, first : part.stop], first
            ).transpose(2, 3)
        torch.testing.assert_close(scores, exact, rtol=1e-4, atol=1e-4)
        newest = slice(max(0, part.stop - WINDOW + 1), part.stop)
        assert torch.equal(layer.keys, keys[:, :, newest])
        assert torch.equal(layer.values, values[:, :, newest])
        assert layer.length == layer.get_seq_length() == layer.rotated.shape[2]
        assert layer.peak == peak
        positions.append(layer.position)
    assert layer.get_max_length() == WINDOW
    if rotation is not None:
        assert max(positions) <= 35, "the table's end, for the longest part"
        assert min(positions[8:]) < 20, "they restart"
    assert layer.width == 2 * 2 * 8
    assert layer.entry_bytes() == 3 * 4 * 2 * 8 * 4
    layer.update(keys, values)
    memory = [x.untyped_storage().nbytes() for x in (layer.keys, layer.values, layer.rotated)]
    assert memory == [4 * 2 * 8 * 4] * 3, "a view would keep the whole chunk"


def test_a_window_goes_back_to_a_mark() -> None:
    layer = WindowLayer(WINDOW, Rotation("half", table))
    empty = layer.mark()
    assert (layer.length, layer.entry_bytes()) == (0, 0)
    _, keys, values = text(30)
    layer.update(keys[:, :, :9], values[:, :, :9])
    mark, twin = layer.mark(), layer.copy()
    before = {name: x.clone() for name, x in layer.state().items()}
    position = layer.position
    layer.update(keys[:, :, 9:30], values[:, :, 9:30])
    layer.rollback(mark)
    other = WindowLayer(WINDOW, Rotation("half", table))
    other.restore(before, position, 9, torch.float32)
    for one in (layer, twin, other):
        assert one.position == position
        assert all(torch.equal(x, before[name]) for name, x in one.state().items())
    assert (other.peak, twin.peak, layer.peak) == (9, 9, 25)
    results = [one.update(keys[:, :, 9:11], values[:, :, 9:11]) for one in (layer, twin, other)]
    assert all(torch.equal(x, y) for row in results for x, y in zip(row, results[0], strict=True))
    layer.rollback(empty)
    assert (layer.is_initialized, layer.position, layer.length) == (False, 0, 0)
    layer.note_peak(3)
    assert layer.peak == 25


def test_the_kinds_of_layers() -> None:
    rotation = Rotation("half", table)
    how = (True, None, None)
    for window, states, kind in (
        (None, 0, PotLayer),
        (None, 1, StatePotLayer),
        (0, 0, NoEntries),
        (0, 2, StateLayer),
        (7, 0, WindowLayer),
        (7, 1, StateWindowLayer),
    ):
        layer = new_layer(window, states, rotation, 20, *how)
        assert type(layer) is kind
        assert layer.window == window
        assert layer.length == layer.entry_bytes() == 0
    assert new_layer(None, 0, rotation, 20, *how).size == 20
    assert new_layer(7, 0, rotation, 20, *how).rotation is rotation


def test_a_state_is_marked_copied_and_counted() -> None:
    """Written in place by the model: a mark, a copy and a file each have their own."""
    layer = StatePotLayer(2, 20, Rotation("half", table))
    _, keys, values = text(3)
    layer.update(keys, values)
    entries = layer.entry_bytes()
    random = torch.Generator().manual_seed(1)
    state = {
        name: torch.randn(1, 3, 4, generator=random) for name in ("conv_states", "recurrent_states")
    }
    layer.lazy_initialization(conv_states=state["conv_states"], state_idx=1)
    layer.lazy_initialization(recurrent_states=state["recurrent_states"], state_idx=1)
    for name, x in state.items():
        getattr(layer, name)[1].copy_(x)
    layer.has_previous_state[1] = True
    assert layer.entry_bytes() == entries + 2 * 12 * 4
    mark, twin = layer.mark(), layer.copy()
    saved = {name: x.clone() for name, x in layer.state().items()}
    assert {"conv_states.1", "recurrent_states.1"} <= saved.keys()
    assert "conv_states.0" not in saved
    layer.conv_states[1].zero_()
    layer.recurrent_states[1].zero_()
    layer.has_previous_state[1] = False
    layer.update(keys, values)
    other = StatePotLayer(2, 20, Rotation("half", table))
    other.restore(saved, 3, 3, torch.float32)
    assert torch.equal(twin.conv_states[1], state["conv_states"])
    layer.rollback(mark)
    for one in (layer, twin, other):
        assert one.length == 3
        assert torch.equal(one.conv_states[1], state["conv_states"])
        assert torch.equal(one.recurrent_states[1], state["recurrent_states"])
        assert [one.has_previous_state[n] for n in (0, 1)] == [False, True]
    layer.conv_states[1].zero_()
    layer.rollback(mark)
    assert torch.equal(layer.conv_states[1], state["conv_states"]), "a mark can be used again"


def filled(
    rotation: Rotation | None, count: int, size: int | None = 20, reset: bool = True
) -> PotLayer:
    layer = PotLayer(size, rotation, reset)
    _, keys, values = text(count, seed=count)
    layer.update(keys, values)
    return layer


def test_parts_are_rotated_together_where_they_rotate_alike() -> None:
    """Keys to each pot's own next positions, queries to its newest ones."""
    rotation = Rotation("half", table)
    layers = [filled(rotation, count) for count in (3, 9, 4)]
    counts = [1, 4, 2]
    x = text(7)[1]  # [1, 2, 7, 8]
    batched = BatchedLayer(layers, counts, {})
    raw = x.split(counts, dim=2)
    starts = [layer.position for layer in layers]
    batched.update(x, x)
    for (keys, _), own, start in zip(batched.entries, raw, starts, strict=True):
        torch.testing.assert_close(keys[:, :, -own.shape[2] :], turned(own, start))
    for part, own, start in zip(batched.rotate_queries(x), raw, starts, strict=True):
        torch.testing.assert_close(part, turned(own, start))


def test_layers_rotate_alike_by_equal_tables() -> None:
    rotation = Rotation("half", table)
    layer = filled(rotation, 3)
    assert rotate_alike([layer, filled(Rotation("half", table), 4)], [1, 1])
    full = filled(rotation, 19)
    assert rotate_alike([layer, full], [1, 1])
    assert not rotate_alike([layer, full], [1, 2]), "it must grow"
    for other in (
        filled(None, 3),
        filled(rotation, 3, None),
        filled(rotation, 3, reset=False),
        filled(Rotation("half", table), 3, 30),
        PotLayer(20, rotation),
    ):
        assert not rotate_alike([layer, other], [1, 1])
        assert not rotate_alike([other, layer], [1, 1])


def test_a_batched_layer_gives_each_pot_its_own() -> None:
    rotation = Rotation("half", table)
    layers = [filled(rotation, count) for count in (3, 9)]
    plain = [layer.copy() for layer in layers]
    batched = BatchedLayer(layers, [1, 3], {})
    assert batched.is_initialized
    assert batched.get_seq_length() == 9
    assert batched.get_mask_sizes(2) == (11, 0)
    _, keys, values = text(4, seed=5)
    assert batched.update(keys, values)[0] is keys
    parts = zip(keys.split([1, 3], dim=2), values.split([1, 3], dim=2), strict=True)
    for layer, entries, own in zip(plain, batched.entries, parts, strict=True):
        for mine, its in zip(entries, layer.update(*own), strict=True):
            torch.testing.assert_close(mine, its)
    assert [layer.length for layer in layers] == [4, 12]
    nothing = PassthroughLayer()
    assert nothing.get_seq_length() == 0
    assert nothing.get_mask_sizes(3) == (3, 0)
    assert nothing.get_max_length() == -1
