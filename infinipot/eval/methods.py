"""A method is a policy with its options, as results name it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import yaml

from infinipot.options import PotConfig, known
from infinipot.policies import POLICIES

PROBE = 0.37
"""A share that no policy has by itself: one that gives it back lets novelty have what was wanted."""


@dataclass(frozen=True)
class Method:
    """label: as given, `infinipot` or `infinipot:novelty=0.25`. config: every option filled in."""

    label: str
    config: PotConfig

    @property
    def aware(self) -> bool:
        """Whether the question is known while the text is read: it is the catalyst."""
        return self.config.catalyst == "question"

    @property
    def question(self) -> str | None:
        """`known` or `unknown` while the text is read; None where the policy would make no use of it."""
        return None if self.config.catalyst is None else "known" if self.aware else "unknown"

    @property
    def bounded(self) -> bool:
        return POLICIES[self.config.policy].reads != "all"

    @property
    def options(self) -> dict[str, Any]:
        """What tells this method from another of the same policy: options that count for it and are not the defaults."""
        reads = POLICIES[self.config.policy].reads
        if reads == "all":
            return {}
        if reads == "ends":
            return {"pot_size": self.config.pot_size}
        different = {
            field.name: value
            for field in dataclasses.fields(PotConfig)
            if field.name not in ("policy", "chunk_tokens") and (value := getattr(self.config, field.name)) != field.default
        }
        return {**different, "pot_size": self.config.pot_size, "distill_to": self.config.distill_to or self.config.survivors}


def method(label: str, base: dict[str, Any]) -> Method:
    """One method from `policy[:option=value...]` on top of shared options.

    The catalyst of a policy that has one is the question unless said otherwise; options that a policy does not look at are left out.
    """
    policy, *changes = label.split(":")
    known("policy", policy, POLICIES)
    options = {**base, "policy": policy}
    for change in changes:
        name, equals, value = change.partition("=")
        name = name.replace("-", "_")
        if not equals:
            raise ValueError(f"{label!r} cannot be read: after the policy stands option=value, as in {policy}:novelty=0.25")
        known("option", name, [field.name for field in dataclasses.fields(PotConfig) if field.name != "policy"])
        options[name] = yaml.safe_load(value)
    config = PotConfig(**options)
    policy_ = POLICIES[policy]()
    if policy_.share(PROBE) != PROBE:
        config = dataclasses.replace(config, novelty=PotConfig.novelty)
    has_catalyst = "catalyst" in policy_.needs(config.novelty)
    config = dataclasses.replace(config, catalyst=(config.catalyst or "question") if has_catalyst else None)
    return Method(label, config)


def methods(labels: str, base: dict[str, Any]) -> list[Method]:
    """Several, separated by commas: `full,truncate,infinipot:novelty=0,infinipot:catalyst=general`."""
    listed = [method(label.strip(), base) for label in labels.split(",") if label.strip()]
    if not listed:
        raise ValueError("no policy is given: name one or several, separated by commas")
    names = [item.label for item in listed]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise ValueError(f"{twice!r} is given twice")
    return listed
