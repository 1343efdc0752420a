"""The policies by name: file name = key = value of `--policy`."""

from __future__ import annotations

from infinipot.policies.base import Observation, Policy
from infinipot.policies.full import Full
from infinipot.policies.infinipot import InfiniPot
from infinipot.policies.streaming import Streaming
from infinipot.policies.truncate import Truncate

POLICIES: dict[str, type[Policy]] = {policy.name: policy for policy in (InfiniPot, Streaming, Truncate, Full)}

__all__ = ["POLICIES", "Observation", "Policy"]
