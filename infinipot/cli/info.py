"""What commands tell about saved pots and policies."""

from __future__ import annotations

import dataclasses
import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infinipot.cli.console import put
from infinipot.cli.policy_names import policy_named

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


def policy_options(policy: Policy) -> list[str]:
    """Those of a policy that the plan does not tell: what always matters, and what is not as usual."""
    usual = {field.name: field.default for field in dataclasses.fields(policy)}
    told = {"recent", "pool", "pool_mode", "sinks"}
    always = {
        name: value for name, value in policy.values.items() if name in ("novelty", "catalyst")
    }
    if always.get("catalyst", "") is None:
        shown = {"catalyst": "question, else general"}
    else:
        shown = {}
    shown = {**always, **shown}
    shown |= {
        name: value
        for name, value in policy.values.items()
        if name not in told and name not in shown and value != usual[name]
    }
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
    parts = [f"sinks {plan.layers[0].sinks}"]
    for name in ("recent", "pool", "pool_mode"):
        values = sorted({getattr(layer, name) for layer in plan.layers})
        value: Any = getattr(config, name) if name in config.policy.options() else values[0]
        if value is None and len(values) > 1:
            value = f"{values[0]} to {values[-1]}, by layer"
        parts.append(f"{name} {'decided at the first distillation' if value is None else value}")
    return ", ".join([*parts, *([f"for catalyst {plan.catalyst}"] if plan.catalyst else [])])


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
