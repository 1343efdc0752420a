"""What several tests share."""

from __future__ import annotations

import torch

from infinipot import PotConfig, Session
from infinipot.config import matters
from infinipot.policies import POLICIES

CATALYST = [5, 9, 11, 2, 7]


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
