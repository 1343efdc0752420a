"""Rotation: exact by slot, and as exact after 500 distillations as after one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from families import FAMILIES
from families import runner as runner_of
from helpers import CATALYST, random_ids
from tiny import make_tiny

from infinipot import PotConfig, Session
from infinipot.cache.layout import Layout
from infinipot.cache.pot import Pot
from infinipot.cache.rope import Rotation, alike, rotate
from infinipot.model.runner import ModelRunner

CPU = torch.device("cpu")


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
    assert session.stats.distillations > 10
    inverse = 1.0 / 10000 ** (torch.arange(0, 16, 2).float() / 16)
    for layer in session.pot.bounded:
        slots = list(range(layer.length))
        exact = naive(layer.keys[:, :, : layer.length], slots, inverse, "half")
        rotated = layer.read_keys(0, layer.length).double()
        torch.testing.assert_close(rotated, exact, atol=2e-5, rtol=0)
        assert layer.position == layer.length


def pots_of(family: str, *sizes: int | None) -> list[Pot]:
    runner = ModelRunner(FAMILIES[family].build())
    return [runner.new_pot(Layout(size)) for size in sizes]


def tables(pot: Pot) -> list[torch.Tensor]:
    return [rotation.rotary(CPU).cos for rotation in pot.rotations if rotation is not None]


def test_pots_that_rotate_alike_share_their_tables() -> None:
    """Of two sizes in any order, so that recordings serve both. The table is as long as the largest."""
    for sizes in ((64, 100), (100, 64)):
        small, large = pots_of("Llama-3.1", *sizes)
        assert small.rotations is large.rotations
        assert alike(small.rotations, large.rotations)
        assert {len(cos) for cos in tables(small)} == {100}
    sized, again = pots_of("Cohere-2", 64, 80)
    assert sized.rotations is again.rotations, "also with layers without rotation"


@pytest.mark.parametrize(
    ("family", "trained"), [("Llama, dynamic, long", 32), ("Phi-3, longrope, long", 32)]
)
def test_frequencies_by_the_length_are_not_shared(family: str, trained: int) -> None:
    """Each pot has those of its own size, whatever other pots there are, and in any order."""
    short, long, longer = trained - 8, trained + 8, trained + 40
    model = FAMILIES[family].build()
    for sizes in ((short, long, longer), (longer, short, long), (long, longer, short)):
        runner = ModelRunner(model)
        pots = {size: runner.new_pot(Layout(size)) for size in sizes}
        runner.new_pot(Layout(None)).rotations[0].reserve(500, CPU)
        assert pots[short].rotations is not pots[long].rotations
        assert not alike(pots[short].rotations, pots[long].rotations)
        same = runner.new_pot(Layout(trained - 4))
        assert same.rotations is pots[short].rotations, "both within the trained length"
        for size, pot in pots.items():
            (alone,) = pots_of(family, size)
            for cos, expected in zip(tables(pot), tables(alone), strict=True):
                assert torch.equal(cos[:size], expected[:size])


def test_a_pot_without_a_bound_shares_with_none() -> None:
    """Its table grows with the text."""
    bounded, one, other = pots_of("Llama, dynamic, long", 64, None, None)
    for rotation in one.rotations:
        rotation.reserve(300, CPU)
    assert len({id(pot.rotations[0]) for pot in (bounded, one, other)}) == 3
    assert {len(cos) for cos in tables(bounded)} == {64}
    assert not other.rotations[0].tables


def test_a_copy_that_grows_leaves_the_original_s_frequencies() -> None:
    """Without a bound, where they depend on the length: after the copy's table has grown, the original goes on to the same bits."""
    runner = ModelRunner(FAMILIES["Llama, dynamic, long"].build())
    one, other = (Session(runner, None, PotConfig(policy="full")) for _ in range(2))
    for session in (one, other):
        session.append(random_ids(900))
    fork = one.fork()
    fork.append(random_ids(400, seed=2))
    assert fork.pot.rotations is not one.pot.rotations
    assert fork.pot.bounded[0].rotation is fork.pot.rotations[0]
    for session in (one, other):
        session.append(random_ids(3, seed=3))
    assert torch.equal(one.logits, other.logits)
    plain = Session(ModelRunner(make_tiny("llama")), None, PotConfig(policy="full"))
    assert plain.fork().pot.rotations is plain.pot.rotations, "one recording serves both"


def test_threads_make_pots_of_many_sizes() -> None:
    runner = ModelRunner(make_tiny("llama"))
    sizes = range(8, 200)
    with ThreadPoolExecutor(4) as threads:
        pots = list(threads.map(lambda size: runner.new_pot(Layout(size)), sizes))
    assert len({id(pot.rotations) for pot in pots}) == 1
    assert {len(cos) for cos in tables(pots[0])} == {max(sizes)}


@pytest.mark.parametrize("family", FAMILIES)
def test_which_frequencies_depend_on_the_length(family: str) -> None:
    rotations = [rotation for rotation in runner_of(family).rotations if rotation is not None]
    depend = {rotation.depends_on_length for rotation in rotations}
    if rotations:
        assert depend == {FAMILIES[family].frequencies is not None}
