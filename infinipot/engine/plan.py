"""What is in force: all options with their defaults for these sizes, looked up once."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from infinipot.config import PotConfig
from infinipot.policies import Policy
from infinipot.scoring.selection import apportion


@dataclass(frozen=True, kw_only=True)
class LayerPlan:
    """One bounded layer. size: |M|, None without a bound. budget: |C|. The others as in
    `Observation`."""

    size: int | None
    budget: int
    sinks: int
    recent: int
    pool: int
    pool_mode: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All that a distillation depends on, beside the pot and the catalyst's ids.

    needs: what is observed. pot_size, distill_to: |M| and |C|, of all layers the mean. whole:
    everything is read and distilled once, before the answer. replay_tokens: how many tokens are
    read once more at a time behind the catalyst. layers: the bounded ones. catalyst: the kind by
    which the smoothing was chosen; None: not yet. undecided: whether the smoothing still depends on
    it.
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
        """The plan for a model with so many bounded layers. Raises ValueError for layer budgets
        that do not fit."""
        policy = config.policy
        needs = config.policy.needs()
        if catalyst is None:
            catalyst = policy.catalyst
        else:
            catalyst = catalyst
        spare = config.pot_size - config.survivors
        bounded = policy.bounded and config.prefill == "bounded"
        budgets = budgets_of(config, layers)
        smoothings = [policy.smoothing(budget, catalyst) for budget in budgets]
        return cls(
            policy=policy,
            needs=needs,
            pot_size=config.pot_size,
            distill_to=config.survivors,
            chunk_tokens=config.chunk_tokens or 512,
            whole=policy.bounded and config.prefill == "whole",
            replay_tokens=min(64, max(1, spare // 8)) if "replay" in needs else 0,
            gqa=policy.gqa,
            window=policy.window,
            remembers=bool(policy.score_memory),
            once=policy.score_memory == "once",
            layers=tuple(
                LayerPlan(
                    size=spare + budget if bounded else None,
                    budget=budget,
                    sinks=policy.sinks,
                    recent=policy.newest_kept(budget),
                    pool=pool,
                    pool_mode=mode,
                )
                for budget, (pool, mode) in zip(budgets, smoothings, strict=True)
            ),
            catalyst=catalyst,
            undecided=policy.catalyst is None
            and smoothings != [policy.smoothing(budget, other(catalyst)) for budget in budgets],
        )

    def reserve(self, catalyst: Tensor | None) -> int:
        """Entries that a distillation needs for its own reading."""
        if catalyst is None:
            return 0
        return catalyst.shape[1] + self.replay_tokens

    def shown_in(self, config: PotConfig, decided: bool = True) -> PotConfig:
        """A config with the options that are in force. decided: whether the smoothing is; what
        layers have each for themselves stays None."""
        names = [
            name for name in ("recent", "pool", "pool_mode") if name in config.policy.options()
        ]
        shown: dict[str, Any] = {"distill_to": self.distill_to} if self.policy.bounded else {}
        for name in names if self.layers and self.policy.bounded else ():
            values = {getattr(layer, name) for layer in self.layers}
            if len(values) == 1 and (decided or name == "recent"):
                shown[name] = values.pop()
        return config.replace(**shown)

    def saved(self) -> dict[str, Any]:
        """What a pot file keeps."""
        return {
            "catalyst": self.catalyst,
            "layers": [dataclasses.asdict(layer) for layer in self.layers],
        }

    def restored(self, saved: dict[str, Any]) -> Plan:
        """This plan with what a pot file kept of the one that was in force."""
        layers = tuple(LayerPlan(**layer) for layer in saved["layers"])
        if [layer.size for layer in layers] != [layer.size for layer in self.layers]:
            raise KeyError("the layers have other sizes than the options say")
        return dataclasses.replace(self, layers=layers, catalyst=saved["catalyst"], undecided=False)


def other(catalyst: str | None) -> str:
    """A kind of catalyst that knows the question if this one does not, and the other way round."""
    if catalyst in (None, "question"):
        return "general"
    return "question"


def budgets_of(config: PotConfig, layers: int) -> list[int]:
    """|C| of each of the bounded layers: `layers` times `survivors` in all."""
    if isinstance(config.layer_budget, str):
        return [config.survivors] * layers
    weights: Sequence[float] = config.layer_budget
    if len(weights) != layers:
        raise ValueError(
            f"layer_budget has {len(weights)} weights, but the model has {layers} layers that a pot bounds: give as many"
        )
    shares = apportion(layers * config.survivors, [float(weight) for weight in weights])
    least = min(shares)
    sinks = config.policy.sinks
    recent = config.policy.newest_kept(least)
    if least < max(1, sinks + recent):
        raise ValueError(
            f"layer_budget leaves a layer {least} entries, fewer than sinks={sinks} + recent={recent}, and at least 1: distil to more, "
            "weigh layers more evenly, or give a smaller recent"
        )
    return shares
