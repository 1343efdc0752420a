"""What commands tell about saved pots and policies."""

from __future__ import annotations

import dataclasses
import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING

from infinipot.cli.console import put
from infinipot.cli.policies import policy_named

if TYPE_CHECKING:
    from infinipot.config import PotConfig
    from infinipot.engine.plan import Plan
    from infinipot.policies import Policy


def pot(path: Path, policy: str | None, json: bool) -> None:
    """What a saved pot says about itself, and what its distillations go by."""
    from infinipot.pot_file import describe, in_force

    about = {**describe(path), "file_bytes": path.stat().st_size}
    if json:
        put(json_module.dumps(about, ensure_ascii=False) + "\n")
        return
    config, plan = in_force(path, about, None if policy is None else type(policy_named(policy)))
    numbers = about["pot"]
    rows = {
        "file": f"{path}, {about['file_bytes'] / 1e6:,.1f} MB, format {about['version']}",
        "model": f"{about['model']['name'] or '(no name)'}, {about['model']['class']}",
        "policy": ", ".join([config.policy.name, *policy_options(config.policy)]),
        "pot": ", ".join(
            [f"size {config.pot_size:,}, distil to {config.survivors}", *pot_options(config)]
        ),
        "plan": planned(config, plan),
        "entries": f"{about['entries']:,} ({numbers['pinned']:,} pinned)",
        "read": f"{numbers['tokens_read']:,} tokens, {numbers['distillations']:,} distillations",
        "template": ("chat" if about["templated"] else "none")
        + (f", system prompt {about['system']!r}" if about["system"] else ""),
    }
    for name, text in rows.items():
        put(f"{name:9} {text}\n")


PLANNED = ("sinks", "recent", "pool", "pool_mode")
"""Options that the plan tells, layer by layer."""


def policy_options(policy: Policy) -> list[str]:
    """A policy's options, as far as the plan does not tell them: novelty and catalyst, and those
    that are not the defaults."""
    defaults = {field.name: field.default for field in dataclasses.fields(policy)}
    values = {name: value for name, value in policy.values.items() if name not in PLANNED}
    shown = {
        name: value
        for name, value in values.items()
        if name in ("novelty", "catalyst") or value != defaults[name]
    }
    if "catalyst" in shown and shown["catalyst"] is None:
        shown["catalyst"] = "question, else general"
    return [
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in shown.items()
    ]


def pot_options(config: PotConfig) -> list[str]:
    names = [
        field
        for field in dataclasses.fields(config)
        if field.name not in ("pot_size", "distill_to", "policy", "chunk_tokens")
    ]
    return [
        f"{field.name} {getattr(config, field.name)}"
        for field in names
        if getattr(config, field.name) != field.default
    ]


def planned(config: PotConfig, plan: Plan) -> str:
    """What is in force; what is not decided yet; the range of what each layer has for itself."""
    if not config.policy.bounded:
        return "nothing is distilled"
    parts = []
    for name in (name for name in PLANNED if name in config.policy.options()):
        values = sorted({getattr(layer, name) for layer in plan.layers})
        if len(values) > 1:
            parts.append(f"{name} {values[0]} to {values[-1]}, by layer")
        elif getattr(config, name) is None:
            parts.append(f"{name} not decided before the first distillation")
        else:
            parts.append(f"{name} {values[0]}")
    return ", ".join(parts) or "no options"


def policies() -> None:
    from infinipot.policies import POLICIES

    width = max(map(len, POLICIES))
    for name, policy in POLICIES.items():
        put(f"{name:{width}}  {policy.summary}\n")


def policy(text: str) -> None:
    """One policy: what it is, its paper, its options with their defaults."""
    from infinipot.policies.registry import documentation

    found = policy_named(text)
    put(f"{found.name}: {found.summary}\n" + (f"paper: {found.paper}\n" if found.paper else ""))
    texts = documentation(type(found))
    for name, value in found.values.items():
        put(
            f"  {name} = {value!r}\n      {texts[name]}\n"
            if texts[name]
            else f"  {name} = {value!r}\n"
        )
    if not texts:
        put("It has no options of its own.\n")
