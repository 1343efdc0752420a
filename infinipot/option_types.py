"""Types of options given by name, so that type checkers find wrong names and values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypedDict

if TYPE_CHECKING:
    from infinipot.policies.base import Policy

PolicyName = Literal[
    "infinipot",
    "streaming",
    "sliding_window",
    "h2o",
    "tova",
    "snapkv",
    "sirllm",
    "keydiff",
    "outliers",
    "relevance",
    "kvzip",
    "random",
    "full",
    "self_extend",
    "truncate",
]
DtypeName = Literal["auto", "float32", "bfloat16", "float16"]


class SamplingOptions(TypedDict, total=False):
    """The options of `Sampling`."""

    max_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int | None
    stop: Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    min_tokens: int
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float] | Sequence[tuple[int, float]]


class PotOptions(TypedDict, total=False):
    """The options of `PotConfig` beside `policy`, with those of every policy here. A policy of your
    own takes its options itself."""

    preset: Literal["paper", "facts"] | None
    pot_size: int
    distill_to: int | None
    layer_budget: Literal["uniform"] | Sequence[float]
    pot_dtype: Literal["int8", "fp8"] | None
    prefill: Literal["bounded", "whole"]
    context_reset: bool
    chunk_tokens: int | None
    sinks: int
    recent: int | None
    pool: int | None
    pool_mode: Literal["avg", "max", "trailing"] | None
    shared_heads: bool
    score_memory: float | Literal["once"]
    gqa: Literal["mean", "max", "sum"]
    catalyst: str | None
    answer_prefix: str | None
    novelty: float
    contrast: str | None
    window: int
    group: int
    neighbours: int
    by_novelty: float
    by_sentence: float


class PotChanges(PotOptions, total=False):
    """The options of `PotConfig.replace`."""

    policy: PolicyName | Policy
