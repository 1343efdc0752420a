"""What several tests share."""

from __future__ import annotations

from typing import Any

import torch

from infinipot import PotConfig, Session
from infinipot.config import matters
from infinipot.policies import POLICIES

CATALYST = [5, 9, 11, 2, 7]
CHANGES: dict[str, Any] = {
    "distill_to": 20,
    "novelty": 0.0,
    "policy": "streaming",
    "sinks": 6,
    "recent": 6,
    "pool": 5,
    "gqa": "max",
    "shared_heads": True,
    "score_memory": 1.0,
    "layer_budget": (3.0, 2.0, 1.0),
    "pot_dtype": "int8",
    "context_reset": False,
}
"""Another value of each option; with each, a pot of 64 keeps or predicts something else."""


def random_ids(count: int, seed: int = 5, vocabulary: int = 97) -> list[int]:
    """Ids from 1 on: transformers takes id 0 for padding in some calls."""
    return torch.randint(
        1, vocabulary, (count,), generator=torch.Generator().manual_seed(seed)
    ).tolist()


def assert_close(
    name: str, got: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-4
) -> None:
    """Largest difference, relative to the expected tensor's largest absolute value."""
    error = float((got.float() - expected.float()).abs().max() / expected.float().abs().max())
    assert error <= tolerance, f"{name}: {error:.2e} of the maximum, allowed {tolerance:.0e}"


def kept(session: Session) -> list[list[list[int]]]:
    """Places in the text of the entries, by layer and KV head."""
    return [session.pot.described([layer])[0][0].tolist() for layer in session.pot.bounded]


def greedy(logits: torch.Tensor) -> int:
    return int(logits.argmax())


def config_for(policy: str, **options) -> PotConfig:
    """A config with those of the options that make a difference with this policy."""
    return PotConfig(
        policy=policy,
        **{name: value for name, value in options.items() if matters(name, POLICIES[policy])},
    )


class Killed(Exception):
    """What a test raises where a process would have been killed."""
