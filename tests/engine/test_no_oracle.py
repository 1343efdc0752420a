"""What was evicted is gone: later text is read from the pot and from nothing else."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from families import runner
from helpers import CATALYST, kept, random_ids
from tiny import make_tiny

from infinipot import PotConfig, Session
from infinipot.engine.distill import score_novelty
from infinipot.policies import Observation, Policy


def distilled(model, ids: list[int], **options) -> Session:
    session = Session(model, None, PotConfig(pot_size=64, distill_to=24, **options))
    session.append(ids, question=CATALYST)
    return session


def test_changing_a_token_evicted_everywhere_changes_nothing_later() -> None:
    """One layer: a token's entry does not touch its neighbours' entries, so once evicted everywhere it can have left no trace at all."""
    model, ids = make_tiny("llama", layers=1), random_ids(200)
    one = distilled(model, ids, policy="streaming")
    gone = set(range(200)) - {place for layer in kept(one) for head in layer for place in head}
    changed = list(ids)
    changed[60] = (ids[60] + 1) % 97
    assert 60 in gone
    other = distilled(model, changed, policy="streaming")
    assert kept(one) == kept(other)
    for session in (one, other):
        session.append(random_ids(100, seed=9), question=CATALYST)
    assert torch.equal(one.logits, other.logits)
    for mine, yours in zip(one.pot.bounded, other.pot.bounded, strict=True):
        assert torch.equal(mine.keys[:, :, : mine.length], yours.keys[:, :, : yours.length])


def test_later_text_depends_on_the_pot_alone() -> None:
    """A pot that carries nothing but its entries, in memory full of something else, reads on to the same bits."""
    model = make_tiny("qwen2")
    one = distilled(model, random_ids(200))
    fresh = Session(model, None, one.config)
    score_novelty(one.runner, one.pot)
    tensors, numbers = one.pot.state()
    fresh.pot.restore({name: tensor.clone() for name, tensor in tensors.items()}, numbers)
    for layer in fresh.pot.bounded:
        for buffer in (layer.keys, layer.values, layer.rotated):
            buffer[:, :, layer.length :] = (
                torch.nan
            )  # whatever lies in free slots is never looked at
    for session in (one, fresh):
        session.append(random_ids(150, seed=3), question=CATALYST)
    assert kept(one) == kept(fresh)
    assert torch.equal(one.logits, fresh.logits)


@dataclass(frozen=True, kw_only=True)
class LooksAway(Policy):
    """Has the catalyst read, and keeps the newest entries whatever it attends to."""

    def needs(self) -> frozenset[str]:
        return frozenset({"catalyst", "novelty"})

    def score(self, layer: Observation) -> torch.Tensor:
        assert layer.catalyst is not None
        return layer.index.float()


@dataclass(frozen=True, kw_only=True)
class LooksAwayFromAll(LooksAway):
    """Remembers attention from all tokens, too, so the catalyst is read in a pass of its own."""

    def needs(self) -> frozenset[str]:
        return frozenset({"catalyst", "novelty", "received"})


@pytest.mark.parametrize(
    ("family", "policy", "chunk"),
    [
        ("Llama-2", LooksAway(), 7),
        ("Llama-2", LooksAway(), 512),
        ("Qwen3", LooksAway(), 512),
        ("Llama-2", LooksAwayFromAll(), 512),
        ("Gemma-2", LooksAway(), 512),  # its windows cannot take the catalyst behind a chunk
    ],
)
def test_the_catalyst_leaves_nothing_behind(family: str, policy: Policy, chunk: int) -> None:
    """Another catalyst of the same length, read at every distillation: logits, entries and novelty are equal bit by bit."""
    config = PotConfig(pot_size=64, distill_to=24, chunk_tokens=chunk, policy=policy)
    one, other = (Session(runner(family), None, config) for _ in range(2))
    for session, catalyst in ((one, [1, 2, 3]), (other, [90, 91, 92])):
        session.append(random_ids(300), question=catalyst)
        assert session.stats.distillations > 5
    assert torch.equal(one.logits, other.logits)
    assert kept(one) == kept(other)
    for mine, yours in zip(one.pot.bounded, other.pot.bounded, strict=True):
        assert torch.equal(mine.read_keys(0, mine.length), yours.read_keys(0, yours.length))
        assert torch.equal(mine.read_values(0, mine.length), yours.read_values(0, yours.length))
    for session in (one, other):
        score_novelty(session.runner, session.pot)
    novelty = [session.pot.described(session.pot.bounded)[1] for session in (one, other)]
    assert torch.equal(*novelty)
