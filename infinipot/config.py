"""All options and their defaults. Unknown names and impossible values raise at once.

The options of a policy are documented in its own class, in `infinipot.policies`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from infinipot.cache.storage import QUANTISED
from infinipot.checks import (
    RENAMED,
    known,
    old_name,
    whole_number,
    within,
)
from infinipot.policies.base import Policy
from infinipot.policies.infinipot import InfiniPot
from infinipot.policies.registry import OPTIONS, POLICIES, renamed, with_options

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from infinipot.option_types import PolicyName, PotChanges, PotOptions

PRESETS: dict[str, dict[str, Any]] = {
    "paper": {"novelty": 0.5, "pool": 0, "recent": 0, "distill_to": 0.5},
    "facts": {
        "catalyst": "facts",
        "contrast": "unrelated",
        "score_memory": "once",
        "pool": 21,
        "pool_mode": "avg",
    },
}
"""Sets of options by name; `distill_to` is a share of pot_size here. paper: the paper's options,
where our defaults differ. facts: keeps single facts for unknown questions (docs/results.md)."""
FREE = 1024
"""Free entries of a large pot after a distillation, by default. Fewer mean more distillations, more
mean fewer survivors."""
GONE = {
    "coverage": (
        "coverage belonged to distill_to='auto', which is gone: "
        "leave it out, and give distill_to a number of entries"
    ),
    "auto": (
        "distill_to='auto' is gone, as it kept nothing that a number did not: "
        "give a number of entries"
    ),
    "pyramid": (
        "layer_budget='pyramid' is gone, as uniform budgets kept more: "
        "leave it out, or give a weight for each layer"
    ),
}

INFINIPOT = InfiniPot()


def preset_options(preset: str, pot_size: int) -> dict[str, Any]:
    """The options of a preset, for a pot of this size. Raises ValueError for an unknown name."""
    if preset in POLICIES:
        raise ValueError(
            f"unknown preset {preset!r} (known: {', '.join(PRESETS)}): "
            "it is a policy, so give it as the policy"
        )
    known("preset", preset, PRESETS)
    whole_number("pot_size", pot_size, 2)
    options = dict(PRESETS[preset])
    if "distill_to" in options:
        options["distill_to"] = int(options["distill_to"] * pot_size)
    return options


def resolved(options: Mapping[str, Any], pot_size: int) -> dict[str, Any]:
    """Options under their present names. A `preset` among them gives those that they leave open.
    pot_size: if they name none."""
    current = renamed(options)
    preset = current.pop("preset", None)
    if preset is None:
        return current
    return {**preset_options(preset, current.get("pot_size", pot_size)), **current}


@dataclass(frozen=True, kw_only=True, init=False)
class PotConfig:
    """The pot and how it is distilled. Sizes are entries (tokens) per layer and KV head.

    The options of the policy are keywords and attributes, too: `PotConfig(policy="infinipot",
    novelty=0.5)`, `config.novelty`. They are stored in the policy.

    `preset="paper"` or `preset="facts"` sets several options; others override it. Only these options
    are stored, not the name.
    """

    pot_size: int = 2048
    """|M|: the bound for all entries together: survivors, the current chunk, the catalyst, the
    answer."""
    distill_to: int | None = None
    """|C|: entries that survive a distillation, without the pinned ones. None: `pot_size / 2`; above
    2,048: `min(pot_size - 1024, 0.75 * pot_size)`."""
    policy: Policy = INFINIPOT
    """How survivors are chosen: a name, or an object of any subclass of `Policy`, with its options.
    `infinipot` goes by the question; without one it leaves the choice to `outliers`."""
    layer_budget: str | tuple[float, ...] = "uniform"
    """How many entries each layer keeps. `uniform`: the same number. A tuple: a weight for each
    bounded layer, at the same total. A layer that keeps 10 more entries has room for 10 more."""
    pot_dtype: str | None = None
    """How entries are stored: `int8` or `fp8`, with a scale for each vector; None: in the model's
    own type."""
    prefill: str = "bounded"
    """`bounded`: the pot never holds more than pot_size. `whole`: read everything without a bound,
    and distil once before the answer, as in the publications of other policies."""
    context_reset: bool = True
    """CR-RoPE: positions restart at 0 after a distillation. False: they grow without a bound (the
    paper's ablation)."""
    chunk_tokens: int | None = None
    """Most tokens in one forward pass of reading. It changes the memory for activations; results differ
    by rounding only. None: 1024, with weights in int8 or int4 512, on a GPU 2048."""

    def __init__(
        self, *, policy: PolicyName | Policy = "infinipot", **options: Unpack[PotOptions]
    ) -> None:
        if "coverage" in options:
            raise ValueError(GONE["coverage"])
        given = resolved(options, type(self).pot_size)
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, given.pop(field.name, field.default))
        if isinstance(self.layer_budget, list):
            object.__setattr__(self, "layer_budget", tuple(self.layer_budget))
        object.__setattr__(self, "policy", with_options(policy, given))
        self._check_names()
        self._check_sizes()

    def __getattr__(self, name: str) -> Any:
        """The policy's options."""
        if name in RENAMED:
            (name,) = renamed({name: None})
        policy = self.__dict__.get("policy")
        if policy is not None and (name in OPTIONS or name in policy.options()):
            return getattr(policy, name)
        raise AttributeError(f"PotConfig has no option {name!r}")

    def replace(self, **options: Unpack[PotChanges]) -> PotConfig:
        """A copy with other options, of the config or the policy, or with those of a preset. A new
        policy starts from its own defaults."""
        return dataclasses.replace(self, **resolved(options, self.pot_size))

    @property
    def options(self) -> dict[str, Any]:
        """All options by name, with those of the policy. `policy` is the policy's name."""
        own = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {**own, "policy": self.policy.name, **self.policy.values}

    @property
    def changed(self) -> dict[str, Any]:
        """The options that differ from the defaults, with those of the policy."""
        fields = (*dataclasses.fields(self), *dataclasses.fields(self.policy))
        defaults = {
            **{field.name: field.default for field in fields},
            "policy": type(self).policy.name,
        }
        return {name: value for name, value in self.options.items() if value != defaults[name]}

    @property
    def mean_budget(self) -> int:
        """|C|: entries that a layer keeps at a distillation, the mean over layers. It is `distill_to`,
        or the default of it."""
        if self.distill_to is not None:
            return self.distill_to
        return max(self.pot_size // 2, min(self.pot_size - FREE, 3 * self.pot_size // 4))

    survivors = old_name("survivors", "mean_budget")

    def _check_names(self) -> None:
        for name, removed in (("distill_to", "auto"), ("layer_budget", "pyramid")):
            if getattr(self, name) == removed:
                raise ValueError(GONE[removed])
        for name, names, optional in (
            ("prefill", ("bounded", "whole"), False),
            ("pot_dtype", QUANTISED, True),
        ):
            value = getattr(self, name)
            if not isinstance(value, str) and not (value is None and optional):
                raise TypeError(f"{name}={value!r} is not allowed: it must be a name")
            if value is not None:
                known(name, value, names)
        if not isinstance(self.context_reset, bool):
            raise TypeError(
                f"context_reset={self.context_reset!r} is not allowed: it must be True or False"
            )
        if self.pot_dtype is not None and not self.context_reset:
            raise ValueError(
                "pot_dtype needs context_reset: entries in eight bits are turned by slot whenever they are read"
            )
        self._check_weights()

    def _check_weights(self) -> None:
        weights = self.layer_budget
        error: type[Exception] = ValueError
        if isinstance(weights, tuple):
            allowed = bool(weights) and all(
                isinstance(weight, (int, float)) and 0 < weight < float("inf") for weight in weights
            )
        else:
            allowed = weights == "uniform"
            if not isinstance(weights, str):
                error = TypeError
        if not allowed:
            raise error(
                f"layer_budget={weights!r} is not allowed: give 'uniform', or a weight above 0 for each layer"
            )

    def _check_sizes(self) -> None:
        whole_number("pot_size", self.pot_size, 2)
        for name in ("distill_to", "chunk_tokens"):
            if getattr(self, name) is not None:
                whole_number(name, getattr(self, name), 1)
        try:
            hash(self.policy)
        except TypeError as problem:
            raise TypeError(
                f"policy={self.policy!r} is not allowed: its options must be hashable, "
                f"so tuples, not lists ({problem})"
            ) from None
        if self.policy.catalyst == "plain" and self.pot_size < 64:
            raise ValueError(
                f"pot_size={self.pot_size} is not allowed with catalyst='plain': "
                "the newest 32 tokens need a pot of at least 64"
            )
        if self.policy.bounded:
            within("distill_to", self.mean_budget, 1, self.pot_size - 1)
            sinks = self.policy.sinks
            recent = self.policy.newest_kept(self.mean_budget)
            if sinks + recent > self.mean_budget:
                raise ValueError(
                    f"sinks={sinks} + recent={recent} do not fit in distill_to={self.mean_budget}: "
                    "keep fewer, or distil to more"
                )


NAMES = (
    "policy",
    *(field.name for field in dataclasses.fields(PotConfig) if field.name != "policy"),
    *OPTIONS,
)
"""All options, with those of every policy."""


def matters(option: str, policy: Policy | type[Policy]) -> bool:
    """Whether an option has an effect with this policy."""
    if option in ("policy", "chunk_tokens", "pot_dtype"):
        return True
    if option == "pot_size":
        return policy.bounded or policy.cuts
    if option in {field.name for field in dataclasses.fields(PotConfig)}:
        return policy.bounded
    return option in policy.options()
