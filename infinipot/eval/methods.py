"""Methods: policies with options, as results name them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from infinipot.checks import RENAMED, SIZES, known, size
from infinipot.config import NAMES, PotConfig, matters, preset_options
from infinipot.engine.plan import LATE, Plan
from infinipot.option_types import PotChanges
from infinipot.policies import POLICIES, Policy, UnknownOption, policy_of
from infinipot.policies.registry import OUTSIDE, renamed

OPTION_NAMES = [name for name in NAMES if name != "policy"]


@dataclass(frozen=True)
class Method:
    """label: as on the command line, `infinipot` or `infinipot:novelty=0.25`. config: all options.
    prompts: a study's names for prompts, as (name, text). by_task: the catalyst is the question in
    tasks of question answering, and general in others. fills: as many entries survive as the pot
    has room for beside the pinned ones, so that one leaves a token."""

    label: str
    config: PotConfig
    prompts: tuple[tuple[str, str], ...] = ()
    by_task: bool = False
    fills: bool = False

    @property
    def policy(self) -> Policy:
        return self.config.policy

    @property
    def aware(self) -> bool:
        """Whether the question is known during reading, as the catalyst."""
        return bool(self.policy.catalyst == "question")

    @property
    def question(self) -> str | None:
        """Whether the selection of survivors knows the question: `known`, `unknown` or `by task`;
        None if the policy does not use a question."""
        if self.by_task:
            return "by task"
        if self.aware or (self.config.prefill == "whole" and self.policy.needs() & LATE):
            return "known"
        if "catalyst" in self.policy.needs():
            return "unknown"
        return None

    @property
    def bounded(self) -> bool:
        """Whether memory is bounded during reading."""
        return (self.policy.bounded or self.policy.cuts) and self.config.prefill == "bounded"

    @property
    def windowed(self) -> bool:
        """Whether the model's own window limits the length of a text."""
        return not self.bounded and not self.policy.grouped

    @property
    def options(self) -> dict[str, Any]:
        """Options that differ from the defaults and have an effect, under the names that results
        use (older names of some options)."""
        policy = self.policy
        if not policy.bounded:
            if policy.cuts:
                return {"pot_size": self.config.pot_size}
            return policy.values
        different = {
            name: value
            for name, value in self.config.changed.items()
            if name not in ("policy", "chunk_tokens")
        }
        different |= {"pot_size": self.config.pot_size, "distill_to": self.config.mean_budget}
        if "novelty" in policy.options():
            kind = policy.catalyst or "general"
            layer = Plan.of(self.config.replace(layer_budget="uniform"), 1, kind).layers[0]
            different["recent"] = layer.recent
            if not self.by_task or policy.pool is not None:
                different |= {"pool": layer.pool, "pool_mode": layer.pool_mode}
        if policy.catalyst is not None:
            names = {text: name for name, text in self.prompts}
            different["catalyst"] = names.get(policy.catalyst, policy.catalyst)
        if self.by_task:
            different["catalyst"] = "by task"
        if self.fills:
            different["distill_to"] = "all but one"
        for name, value in different.items():
            if isinstance(value, tuple):
                different[name] = list(value)
        older = {new: old for old, new in RENAMED.items()}
        return {older.get(name, name): value for name, value in different.items()}

    def of_task(self, answering: bool) -> Method:
        """This method in a task. answering: the task is question answering."""
        if not self.by_task:
            return self
        kind = "question" if answering else "general"
        return dataclasses.replace(self, config=self.config.replace(catalyst=kind), by_task=False)

    def beside(self, pinned: int) -> PotConfig:
        """The config in a pot with so many pinned entries."""
        config = self.config
        if not self.fills:
            return config
        changes: PotChanges = {"distill_to": config.mean_budget - pinned}
        if self.policy.recent is not None:
            changes["recent"] = self.policy.recent - pinned
        return config.replace(**changes)


def split(text: str, mark: str) -> list[str]:
    """Split a text at marks outside parentheses, brackets and quotes."""
    parts = [""]
    depth = 0
    quote = ""
    for letter in text:
        if letter == quote:
            quote = ""
        elif not quote and depth and letter in "'\"":
            quote = letter
        if not quote:
            depth += (letter in "([{") - (letter in ")]}")
        if letter == mark and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def parts_of(label: str) -> tuple[str, list[str]]:
    """`infinipot:novelty=0.25` or `package.module:Class(alpha=0.3):pot_size=512` -> the policy and
    the parts behind it."""
    first, *others = split(label, ":")
    if first not in POLICIES and others and OUTSIDE.fullmatch(f"{first}:{others[0]}"):
        return f"{first}:{others[0]}", others[1:]
    return first, others


