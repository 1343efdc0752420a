"""The options and the plan that a pot file stores."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Any

from infinipot.checks import RENAMED, known
from infinipot.config import PotConfig
from infinipot.engine.plan import Plan
from infinipot.policies import POLICIES, Policy
from infinipot.policies.registry import builtin, path_of
from infinipot.pot_file.header import PotFileError, brief

FIELDS = tuple(field.name for field in dataclasses.fields(PotConfig) if field.name != "policy")


def saved_options(config: PotConfig) -> dict[str, Any]:
    """All options as JSON values. For a policy of another package also the path of its class."""
    policy = type(config.policy)
    options = config.options
    if not builtin(policy):
        options = {**options, "policy_class": path_of(policy)}
    try:
        saved: dict[str, Any] = json.loads(json.dumps(options))
    except (TypeError, ValueError) as problem:
        raise PotFileError(
            f"cannot save the options of policy {config.policy.name!r}: "
            f"a file can keep names and numbers only ({problem})"
        ) from None
    return saved


def config_of(
    path: str | os.PathLike[str],
    header: dict[str, Any],
    policy: Policy | type[Policy] | None = None,
) -> PotConfig:
    """The options with which a pot was filled. Options of formats 1 and 2 get their new names, and
    the defaults of those formats.

    policy: for a pot of a policy from another package, that policy or its class. Raises
    PotFileError for options that no longer exist.
    """
    options = dict(header["config"])
    try:
        own = policy_class(path, options, policy)
        if header["version"] < 3:
            options = old_options(options, header["version"], own)
        values = {name: frozen(value) for name, value in options.items()}
        filled_by = own(**{name: values[name] for name in own.options() if name in values})
        if header["version"] < 4 and header.get("catalyst") == "general":
            filled_by = by_catalyst(filled_by)
        fields = {name: values[name] for name in FIELDS if name in values}
        config = PotConfig(**fields, policy=filled_by)
    except PotFileError:
        raise
    except Exception as problem:  # of any policy's checks
        raise PotFileError(
            f"{path} was filled with options that this infinipot does not have: {brief(problem)}"
        ) from problem
    if isinstance(policy, Policy) and policy != filled_by:
        raise PotFileError(
            f"{path} was filled with {filled_by}, not with {policy}: give it as it was"
        )
    return config


def by_catalyst(policy: Policy) -> Policy:
    """The policy of a pot of formats 1 to 3 without a question: the general catalyst chose, and goes
    on."""
    if policy.for_catalyst("general") is policy:
        return policy
    return dataclasses.replace(policy, catalyst="general")  # type: ignore[call-arg]


def policy_class(
    path: str | os.PathLike[str], options: dict[str, Any], policy: Policy | type[Policy] | None
) -> type[Policy]:
    """The class of the policy that a file names: a built-in class, or the argument `policy`."""
    place = options.pop("policy_class", None)
    name = options["policy"]
    if not isinstance(name, str) or not (place is None or isinstance(place, str)):
        raise TypeError("the policy has no name")
    if place is None:
        known("policy", name, POLICIES)
        return POLICIES[name]
    if isinstance(policy, Policy):
        policy = type(policy)
    if policy is None or path_of(policy) != place:
        raise PotFileError(
            f"{path} was filled with policy {brief(repr(name))}, {brief(place)}, "
            "which is not infinipot's own, and a file never imports code: pass that policy "
            f"(Session.load(..., policy={brief(place.rpartition(':')[2])}), "
            f"or --policy {brief(place)})"
        )
    return policy


def frozen(value: Any) -> Any:
    """A JSON value with tuples for lists."""
    if isinstance(value, list):
        return tuple(map(frozen, value))
    return value


def old_options(options: dict[str, Any], version: int, policy: type[Policy]) -> dict[str, Any]:
    """Options of formats 1 and 2, reduced to those that the policy has now. These formats stored the
    options of every policy, and None for a policy's default."""
    if options["distill_to"] == "auto" or options["layer_budget"] == "pyramid":
        # raises a ValueError that names the removed option
        PotConfig(distill_to=options["distill_to"], layer_budget=options["layer_budget"])
    options = {
        RENAMED.get(name, name): value for name, value in options.items() if value is not None
    }
    if version == 1:
        options.setdefault("distill_to", options["pot_size"] // 2)
        if policy.name == "infinipot":
            options = {"pool": 7, "pool_mode": "avg", "recent": 0, **options}
    return {
        name: value for name, value in options.items() if name in FIELDS or name in policy.options()
    }


def in_force(
    path: str | os.PathLike[str],
    header: dict[str, Any],
    policy: Policy | type[Policy] | None = None,
) -> tuple[PotConfig, Plan]:
    """The options in force, as far as they are decided, and the plan. Before format 3 the plan has
    one layer. Raises PotFileError."""
    config = config_of(path, header, policy)
    try:
        if header.get("plan"):
            layers = header["plan"]["layers"]
        elif isinstance(config.layer_budget, tuple):
            layers = config.layer_budget
        else:
            layers = [None]
        plan = Plan.of(config, len(layers), header.get("catalyst"))
        if header.get("plan"):
            plan = plan.restored(header["plan"])
        decided = bool(header["pot"]["distillations"]) or not plan.undecided
        return plan.shown_in(config, decided), plan
    except Exception as problem:  # of any policy's checks
        raise PotFileError(
            f"{path} is damaged: its plan cannot be read ({brief(problem)})"
        ) from None
