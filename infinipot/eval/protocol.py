"""The paper's protocol for LongBench: the methods of its Table 1, and a catalyst by task."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from infinipot.eval.methods import Method

PROTOCOLS = ("paper",)
TABLE_1 = (
    "full",
    "truncate",
    "self_extend:group=2:neighbours=1024",
    "self_extend:group=2:neighbours=1536",
    "self_extend:group=4:neighbours=2048",
    "snapkv:prefill=whole:distill_to={most}",
    "streaming:distill_to={most}",
    "h2o:distill_to={most}:recent={newest}",
    "sirllm:distill_to={half}",
    "tova:distill_to={half}",
    "infinipot:preset=paper",
)
"""Labels of the methods. SnapKV reads the whole text first. For StreamingLLM and H2O one entry
leaves a token; H2O keeps four heavy hitters, and of SelfExtend's three settings the paper tells the
best (its Appendix A). SirLLM and TOVA are criteria in the paper's own loop."""
HEAVY_HITTERS = 4


def table_1(pot_size: int) -> str:
    """The methods of Table 1 for this size of the pot, as a value of --policy."""
    most = pot_size - 1
    sizes = {"most": most, "newest": most - HEAVY_HITTERS, "half": pot_size // 2}
    return ",".join(label.format(**sizes) for label in TABLE_1)


def arranged(methods: Sequence[Method], base: Mapping[str, Any]) -> list[Method]:
    """The methods under the protocol. The catalyst goes by the task: the question in question
    answering, general in all others. A catalyst that is given, in the label or in `base`, stays.
    Methods that keep all but one entry make room for the pinned ones."""
    return [
        dataclasses.replace(
            method,
            by_task=method.aware and "catalyst" not in base and "catalyst=" not in method.label,
            fills=method.policy.bounded and method.config.distill_to == method.config.pot_size - 1,
        )
        for method in methods
    ]
