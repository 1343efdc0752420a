"""All options in force, with their defaults for these sizes, resolved once."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from infinipot.cache.attention_stats import AttentionStats
from infinipot.cache.layout import Layout
from infinipot.catalysts import KINDS
from infinipot.checks import LARGEST, known, whole_number
from infinipot.config import PotConfig
from infinipot.model.runner import ModelRunner
from infinipot.policies import Policy
from infinipot.policies.options import check_prompt
from infinipot.scoring.selection import POOLINGS, apportion

LATE = frozenset({"newest", "queries", "hidden_states", "received"})
"""Needs of a policy for which layers keep attention statistics during reading."""
CHUNK_TOKENS = 1024
"""Most tokens that one forward pass reads on a CPU."""
CHUNK_TOKENS_IN_GROUPS = 512
"""The same with weights in groups, whose products are not faster for more."""
GPU_CHUNK_TOKENS = 2048


def chunk_tokens(config: PotConfig, runner: ModelRunner) -> int:
    """Most tokens that one forward pass reads."""
    if config.chunk_tokens:
        return config.chunk_tokens
    if runner.device.type != "cpu":
        return GPU_CHUNK_TOKENS
    return CHUNK_TOKENS_IN_GROUPS if runner.in_groups else CHUNK_TOKENS


@dataclass(frozen=True, kw_only=True)
class LayerPlan:
    """One bounded layer. size: |M|, None without a bound. budget: |C|. Other fields: as in
    `Observation`."""

    size: int | None
    budget: int
    sinks: int
    recent: int
    pool: int
    pool_mode: str

    def check(self) -> None:
        """Raise for values that no plan has."""
        if self.size is not None:
            whole_number("size", self.size, 2, LARGEST)
        for name, low in (("budget", 1), ("sinks", 0), ("recent", 0), ("pool", 0)):
            whole_number(name, getattr(self, name), low, LARGEST)
        known("pool_mode", self.pool_mode, POOLINGS)
        if self.pool and self.pool % 2 == 0:
            raise ValueError(f"pool={self.pool} is not odd")
        if self.sinks + self.recent > self.budget or self.budget >= (self.size or LARGEST):
            raise ValueError(f"budget={self.budget} does not fit its layer")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything a distillation depends on, except the pot and the catalyst's ids.

    needs: as `Policy.needs`. pot_size, distill_to: |M| and |C|, the mean over layers. whole: read
    everything, and distil once before the answer. replay_tokens: the number of tokens that are read
    again at a time behind the catalyst. remembers: scores are stored for the next distillation.
    once: each entry is scored once. layers: the bounded ones. catalyst: its kind; None: not decided.
    undecided: policy or smoothing still depend on the catalyst's kind.
    """

    policy: Policy
    needs: frozenset[str]
    pot_size: int
    distill_to: int
    chunk_tokens: int
    whole: bool
    replay_tokens: int
    gqa: str
    window: int
    remembers: bool
    once: bool
    layers: tuple[LayerPlan, ...]
    catalyst: str | None
    undecided: bool = dataclasses.field(compare=False)

    @classmethod
    def of(cls, config: PotConfig, layers: int, catalyst: str | None = None) -> Plan:
        """The plan for a model with this number of bounded layers. Raises ValueError for layer
        budgets that do not fit."""
        check_prompt("catalyst", catalyst, KINDS)
        if catalyst is None:
            catalyst = config.policy.catalyst
        policy = config.policy.for_catalyst(catalyst)
        needs = checked_needs(policy)
        budgets = budgets_of(config, layers)
        smoothing = [policy.smoothing(budget, catalyst) for budget in budgets]
        other = config.policy.for_catalyst(other_kind(catalyst))
        other_smoothing = [other.smoothing(budget, other_kind(catalyst)) for budget in budgets]
        whole = policy.bounded and config.prefill == "whole"
        window = policy.window
        if not whole:  # of more tokens than entries nothing is looked at
            window = min(window, config.pot_size)
        replay_tokens = 0
        if "replay" in needs:
            replay_tokens = min(64, max(1, (config.pot_size - config.mean_budget) // 8))
        return cls(
            policy=policy,
            needs=needs,
            pot_size=config.pot_size,
            distill_to=config.mean_budget,
            chunk_tokens=config.chunk_tokens or CHUNK_TOKENS,
            whole=whole,
            replay_tokens=replay_tokens,
            gqa=policy.gqa,
            window=window,
            remembers=bool(policy.score_memory),
            once=policy.score_memory == "once",
            layers=tuple(map(partial(layer_plan, config), budgets, smoothing)),
            catalyst=catalyst,
            undecided=config.policy.catalyst is None
            and (policy, smoothing) != (other, other_smoothing),
        )

    def reserve(self, catalyst: Tensor | None) -> int:
        """Room that a distillation needs for reading the catalyst, in entries."""
        if catalyst is None:
            return 0
        return catalyst.shape[1] + self.replay_tokens

    def shown_in(self, config: PotConfig, decided: bool = True) -> PotConfig:
        """A config with the options in force. Options that differ between layers stay None. decided:
        the smoothing is decided."""
        if not self.policy.bounded:
            return config
        options: dict[str, Any] = {"distill_to": self.distill_to}
        for name in {"recent", "pool", "pool_mode"} & set(self.policy.options()):
            values = {getattr(layer, name) for layer in self.layers}
            if len(values) == 1 and (decided or name == "recent"):
                options[name] = values.pop()
        return config.replace(**options)

    def saved(self) -> dict[str, Any]:
        """The part that a pot file stores."""
        return {
            "catalyst": self.catalyst,
            "layers": [dataclasses.asdict(layer) for layer in self.layers],
        }

    def restored(self, saved: dict[str, Any]) -> Plan:
        """This plan with the part that a pot file stored."""
        layers = tuple(LayerPlan(**layer) for layer in saved["layers"])
        for layer in layers:
            layer.check()
        sizes = [(layer.size, layer.budget) for layer in layers]
        if sizes != [(layer.size, layer.budget) for layer in self.layers]:
            raise ValueError("the layers have other sizes than the options say")
        check_prompt("catalyst", saved["catalyst"], KINDS)
        return dataclasses.replace(self, layers=layers, catalyst=saved["catalyst"], undecided=False)


def layer_plan(config: PotConfig, budget: int, smoothing: tuple[int, str]) -> LayerPlan:
    """The plan of a layer with this |C|. smoothing: pool and pool_mode."""
    policy = config.policy
    size = None
    if policy.bounded and config.prefill == "bounded":
        size = config.pot_size - config.mean_budget + budget
    pool, pool_mode = smoothing
    return LayerPlan(
        size=size,
        budget=budget,
        sinks=policy.sinks,
        recent=policy.newest_kept(budget),
        pool=pool,
        pool_mode=pool_mode,
    )


OBSERVABLE = (
    "novelty", "catalyst", "received", "newest", "queries", "hidden_states", "module", "replay",
    "sentences",
)  # fmt: skip


def checked_needs(policy: Policy) -> frozenset[str]:
    """What must be observed for a policy. Raises ValueError for a policy that asks for something
    unknown, or leaves out what an observation depends on."""
    needs = frozenset(policy.needs())
    for name in needs:
        known(f"observation in the needs of policy {policy.name!r}:", name, OBSERVABLE)
    windowed = [name for name in ("newest", "queries", "hidden_states") if name in needs]
    if windowed and not (isinstance(policy.window, int) and policy.window >= 1):
        raise ValueError(
            f"policy {policy.name!r} needs {windowed[0]!r}, with window={policy.window!r}: "
            "give it an option `window`, a whole number of at least 1"
        )
    if policy.stacks and {"queries", "hidden_states", "module"} & needs:
        raise ValueError(
            f"policy {policy.name!r} sees several layers at once, and queries and modules belong to one: "
            "leave `stacks` out"
        )
    if "replay" in needs:  # the text is read again after the catalyst
        needs |= {"catalyst"}
    return needs


def other_kind(catalyst: str | None) -> str:
    """A kind of catalyst with a question for one without, and vice versa."""
    if catalyst in (None, "question"):
        return "general"
    return "question"


def budgets_of(config: PotConfig, layers: int) -> list[int]:
    """|C| of each bounded layer; their sum is `layers` times `survivors`."""
    if isinstance(config.layer_budget, str):
        return [config.mean_budget] * layers
    weights: Sequence[float] = config.layer_budget
    if len(weights) != layers:
        raise ValueError(
            f"layer_budget has {len(weights)} weights, "
            f"but the model has {layers} layers that a pot bounds: give as many"
        )
    shares = apportion(layers * config.mean_budget, [float(weight) for weight in weights])
    least = min(shares)
    sinks = config.policy.sinks
    recent = config.policy.newest_kept(least)
    if least < max(1, sinks + recent):
        raise ValueError(
            f"layer_budget leaves a layer {least} entries, fewer than sinks={sinks} + recent={recent}, "
            "and at least 1: distil to more, weigh layers more evenly, or give a smaller recent"
        )
    return shares


def layout_of(config: PotConfig, plan: Plan) -> Layout:
    """The shape of a pot with this config and plan."""
    policy = config.policy
    attention_stats = None
    if LATE & plan.needs:
        window = 0
        if {"newest", "queries"} & plan.needs:
            window = plan.window
        hidden_rows = 0
        if "hidden_states" in plan.needs:
            hidden_rows = plan.window
        attention_stats = AttentionStats("received" in plan.needs, window, hidden_rows)
    layout = Layout(
        size=None,
        reset=config.context_reset,
        kind=config.pot_dtype,
        attention_stats=attention_stats,
        distils=policy.bounded,
        scores="novelty" in plan.needs,
    )
    if policy.grouped:
        return dataclasses.replace(layout, grouping=(config.group, config.neighbours))
    if policy.cuts:
        return dataclasses.replace(layout, size=config.pot_size)
    if plan.whole or not policy.bounded:
        return layout
    sizes = tuple(layer.size for layer in plan.layers if layer.size is not None)
    return dataclasses.replace(layout, size=config.pot_size, sizes=sizes)
