"""The policies by name: file name = key = value of `--policy`."""

from __future__ import annotations

from infinipot.policies.base import Observation, Policy
from infinipot.policies.full import Full
from infinipot.policies.h2o import H2O
from infinipot.policies.infinipot import InfiniPot
from infinipot.policies.keydiff import KeyDiff
from infinipot.policies.kvzip import KVzip
from infinipot.policies.random import Random
from infinipot.policies.self_extend import SelfExtend
from infinipot.policies.sirllm import SirLLM
from infinipot.policies.sliding_window import SlidingWindow
from infinipot.policies.snapkv import SnapKV
from infinipot.policies.streaming import Streaming
from infinipot.policies.tova import Tova
from infinipot.policies.truncate import Truncate

_ALL: tuple[type[Policy], ...] = (
    InfiniPot, Streaming, SlidingWindow, H2O, Tova, SnapKV, SirLLM, KeyDiff, KVzip, Random, Truncate, Full, SelfExtend,
)  # fmt: skip
POLICIES: dict[str, type[Policy]] = {policy.name: policy for policy in _ALL}

__all__ = ["POLICIES", "Observation", "Policy"]
