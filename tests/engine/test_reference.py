"""The engine keeps the same entries and predicts the same as the paper in plain loops."""

from __future__ import annotations

import pytest
from helpers import CATALYST, assert_close, kept, random_ids
from reference import Reference
from ties import clear_text
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


HEADS = [
    *((name, 2) for name in OPTIONS),
    *((name, 4) for name in ("both", "max pool, group max", "positions grow")),
]
"""Options, and KV heads for four query heads: what a group of one does differently shows in a few."""


@pytest.mark.parametrize(("name", "kv_heads"), HEADS)
@pytest.mark.parametrize("family", FAMILIES)
def test_equals_reference(
    family: str, name: str, kv_heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = OPTIONS[name]
    model = make_tiny(family, kv_heads=kv_heads)
    sizes = {"pot_size": 48, "distill_to": 28}
    ids, reference = clear_text(monkeypatch, model, length=109, **sizes, **options)
    session = Session(model, None, PotConfig(**sizes, chunk_tokens=16, **options))
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
    ids, reference = clear_text(
        monkeypatch, model, length=102, pot_size=48, distill_to=20, pinned=6, pool=pool
    )
    session = Session(model, None, PotConfig(pot_size=48, distill_to=20, pool=pool))
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
