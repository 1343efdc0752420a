"""The engine keeps the same entries and predicts the same as the paper in plain loops."""

from __future__ import annotations

import pytest
import reference as reference_module
from helpers import CATALYST, assert_close, kept, random_ids
from reference import Reference
from tiny import FAMILIES, make_tiny

from infinipot import PotConfig, Session

OPTIONS = {
    "cap": {"novelty": 0.0},
    "both": {"novelty": 0.5},
    "nuc": {"novelty": 1.0},
    "average pool": {"novelty": 0.25, "pool": 7},
    "max pool, group max": {"novelty": 0.5, "pool": 5, "pool_mode": "max", "gqa": "max"},
    "group sum, sinks, recent": {"novelty": 0.5, "gqa": "sum", "sinks": 2, "recent": 3},
    "positions grow": {"novelty": 0.5, "context_reset": False},
}


ROUNDING = 5e-6
"""Relative distance under which two scores may change places between one order of float32 additions and another."""


class Watched:
    """The reference's `select`, noting how near its decisions were: the least distance between a kept and a dropped score, exact ties
    (which go by slot on both sides) left out."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.nearest, self.original = float("inf"), reference_module.select
        monkeypatch.setattr(reference_module, "select", self)

    def __call__(self, novelties, scores, pinned, distill_to, sinks, recent, novelty):
        kept = self.original(novelties, scores, pinned, distill_to, sinks, recent, novelty)
        count = len(scores)
        open_slots = [slot for slot in range(pinned + sinks, count - recent)]
        novel = sorted(open_slots, key=lambda slot: (-novelties[slot], slot))[
            : int(novelty * (distill_to - sinks - recent) + 0.5)
        ]
        for values, chosen in (
            (novelties, novel),
            (scores, [slot for slot in kept if slot in open_slots and slot not in novel]),
        ):
            dropped = [
                float(values[slot])
                for slot in open_slots
                if slot not in chosen and slot not in novel
            ]
            least, largest = (
                min((float(values[slot]) for slot in chosen), default=None),
                max((abs(float(v)) for v in values), default=0),
            )
            if least is not None and dropped and largest and least != max(dropped):
                self.nearest = min(self.nearest, abs(least - max(dropped)) / largest)
        return kept


def clear_text(
    monkeypatch: pytest.MonkeyPatch,
    model,
    kind: type[Reference] = Reference,
    length: int = 220,
    rounding: float = ROUNDING,
    **options,
) -> tuple[list[int], Reference]:
    """A text on which no decision of the reference is nearer than rounding, and the reference that read it."""
    for seed in range(5, 15):
        with monkeypatch.context() as patch:
            watched = Watched(patch)
            reference = kind(model, catalyst=CATALYST, **options)
            ids = random_ids(length, seed=seed)
            reference.read(ids)
        if watched.nearest > rounding:
            return ids, reference
    raise AssertionError("ten texts in a row with a near tie: that is no chance")


@pytest.mark.parametrize("kv_heads", [2, 4], ids=["gqa", "mha"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@pytest.mark.parametrize("family", FAMILIES)
def test_equals_reference(
    family: str, options: dict, kv_heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_tiny(family, kv_heads=kv_heads)
    ids, reference = clear_text(monkeypatch, model, pot_size=64, distill_to=24, **options)
    session = Session(
        model, None, PotConfig(pot_size=64, distill_to=24, chunk_tokens=16, **options)
    )
    session.append(ids, question=CATALYST)
    assert session.stats.distillations == reference.distillations >= 4
    assert kept(session) == [
        [[entry.index for entry in head] for head in layer] for layer in reference.entries
    ]
    assert_close("logits", session.logits[0], reference.logits())


@pytest.mark.parametrize("chunk", [1, 5, 512])
def test_chunks_do_not_matter(chunk: int) -> None:
    model, ids = make_tiny("qwen2"), random_ids(220)
    sessions = [
        Session(model, None, PotConfig(pot_size=64, distill_to=24, chunk_tokens=size))
        for size in (16, chunk)
    ]
    for session in sessions:
        session.append(ids, question=CATALYST)
    assert kept(sessions[0]) == kept(sessions[1])
    assert_close("logits", sessions[1].logits, sessions[0].logits)


@pytest.mark.parametrize("pool", [0, 5])
def test_pinned_entries_stay(pool: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference's pinned entries are the engine's template head."""
    model = make_tiny("llama")
    ids, reference = clear_text(monkeypatch, model, pot_size=64, distill_to=24, pinned=6, pool=pool)
    session = Session(model, None, PotConfig(pot_size=64, distill_to=24, pool=pool))
    session._reader.pin(ids[:6])
    session.append(ids[6:], question=CATALYST)
    assert kept(session) == [
        [[entry.index for entry in head] for head in layer] for layer in reference.entries
    ]
    assert all(head[:6] == [0, 1, 2, 3, 4, 5] for layer in kept(session) for head in layer)


def test_no_catalyst_but_the_text_itself() -> None:
    """Catalyst `plain`: the newest tokens are read once more; it is the reference's catalyst at the first distillation."""
    model, ids = make_tiny("llama"), random_ids(150)
    session = Session(
        model, None, PotConfig(pot_size=96, distill_to=40, catalyst="plain", novelty=0.0)
    )
    session.append(ids[:65])
    reference = Reference(model, pot_size=96, distill_to=40, catalyst=ids[32:64], novelty=0.0)
    reference.read(ids[:65])
    assert session.stats.distillations == reference.distillations == 1
    assert kept(session) == [
        [[entry.index for entry in head] for head in layer] for layer in reference.entries
    ]
