"""A method is a policy with its options, as results name it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import yaml

from infinipot.checks import known
from infinipot.config import RECIPES, PotConfig
from infinipot.policies import POLICIES, Policy

PROBE = 0.37
"""A share that no policy has by itself: one that gives it back lets novelty have what was wanted."""
LATE = frozenset({"newest", "received"})
"""What the question itself decides where all is read first and distilled behind it (prefill="whole")."""


@dataclass(frozen=True)
class Method:
    """label: as given, `infinipot` or `infinipot:novelty=0.25`. config: every option filled in."""

    label: str
    config: PotConfig

    @property
    def policy(self) -> Policy:
        return POLICIES[self.config.policy]()

    @property
    def aware(self) -> bool:
        """Whether the question is given while the text is read: it is the catalyst."""
        return self.config.catalyst == "question"

    @property
    def question(self) -> str | None:
        """`known` or `unknown` when it is chosen what survives; None where the policy would make no use of a question."""
        if self.aware or (self.config.prefill == "whole" and self.policy.needs(self.config.novelty) & LATE):
            return "known"
        return None if self.config.catalyst is None else "unknown"

    @property
    def bounded(self) -> bool:
        """Whether memory is bounded while the text is read."""
        return self.policy.reads != "all" and self.config.prefill == "bounded"

    @property
    def windowed(self) -> bool:
        """Whether the model's own window limits what can be read."""
        return not self.bounded and not self.policy.grouped

    @property
    def options(self) -> dict[str, Any]:
        """What tells this method from another of the same policy: options that count for it and are not the defaults."""
        config, policy = self.config, self.policy
        if policy.reads == "all":
            return {name: getattr(config, name) for name in ("group", "neighbours")} if policy.grouped else {}
        if policy.reads == "ends":
            return {"pot_size": config.pot_size}
        different = {
            field.name: value
            for field in dataclasses.fields(PotConfig)
            if field.name not in ("policy", "chunk_tokens") and (value := getattr(config, field.name)) != field.default
        }
        different = {name: list(value) if isinstance(value, tuple) else value for name, value in different.items()}
        sized = ("distill_to", "recent", "pool", "pool_kind") if policy.share(PROBE) == PROBE else ("distill_to",)
        return {**different, "pot_size": config.pot_size, **{name: config.own(name) for name in sized}}


def method(label: str, base: dict[str, Any], asked: bool = True, preset: str | None = None) -> Method:
    """One method from `policy[:option=value...]` on top of shared options. What stands in the label counts more than `preset=` there, and that
    more than base; preset, below base, is for those policies alone that let novelty choose, as the recipes do.

    asked: there is a question; then it is the catalyst of a policy that has one, unless said otherwise, else the general catalyst is.
    Options that a policy does not look at are left out.
    """
    policy, *changes = label.split(":")
    known("policy", policy, POLICIES)
    policy_ = POLICIES[policy]()
    novel = policy_.share(PROBE) == PROBE
    own: dict[str, Any] = {}
    recipe: dict[str, Any] = {}
    for change in changes:
        name, equals, value = change.partition("=")
        name = name.replace("-", "_")
        if not equals:
            raise ValueError(f"{label!r} cannot be read: after the policy stands option=value, as in {policy}:novelty=0.25")
        known("option", name, ["preset", *(field.name for field in dataclasses.fields(PotConfig) if field.name != "policy")])
        if name == "preset":
            known("preset", value, RECIPES)
            recipe = RECIPES[value]
        else:
            own[name] = yaml.safe_load(value)
    shared = {**RECIPES[preset], **base} if preset is not None and novel else base
    if not novel:  # these go by a catalyst beside novelty, and would be refused
        shared = {name: value for name, value in shared.items() if name != "contrast" and (name, value) != ("persist", "once")}
    try:
        config = PotConfig(**{**shared, **recipe, **own, "policy": policy})
    except TypeError as problem:  # what a label says is text, so a wrong type is a wrong value
        raise ValueError(f"{label!r}: {problem}") from None
    if not novel:
        config = dataclasses.replace(config, novelty=PotConfig.novelty)
    has_catalyst = "catalyst" in policy_.needs(config.novelty)
    catalyst = config.catalyst or policy_.catalyst or ("question" if asked else "general")
    if has_catalyst and catalyst == "question" and not asked:
        raise ValueError("catalyst='question' is not possible here: there is no question; use general, or a prompt of your own")
    config = dataclasses.replace(config, catalyst=catalyst if has_catalyst else None)
    return Method(label, config)


def methods(labels: str, base: dict[str, Any], asked: bool = True, preset: str | None = None) -> list[Method]:
    """Several, separated by commas: `full,truncate,infinipot:novelty=0,infinipot:catalyst=general`."""
    listed = [method(label.strip(), base, asked, preset) for label in labels.split(",") if label.strip()]
    if not listed:
        raise ValueError("no policy is given: name one or several, separated by commas")
    names = [item.label for item in listed]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise ValueError(f"{twice!r} is given twice")
    return listed