def changes_of(label: str, policy: Policy, changes: list[str]) -> tuple[dict[str, Any], str | None]:
    """Options by name from `option=value` parts, and the name of a preset."""
    own: dict[str, Any] = {}
    preset: str | None = None
    for change in changes:
        name, equals, value = change.partition("=")
        name = name.replace("-", "_")
        if not equals:
            raise ValueError(
                f"{label!r} cannot be read: "
                f"after the policy stands option=value, as in {policy.name}:novelty=0.25"
            )
        known("option", name, ["preset", *OPTION_NAMES, *RENAMED, *policy.options()])
        if name == "preset":
            preset = value
        else:
            own[name] = value_of(name, value)
    return renamed(own), preset


def value_of(name: str, text: str) -> Any:
    """The value of an option in a label. Sizes may end in k or m."""
    value = yaml.safe_load(text)
    if name in SIZES and isinstance(value, str) and value[:1].isdigit():
        return size(value)
    return value


def shared_options(policy: Policy, base: Mapping[str, Any]) -> dict[str, Any]:
    """The options of `base` for this policy: those that have an effect, and that the policy has not
    set itself."""
    shared = renamed(base)
    # `once` needs scores from the catalyst
    if "contrast" not in policy.options() and shared.get("score_memory") == "once":
        del shared["score_memory"]
    defaults = {field.name: field.default for field in dataclasses.fields(policy)}
    changed = {name for name, value in policy.values.items() if value != defaults[name]}
    return {
        name: value
        for name, value in shared.items()
        if matters(name, policy) and name not in changed
    }


def method(
    label: str,
    base: Mapping[str, Any],
    asked: bool = True,
    preset: str | None = None,
    prompts: Mapping[str, str] | None = None,
) -> Method:
    """One method from a label `policy[:option=value...]` and shared options.

    Options override each other in this order: the label's options, a preset in the label, `base`,
    `preset`. A policy ignores options in `base` and `preset` that it does not have. asked: there is
    a question, which is the default catalyst; otherwise the general catalyst is. prompts: a study's
    names for prompts.
    """
    named, changes = parts_of(label)
    policy = policy_of(named)
    own, own_preset = changes_of(label, policy, changes)
    prompts = prompts or {}
    if own.get("catalyst") in prompts:
        own["catalyst"] = prompts[own["catalyst"]]
    for name in own:
        if not matters(name, policy):
            raise UnknownOption(type(policy), name)
    pot_size = own.get("pot_size", base.get("pot_size", PotConfig.pot_size))
    try:
        if preset is not None and "novelty" in policy.options():
            base = {**preset_options(preset, pot_size), **base}
        shared = shared_options(policy, base)
        if own_preset is not None:
            shared |= preset_options(own_preset, pot_size)
        config = PotConfig(**{**shared, **own, "policy": policy})
    except UnknownOption:
        raise
    except TypeError as problem:  # labels are text, so a wrong type is a wrong value
        raise ValueError(f"{label!r}: {problem}") from None
    if "catalyst" in policy.options():
        config = config.replace(catalyst=catalyst_of(config.policy, asked))
    return Method(label, config, tuple(prompts.items()))


def catalyst_of(policy: Policy, asked: bool) -> str | None:
    """The kind of catalyst: the policy's, else the question if there is one. None if no catalyst is
    needed."""
    if "catalyst" not in policy.needs():
        return None
    catalyst: str | None = policy.catalyst
    if catalyst == "question" and not asked:
        raise ValueError(
            "catalyst='question' is not possible here: there is no question; "
            "use general, or a prompt of your own"
        )
    if catalyst:
        return catalyst
    if asked:
        return "question"
    if policy.for_catalyst("general") is not policy:
        return None
    return "general"


def methods(
    labels: str,
    base: Mapping[str, Any],
    asked: bool = True,
    preset: str | None = None,
    prompts: Mapping[str, str] | None = None,
) -> list[Method]:
    """Methods from labels with commas: `full,truncate,infinipot:novelty=0,infinipot:catalyst=general`."""
    texts = [text.strip() for text in split(labels, ",") if text.strip()]
    listed = [method(text, base, asked, preset, prompts) for text in texts]
    if not listed:
        raise ValueError("no policy is given: name one or several, separated by commas")
    names = [item.label for item in listed]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise ValueError(f"{twice!r} is given twice")
    return listed
