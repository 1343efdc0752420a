"""What a pot notes and gives, reckoned by hand: newest tokens, addresses, copies, marks, saved states."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from families import runner as runner_of
from helpers import CATALYST, random_ids
from tiny import make_tiny

from infinipot import PotConfig, Session
from infinipot.cache import choice, storage
from infinipot.cache import layer as layer_module
from infinipot.cache.attention_stats import AttentionStats
from infinipot.cache.bookkeeping import NEWEST
from infinipot.cache.choice import Choice, rotated_keys
from infinipot.cache.layer import PotLayer
from infinipot.cache.layout import Layout
from infinipot.cache.pot import Pot
from infinipot.cache.rope import Rotation
from infinipot.model.runner import ModelRunner

RUNNER = ModelRunner(make_tiny("llama"))


def filled(count: int, layout: Layout | None = None, seed: int = 0) -> Pot:
    """Of two layers with random entries, read as one chunk."""
    pot = RUNNER.new_pot(layout or Layout(64))
    write(pot, count, seed)
    return pot


def write(pot: Pot, count: int, seed: int = 0) -> torch.Tensor:
    """Add random entries, and note their ids, which are returned."""
    random = torch.Generator().manual_seed(seed)
    for layer in pot.layers:
        layer.update(*(torch.randn(1, 2, count, 16, generator=random) for _ in range(2)))
    ids = torch.randint(1, 97, (1, count), generator=random)
    pot.follow(ids, torch.randn(1, count, 64, generator=random))
    return ids


def test_the_newest_ids_of_a_copy_are_its_own() -> None:
    """With ids that are not merged yet, before the copy and after it."""
    pot = RUNNER.new_pot(Layout(64))
    read = [0] * NEWEST + [i for seed in range(3) for i in write(pot, 5, seed)[0].tolist()]
    twin = pot.copy()
    assert twin.newest[0].tolist() == pot.newest[0].tolist() == read[-NEWEST:]
    assert twin.newest is twin.last_ids is not pot.newest
    more = write(twin, 3, 7)[0].tolist()
    assert pot.newest[0].tolist() == read[-NEWEST:]
    assert twin.newest[0].tolist() == [*read, *more][-NEWEST:]
    for seed in range(40):
        more.append(write(twin, 1, seed)[0].tolist()[0])
    assert len(twin.unmerged) == NEWEST
    assert twin.newest[0].tolist() == more[-NEWEST:]


def test_following_by_hand() -> None:
    pot = RUNNER.new_pot(Layout(64, scores=True))
    states = torch.arange(6.0).view(1, 6, 1).expand(1, 6, 64)
    ids = torch.arange(6)[None]
    pot.follow(ids[:, :4], states[:, :4])
    assert (pot.before, pot.tokens_read, pot.predicted) == (None, 4, None)
    assert pot.hidden.tolist() == states[:, 3:4].tolist()
    assert pot.hidden.untyped_storage().nbytes() == 64 * 4, "a view would keep the chunk"
    first = pot.hidden
    logits = torch.zeros(2, 97)
    pot.follow(ids[:, 4:5], states[:, 4:5], (logits, 1))
    assert pot.before is None, "the tokens since then wait, too"
    assert pot.predicted == (logits, 1)
    assert [part.tolist() for part, _ in pot.unscored] == [[[0, 1, 2, 3]], [[4]]]
    pot.note_novelty(torch.arange(5.0)[None])
    assert (pot.unscored, pot.before) == ((), None)
    pot.note_logits((logits, 0))
    assert pot.predicted == (logits, 0)
    assert pot.logits.shape == (1, 97)
    pot.forget_logits()
    assert pot.logits is None
    before = pot.hidden
    pot.follow(ids[:, 5:], states[:, 5:])
    assert pot.before is before is not first
    pot.note_novelty(torch.tensor([[9.0]]))
    assert pot.novelty.tolist() == [[0, 1, 2, 3, 4, 9]]
    assert (pot.fresh.tolist(), pot.tokens_read) == ([[0, 1, 2, 3, 4, 5]], 6)
    pot.distilled(1.5)
    pot.distilled(0.5)
    assert (pot.distillations, pot.distill_s, pot.fresh.numel(), pot.novelty.shape) == (
        2,
        2.0,
        0,
        (1, 0),
    )
    others = RUNNER.new_pot(Layout(64, distils=False, scores=False))
    others.follow(ids[:, :4], states[:, :4])
    assert (others.unscored, others.fresh_parts, others.tokens_read) == ((), (), 4)
    others.score_at_once()
    others.follow(ids[:, :4], states[:, :4])
    assert len(others.unscored) == 1
    assert others.before.tolist() == states[:, 3:4].tolist()


def test_described_by_hand() -> None:
    """Survivors have their own places and novelty, and newer entries those of the text's end."""
    pot = filled(5)
    first, second = pot.bounded
    for layer, shift in ((first, 0), (second, 2)):
        layer.index = torch.tensor([[[0, 3 + shift], [1, 4 + shift]]], dtype=torch.int32)
        layer.novelty = torch.tensor([[[1.0, 2.0], [3.0, 4.0]]]) + shift
    pot.tokens_read = 20
    pot.novelty = torch.tensor([[7.0, 8.0]])
    places, novelty = pot.described([first, second])
    assert places.dtype == torch.int64
    assert places.tolist() == [
        [[0, 3, 17, 18, 19], [1, 4, 17, 18, 19]],
        [[0, 5, 17, 18, 19], [1, 6, 17, 18, 19]],
    ]
    assert novelty.tolist() == [
        [[1, 2, 7, 8, 0], [3, 4, 7, 8, 0]],
        [[3, 4, 7, 8, 0], [5, 6, 7, 8, 0]],
    ]


