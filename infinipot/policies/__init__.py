"""The policies by name: file name = key = value of `--policy`."""

from __future__ import annotations

from infinipot.policies.base import Observation, Policy, UnknownOption
from infinipot.policies.registry import POLICIES, policy_of

__all__ = ["POLICIES", "Observation", "Policy", "UnknownOption", "policy_of"]
