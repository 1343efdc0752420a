"""Every family in one table: exact in a pot that fits; bounded, and the same as plain loops, in one that does not; batches row by row."""

from __future__ import annotations

import pytest
import torch
from counter import Counter
from families import FAMILIES, build, runner
from helpers import CATALYST, assert_close, kept, random_ids
from naive import Naive, Rope, own_frequencies
from reference import Reference
from ties import clear_text
from tiny import make_tiny

from infinipot import PotConfig, Session, generate


def test_the_naive_twin_equals_the_reference() -> None:
    model, ids = make_tiny("qwen3"), random_ids(120)
    sizes = dict(pot_size=40, distill_to=16, catalyst=CATALYST)
    one = Reference(model, **sizes)
    other = Naive(
        model,
        ropes=lambda m: [Rope("half", *own_frequencies(m))] * 2,
        windows=[None, None],
        **sizes,
    )
    for reference in (one, other):
        reference.read(ids)
    places = [
        [[[entry.index for entry in head] for head in layer] for layer in reference.entries]
        for reference in (one, other)
    ]
    assert places[0] == places[1]
    assert_close("logits", other.logits(), one.logits(), 1e-5)


@pytest.mark.parametrize("name", FAMILIES)
def test_rotation_is_found(name: str) -> None:
    """The probe finds what the table states by hand: style, dimensions, layers without rotary embedding."""
    family, rotations = FAMILIES[name], runner(name).rotations
    turned = [
        number
        for number, window in enumerate(family.windows)
        if window != 0 and number not in family.bare
    ]
    assert [number for number, rotation in enumerate(rotations) if rotation is not None] == turned
    for number in turned:
        assert rotations[number].style == family.style
        assert 2 * rotations[number].table(torch.arange(2))[0].shape[-1] == family.dims


@pytest.mark.parametrize("name", FAMILIES)
def test_what_fits_is_read_as_stock(name: str) -> None:
    """The pot is exactly full, by then, and every entry is there: in one forward pass and in chunks."""
    family, ids = FAMILIES[name], random_ids(100)
    stock = (
        runner(name).model
        if family.unlike_stock is None
        else build(family.kind, **family.unlike_stock)
    )
    expected = stock(torch.tensor([ids])).logits[:, -1]
    for chunk in (9, 512):
        session = Session(
            runner(name), None, PotConfig(pot_size=100, chunk_tokens=chunk, novelty=1.0)
        )
        session.append(ids)
        assert session.stats.entries == 100
        assert_close(f"{name} in chunks of {chunk}", session.logits, expected)
        assert [layer.window for layer in session.pot.layers] == family.windows


@pytest.mark.parametrize("name", FAMILIES)
def test_a_small_pot_equals_plain_loops(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    family = FAMILIES[name]
    # where rounding is coarse, smoothed scores lie too near to each other to be told apart
    sizes = dict(pot_size=40, distill_to=16, pool=0 if family.rounding >= 1e-4 else 7)
    model = runner(name).model
    options = dict(ropes=lambda m: family.ropes(m, 40), windows=family.windows)
    ids, naive = clear_text(
        monkeypatch, model, Naive, length=96, rounding=family.rounding, **sizes, **options
    )
    session = Session(runner(name), None, PotConfig(**sizes, chunk_tokens=9))
    with monkeypatch.context() as patch:
        counter = Counter(patch, sinks=int(family.kind == "gpt_oss"))
        session.append(ids, question=CATALYST)
    assert session.stats.distillations == naive.distillations >= 4
    assert counter.most == session.stats.peak_entries == 40
    assert kept(session) == [
        [[entry.index for entry in head] for head in layer] for layer in naive.entries
    ]
    assert_close("logits", session.logits[0], naive.logits())
    windowed = [
        layer for layer, window in zip(session.pot.layers, family.windows, strict=True) if window
    ]
    assert all(
        layer.keys.shape[2] == window - 1
        for layer, window in zip(windowed, filter(None, family.windows), strict=True)
    )


@pytest.mark.parametrize("name", FAMILIES)
def test_every_row_of_a_batch_equals_itself_alone(name: str) -> None:
    model = runner(name).model
    rows = [random_ids(length, seed=length) for length in (50, 12)]
    width = max(map(len, rows))
    ids = torch.tensor([[0] * (width - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    options = dict(max_new_tokens=6, do_sample=False, eos_token_id=None, pad_token_id=0)
    small = PotConfig(pot_size=40, distill_to=16, chunk_tokens=9)
    out = model.generate(ids, attention_mask=mask, custom_generate=generate, pot=small, **options)
    for row, got in zip(rows, out, strict=True):
        alone = model.generate(torch.tensor([row]), custom_generate=generate, pot=small, **options)
        assert got[width:].tolist() == alone[0, len(row) :].tolist()