@pytest.mark.parametrize("kind", [None, "int8"])
def test_addresses_are_found_once_until_slots_move(
    kind: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the scales, if there are any, come last."""
    monkeypatch.setattr(layer_module, "GROWTH", 4)
    pot = filled(3, Layout(None, kind=kind))
    assert pot.by_address
    places = pot.places
    assert pot.places is places
    assert places.dtype == torch.int64

    def expected() -> list[list[int]]:
        return [
            [
                *(slots.data.data_ptr() for slots in layer.slots),
                layer.capacity,
                *(slots.scale.data_ptr() for slots in layer.slots if slots.scale is not None),
            ]
            for layer in pot.bounded
        ]

    assert places.tolist() == expected()
    pot.reserve(1)
    assert pot.places is places
    assert pot.places[0, 2] == 4
    kept = [layer.slots for layer in pot.bounded]
    pot.reserve(2)
    assert [layer.capacity for layer in pot.bounded] == [8, 8]
    assert pot.places is not places
    assert pot.places.tolist() == expected()
    assert pot.copy().places.tolist() != pot.places.tolist()
    assert all(layer.slots is not old for layer, old in zip(pot.bounded, kept, strict=True))
    pot.advance(3)
    assert [(layer.length, layer.position) for layer in pot.bounded] == [(6, 6)] * 2
    pot.advance(-2)
    assert pot.length == 4


@pytest.mark.parametrize(
    ("options", "by_address", "together"),
    [
        ({}, True, True),
        ({"size": None}, True, False),
        ({"sizes": (64, 64)}, True, True),
        ({"sizes": (60, 68)}, False, False),
        ({"kind": "int8"}, True, False),
        ({"reset": False}, False, True),
        ({"size": None, "grouping": (2, 8)}, False, False),
    ],
)
def test_where_entries_are(options: dict[str, Any], by_address: bool, together: bool) -> None:
    """Whether kernels find them by address, and whether all layers share their memory."""
    pot = RUNNER.new_pot(Layout(**{"size": 64, **options}))
    assert not pot.by_address, "nothing is allocated yet"
    write(pot, 3)
    assert pot.by_address == by_address
    in_block = {layer.in_block for layer in pot.bounded}
    assert in_block == {together}
    if together:
        memory = pot.block.tensors[0].data_ptr()
        assert pot.bounded[0].slots[0].data.data_ptr() == memory


def test_a_mark_brings_back_everything_but_the_memory() -> None:
    pot = filled(5)
    before = {
        name: getattr(pot.snapshot(), name)
        for name in ("hidden", "tokens_read", "unscored", "fresh_parts", "unmerged")
    }
    newest = pot.newest.tolist()
    mark = pot.mark()
    write(pot, 4, 1)
    pot.note_logits((torch.zeros(1, 97), 0))
    assert pot.newest.tolist() != newest
    pot.rollback(mark)
    assert pot.newest.tolist() == newest
    assert pot.newest is pot.last_ids
    assert (pot.length, pot.predicted, pot.tokens_read) == (5, None, 5)
    assert pot.hidden is before["hidden"]
    assert torch.equal(pot.fresh, torch.cat(before["fresh_parts"], dim=1))
    pot.rollback(mark)
    pot.distilled(0.0)
    with pytest.raises(AssertionError, match="before a distillation"):
        pot.rollback(mark)
    with pytest.raises(ValueError, match="cannot be cropped"):
        pot.crop(3)
    with pytest.raises(ValueError, match="beam search"):
        pot.reorder_cache(3)


def test_a_state_is_an_equal_pot() -> None:
    """Tensors and numbers by name; a pot of another shape refuses them."""
    session = Session(RUNNER, None, PotConfig(pot_size=48, distill_to=20, policy="streaming"))
    session.append(random_ids(100), question=CATALYST)
    pot = session.pot
    pot.pin(2)
    tensors, numbers = pot.state()
    assert numbers == {
        "pinned": 2,
        "tokens_read": 100,
        "distillations": pot.distillations,
        "positions": [pot.length] * 2,
        "peaks": [48, 48],
    }
    assert {name for name in tensors if "." not in name} == {"hidden", "novelty", "fresh", "newest"}
    names = {"keys", "values", "index", "novelty"}
    assert {name for name in tensors if "." in name} == {
        f"layers.{n}.{name}" for n in (0, 1) for name in names
    }
    assert all(tensors[f"layers.{n}.index"].dtype == torch.int64 for n in (0, 1))
    other = Session(RUNNER, None, session.config).pot
    copies = {name: x.clone() for name, x in tensors.items()}
    other.restore(copies, numbers)
    again, same = other.state()
    assert same == numbers
    assert again.keys() == tensors.keys()
    assert all(torch.equal(again[name], x) for name, x in tensors.items())
    assert other.bounded[0].index.dtype == torch.int32
    short: dict[str, Any] = {**copies, "newest": copies["newest"][:, 1:]}
    with pytest.raises(ValueError, match="its newest tokens have another shape"):
        Session(RUNNER, None, session.config).pot.restore(short, numbers)
    waiting = RUNNER.new_pot(Layout(64, scores=True))
    write(waiting, 3)
    with pytest.raises(AssertionError, match="wait for their novelty"):
        waiting.state()


@pytest.mark.parametrize("kind", [None, "int8"])
@pytest.mark.parametrize("pinned", [0, 2])
def test_a_kernel_compacts_all_layers_at_once(
    pinned: int, kind: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is given addresses, places behind the pinned entries, and the size of a vector; then those of the scales, if there are any."""
    pot = filled(9, Layout(64, kind=kind))
    twin = pot.copy()
    buffers = {
        x.data_ptr(): x for layer in pot.bounded for slots in layer.slots for x in slots.tensors
    }
    indices = torch.tensor([[[0, 1, 4, 7], [0, 1, 5, 8]], [[0, 1, 2, 3], [0, 1, 3, 6]]])
    told: list[tuple[int, int, int]] = []

    def compact(
        addresses: torch.Tensor, rows: torch.Tensor, start: int, count: int, width: int
    ) -> None:
        told.append((start, count, width))
        for address, own in zip(addresses.tolist(), rows, strict=True):
            storage.Slots(buffers[address], 64, data=buffers[address]).move(
                start, own[None, :, start:]
            )

    monkeypatch.setattr(storage.distill, "compact", compact)
    monkeypatch.setattr(choice.kernels, "supports_compaction", lambda rows: rows is indices)
    index, novelty = pot.described(pot.bounded)
    for by_address in (True, False):
        own = (pot if by_address else twin).bounded
        Choice([0, 1], indices, index, novelty, None).apply(own, pinned, by_address)
    widths = [16 * 4] if kind is None else [16, 4]
    assert told == [(pinned, 64, width) for width in widths] * 2, "keys, then values"
    for mine, its in zip(pot.bounded, twin.bounded, strict=True):
        assert torch.equal(mine.read_keys(0, 4), its.read_keys(0, 4))
        assert torch.equal(mine.read_values(0, 4), its.read_values(0, 4))
        assert torch.equal(mine.index, its.index)
        assert (mine.past, mine.length, mine.index.dtype) == (None, 4, torch.int32)


@pytest.mark.parametrize(
    ("policy", "extra"),
    [("streaming", 0), ("h2o", 4 * 24 * 4), ("snapkv", 4 * 8 * 16 * 4)],
)
def test_bytes_of_what_layers_remember_of_attention(policy: str, extra: int) -> None:
    """Sums for four heads of 24 entries, or queries of 8 tokens, in each of two layers."""
    options = {"window": 8} if policy == "snapkv" else {}
    session = Session(RUNNER, None, PotConfig(pot_size=64, policy=policy, **options))
    session.append(random_ids(24))
    slots = 2 * 64 * 16 * 4
    assert session.stats.pot_bytes == 2 * (3 * slots + extra)


def test_what_layers_share_to_be_in_one_block() -> None:
    """Everything but the number of slots: rows, heads, sizes of keys and values, type."""

    def shape(
        rows: int = 1,
        heads: int = 2,
        key: int = 8,
        value: int = 4,
        slots: int = 6,
        dtype: Any = torch.float32,
    ) -> Any:
        layer = PotLayer(slots, None)
        layer.update(*(torch.zeros(rows, heads, 3, size, dtype=dtype) for size in (key, value)))
        return layer.shape

    assert shape() == shape(slots=9) == ((1, 2, 8), (1, 2, 4), torch.float32, torch.device("cpu"))
    others = [{"rows": 2}, {"heads": 3}, {"key": 4}, {"value": 8}, {"dtype": torch.float64}]
    assert len({shape(), *(shape(**other) for other in others)}) == 6


def test_parts_of_a_layer_by_hand() -> None:
    layer = PotLayer(6, None)
    keys = torch.arange(1 * 2 * 3 * 8.0).view(1, 2, 3, 8)
    layer.update(keys, keys[..., :4])
    assert (layer.width, layer.capacity, layer.length) == (2 * 8 + 2 * 4, 6, 3)
    assert torch.equal(layer.keys[:, :, :3], keys)
    assert torch.equal(layer.values[:, :, :3], keys[..., :4])
    assert layer.keys.shape == (1, 2, 6, 8)
    assert torch.equal(layer.read_keys(1, 2), keys[:, :, 1:2])
    assert layer.place == (*(slots.data.data_ptr() for slots in layer.slots), 6)
    one = layer.copy()
    one.advance(-1)
    assert (one.length, one.position, one.peak, layer.length) == (2, 2, 3, 3)


@pytest.mark.parametrize("kind", [None, "int8"])
def test_keys_of_layers_that_rotate_differently(kind: str | None) -> None:
    """Each by its own table, also where keys are rotated when they are read."""

    def rotation(base: float) -> Rotation:
        frequencies = 1 / base ** (torch.arange(4) / 4)
        return Rotation(
            "half", lambda p: ((p[:, None] * frequencies).cos(), (p[:, None] * frequencies).sin())
        )

    one, other = rotation(100.0), rotation(10.0)
    for rotations in ((one, one), (one, other), (other, one)):
        layers = [PotLayer(9, own, True, kind) for own in rotations]
        for seed, layer in enumerate(layers):
            random = torch.Generator().manual_seed(seed)
            layer.update(*(torch.randn(1, 2, 7, 8, generator=random) for _ in range(2)))
        got = rotated_keys(layers, 3)
        expected = [layer.read_keys(0, 7)[:, :, 3:] for layer in layers]
        torch.testing.assert_close(got, torch.cat(expected))


def test_one_layer_decides_for_all() -> None:
    """A window, or attention that is remembered, in one of several layers."""
    for family, by_address in (("Llama-2", True), ("Gemma-2", False)):
        runner = runner_of(family)
        pot = runner.new_pot(Layout(64))
        runner.read(torch.tensor([random_ids(5)]), [pot])
        assert pot.by_address == by_address
        assert len({layer.window for layer in pot.layers}) == 2 - by_address
    pot = filled(3)
    assert not pot.watched
    pot.bounded[1].attention_stats = AttentionStats(True)
    assert pot.watched
