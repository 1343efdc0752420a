"""A method is a policy with its options, as results name it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from infinipot.checks import RENAMED, known
from infinipot.config import NAMES, RECIPES, PotConfig, matters
from infinipot.engine.plan import Plan
from infinipot.engine.reader import LATE
from infinipot.policies import POLICIES, Policy, UnknownOption, policy_of
from infinipot.policies.registry import OUTSIDE, renamed


@dataclass(frozen=True)
class Method:
    """label: as on the command line, `infinipot` or `infinipot:novelty=0.25`. config: every option
    filled in. prompts: names that a study has for prompts."""

    label: str
    config: PotConfig
    prompts: tuple[tuple[str, str], ...] = ()

    @property
    def policy(self) -> Policy:
        return self.config.policy

    @property
    def aware(self) -> bool:
        """Whether the question is given while the text is read: it is the catalyst."""
        return bool(self.policy.catalyst == "question")

    @property
    def question(self) -> str | None:
        """`known` or `unknown` when it is chosen what survives; None where the policy would make no
        use of a question."""
        if self.aware or (self.config.prefill == "whole" and self.policy.needs() & LATE):
            return "known"
        if self.policy.catalyst is None:
            return None
        return "unknown"

    @property
    def bounded(self) -> bool:
        """Whether memory is bounded while the text is read."""
        return (self.policy.bounded or self.policy.cuts) and self.config.prefill == "bounded"

    @property
    def windowed(self) -> bool:
        """Whether the model's own window limits what can be read."""
        return not self.bounded and not self.policy.grouped

    @property
    def options(self) -> dict[str, Any]:
        """What tells this method from another of the same policy: options that count for it and are
        not the defaults, under the names that results have always had."""
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
        different |= {"pot_size": self.config.pot_size, "distill_to": self.config.survivors}
        if "novelty" in policy.options():
            layer = Plan.of(self.config.replace(layer_budget="uniform"), 1).layers[0]
            different |= {"recent": layer.recent, "pool": layer.pool, "pool_mode": layer.pool_mode}
        if policy.catalyst is not None:
            different["catalyst"] = {text: name for name, text in self.prompts}.get(
                policy.catalyst, policy.catalyst
            )
        older = {new: old for old, new in RENAMED.items()}
        return {
            older.get(name, name): list(value) if isinstance(value, tuple) else value
            for name, value in different.items()
        }


def split(text: str, mark: str) -> list[str]:
    """Parts of a text between marks that stand in no parentheses, brackets or quotes."""
    parts = [""]
    depth = 0
    quote = ""
    for letter in text:
        if quote:
            if letter == quote:
                quote = ""
            else:
                quote = quote
        elif letter in "'\"" and depth:
            quote = letter
        depth += 0 if quote else (letter in "([{") - (letter in ")]}")
        if letter == mark and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def parts_of(label: str) -> tuple[str, list[str]]:
    """`infinipot:novelty=0.25` or `package.module:Class(alpha=0.3):pot_size=512` -> the policy, and
    what stands behind it."""
    first, *others = split(label, ":")
    if first not in POLICIES and others and OUTSIDE.fullmatch(f"{first}:{others[0]}"):
        return f"{first}:{others[0]}", others[1:]
    return first, others


def changes_of(
    label: str, policy: Policy, changes: list[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options by name from `option=value` each; and those of the preset among them."""
    own: dict[str, Any] = {}
    recipe: dict[str, Any] = {}
    for change in changes:
        name, equals, value = change.partition("=")
        name = name.replace("-", "_")
        if not equals:
            raise ValueError(
                f"{label!r} cannot be read: after the policy stands option=value, as in {policy.name}:novelty=0.25"
            )
        known(
            "option",
            name,
            ["preset", *(name for name in NAMES if name != "policy"), *RENAMED, *policy.options()],
        )
        if name == "preset":
            known("preset", value, RECIPES)
            recipe = RECIPES[value]
        else:
            own[name] = yaml.safe_load(value)
    return renamed(own), recipe


def shared_options(policy: Policy, base: Mapping[str, Any], preset: str | None) -> dict[str, Any]:
    """What a policy takes of the options that are given for all: those that it has and that say
    nothing else already."""
    shared = renamed(base)
    if preset is not None and "novelty" in policy.options():
        shared = {**RECIPES[preset], **shared}
    # goes by the catalyst alone
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
    """One method from `policy[:option=value...]` on top of shared options. What stands in the label
    counts more than `preset=` there, and that more than base; preset, below base, is for those
    policies alone that have its options. Of base, a policy takes the options it has.

    asked: there is a question; then it is the catalyst of a policy that has one, unless said
    otherwise, else the general catalyst is. prompts: catalysts by names that only a study uses.
    """
    named, changes = parts_of(label)
    policy = policy_of(named)
    own, recipe = changes_of(label, policy, changes)
    prompts = prompts or {}
    if own.get("catalyst") in prompts:
        own["catalyst"] = prompts[own["catalyst"]]
    for name in own:
        if not matters(name, policy):
            raise UnknownOption(type(policy), name)
    try:
        config = PotConfig(
            **{**shared_options(policy, base, preset), **recipe, **own, "policy": policy}
        )
    except UnknownOption:
        raise
    except TypeError as problem:  # what a label says is text, so a wrong type is a wrong value
        raise ValueError(f"{label!r}: {problem}") from None
    if "catalyst" in policy.options():
        config = config.replace(catalyst=catalyst_of(config.policy, asked))
    return Method(label, config, tuple(prompts.items()))


def catalyst_of(policy: Policy, asked: bool) -> str | None:
    """The kind of catalyst: the policy's, else the question if there is one. None where none is
    read."""
    if "catalyst" not in policy.needs():
        return None
    catalyst: str = policy.catalyst or ("question" if asked else "general")
    if catalyst == "question" and not asked:
        raise ValueError(
            "catalyst='question' is not possible here: there is no question; use general, or a prompt of your own"
        )
    return catalyst


def methods(
    labels: str,
    base: Mapping[str, Any],
    asked: bool = True,
    preset: str | None = None,
    prompts: Mapping[str, str] | None = None,
) -> list[Method]:
    """Several, separated by commas: `full,truncate,infinipot:novelty=0,infinipot:catalyst=general`."""
    texts = [text.strip() for text in split(labels, ",") if text.strip()]
    listed = [method(text, base, asked, preset, prompts) for text in texts]
    if not listed:
        raise ValueError("no policy is given: name one or several, separated by commas")
    names = [item.label for item in listed]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise ValueError(f"{twice!r} is given twice")
    return listed
