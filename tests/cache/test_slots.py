"""Entries in eight bits: small errors, none added by distillation, the same state through files and forks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers import CATALYST, assert_close, config_for, kept, random_ids
from tiny import make_tiny

from infinipot import PotConfig, Session
from infinipot.cache.storage import Slots

MODEL = make_tiny("llama")
ERROR = {"int8": 0.009, "fp8": 0.034}
"""Largest relative error (L2) of a vector of 64 normal numbers: half a step of 127, of 3 bits of mantissa."""
FROM_STOCK = {"int8": 0.025, "fp8": 0.11}
"""Largest error of the logits after 60 tokens; 0.019 and 0.088 were measured."""


@pytest.mark.parametrize("kind", ERROR)
def test_error_and_moving(kind: str) -> None:
    x = (
        torch.randn(1, 2, 50, 64, generator=torch.Generator().manual_seed(0))
        * torch.logspace(-3, 3, 50)[:, None]
    )
    slots = Slots(x, 60, kind)
    slots.write(5, x)
    back = slots.read(5, 55)
    assert float(((back - x).norm(dim=-1) / x.norm(dim=-1)).max()) < ERROR[kind]
    assert back.dtype == x.dtype
    largest = x.abs().amax(dim=-1, keepdim=True)
    half_step = largest / 127 / 2
    if kind == "fp8":  # relative to the number itself, but for the smallest ones
        half_step = torch.maximum(x.abs() / 16, largest / 448 / 2**10)
    assert bool(((back - x).abs() <= 1.001 * half_step).all())
    sources = torch.tensor([[[7, 20, 54], [5, 6, 40]]])
    slots.move(1, sources)
    assert torch.equal(
        slots.read(1, 4),
        torch.stack([back[0, head, sources[0, head] - 5] for head in range(2)])[None],
    )


@pytest.mark.parametrize("kind", ERROR)
def test_no_drift_and_fewer_bytes(kind: str) -> None:
    """After many distillations survivors hold the very bits they were stored with, and are turned by where they stand now."""
    session = Session(MODEL, None, PotConfig(pot_size=64, distill_to=32, pot_dtype=kind, sinks=4))
    session.append(random_ids(40), question=CATALYST)
    first = [
        [x[:, :, :4].clone() for slots in layer.slots for x in slots.tensors]
        for layer in session.pot.bounded
    ]
    session.append(random_ids(1500), question=CATALYST)
    assert session.stats.distillations > 40
    for layer, before in zip(session.pot.bounded, first, strict=True):
        now = [x[:, :, :4] for slots in layer.slots for x in slots.tensors]
        assert all(torch.equal(a, b) for a, b in zip(now, before, strict=True))
        assert torch.equal(
            layer.read_keys(0, 9), layer.rotation.rotate(layer.slots[0].read(0, 9), 0)
        )
    plain = Session(MODEL, None, PotConfig(pot_size=64, distill_to=32))
    plain.append(random_ids(40), question=CATALYST)
    assert session.stats.pot_bytes < 0.5 * plain.stats.pot_bytes
    assert session.stats.peak_entries == 64


@pytest.mark.parametrize("kind", ERROR)
def test_near_the_model_and_independent_of_chunks(kind: str) -> None:
    ids, logits = random_ids(60), []
    for chunk in (60, 7, 1):
        session = Session(MODEL, None, PotConfig(pot_size=128, pot_dtype=kind, chunk_tokens=chunk))
        session.append(ids, question=CATALYST)
        logits.append(session.logits)
    assert_close("chunks", logits[1], logits[0])
    assert_close("chunks", logits[2], logits[0])
    assert_close(
        "stock",
        logits[0],
        MODEL(torch.tensor([ids])).logits[:, -1],
        tolerance=FROM_STOCK[kind],
    )


@pytest.mark.parametrize("kind", [None, "int8", "fp8"])
@pytest.mark.parametrize(
    ("policy", "memory"),
    [("infinipot", 0.8), ("infinipot", "once"), ("h2o", 0.8), ("snapkv", 0.8), ("kvzip", 0.8)],
)
def test_files_and_forks_go_on_alike(
    kind: str | None, policy: str, memory: float | str, tmp_path: Path
) -> None:
    """What a policy remembers of attention and of past scores is in the file, too."""
    config = config_for(
        policy,
        pot_size=64,
        distill_to=32,
        pot_dtype=kind,
        catalyst="question",
        window=5,
        score_memory=memory,
    )
    session = Session(MODEL, None, config)
    session.append(random_ids(150), question=CATALYST)
    session.save(tmp_path / "pot")
    loaded, fork = Session.load(tmp_path / "pot", MODEL), session.fork()
    for one in (fork, loaded, session):
        one.append(random_ids(200, seed=3), question=CATALYST)
    assert kept(loaded) == kept(session) == kept(fork)
    assert torch.equal(loaded.logits, session.logits)
    assert torch.equal(fork.logits, session.logits)


def test_refused_without_context_reset() -> None:
    with pytest.raises(ValueError, match="pot_dtype needs context_reset"):
        PotConfig(pot_dtype="int8", context_reset=False)
    with pytest.raises(ValueError, match="unknown pot_dtype 'int4'; did you mean 'int8'"):
        PotConfig(pot_dtype="int4")
