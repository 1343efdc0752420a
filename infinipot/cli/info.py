"""infinipot info"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infinipot.cli.app import Json, app
from infinipot.cli.command_options import CommandOptions, takes
from infinipot.cli.console import put
from infinipot.cli.options import ALWAYS
from infinipot.cli.policy_names import parse_policy
from infinipot.text.json_text import json_text

if TYPE_CHECKING:
    from infinipot.config import PotConfig
    from infinipot.engine.plan import Plan
    from infinipot.policies import Policy

SavedPot = Annotated[Path, typer.Argument(metavar="POT", help="A saved pot.", show_default=False)]
OutsidePolicy = Annotated[
    str | None,
    typer.Option(
        "--policy",
        metavar="PLACE",
        help="The policy of another package that filled it: package.module:Class.",
    ),
]
PLANNED = ("sinks", "recent", "pool", "pool_mode")
"""Options of a policy that the plan shows, layer by layer."""


@app.command("info")
@takes(ALWAYS)
def info(
    pot: SavedPot, options: CommandOptions, policy: OutsidePolicy = None, json: Json = False
) -> int:
    """Show what a saved pot says about itself."""
    from infinipot.pot_file import describe, in_force

    header = {**describe(pot), "file_bytes": pot.stat().st_size}
    if json:
        put(json_text(header) + "\n")
        return 0
    policy_class = None
    if policy is not None:
        policy_class = type(parse_policy(policy))
    config, plan = in_force(pot, header, policy_class)
    for name, text in rows(pot, header, config, plan):
        put(f"{name:9} {text}\n")
    return 0


def rows(
    path: Path, header: dict[str, Any], config: PotConfig, plan: Plan
) -> Iterator[tuple[str, str]]:
    """Names and texts. A file may hold characters that would control a terminal: they are shown as
    Python writes them."""
    for name, text in facts(path, header, config, plan):
        shown = (letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)
        yield name, "".join(shown)


def facts(
    path: Path, header: dict[str, Any], config: PotConfig, plan: Plan
) -> Iterator[tuple[str, str]]:
    pot = header["pot"]
    model = header["model"]
    yield "file", f"{path}, {header['file_bytes'] / 1e6:,.1f} MB, format {header['version']}"
    yield "model", f"{model['name'] or '(no name)'}, {model['class']}"
    yield "policy", policy_text(config.policy, plan.policy)
    sizes = f"size {config.pot_size:,}, distil to {config.mean_budget}"
    yield "pot", ", ".join([sizes, *pot_options(config)])
    yield "plan", plan_text(config, plan)
    yield "entries", f"{header['entries']:,} ({pot['pinned']:,} pinned)"
    yield "read", f"{pot['tokens_read']:,} tokens, {pot['distillations']:,} distillations"
    template = "chat" if header["templated"] else "none"
    if header["system"]:
        template += f", system prompt {header['system']!r}"
    yield "template", template


def policy_text(policy: Policy, in_force: Policy) -> str:
    """The policy and its options, or the policy to which it has left the choice."""
    if type(in_force) is not type(policy):
        return f"{policy.name}; without a question: {policy_text(in_force, in_force)}"
    return ", ".join([policy.name, *policy_options(policy)])


def policy_options(policy: Policy) -> list[str]:
    """The options of a policy that the plan does not show: novelty and catalyst always, others
    where they differ from the default."""
    defaults = {field.name: field.default for field in dataclasses.fields(policy)}
    texts = []
    for name, value in policy.values.items():
        if name == "catalyst" and value is None:
            texts.append("catalyst question, without one outliers")
        elif name in PLANNED:
            continue
        elif name in ("novelty", "catalyst") or value != defaults[name]:
            texts.append(setting(name, value))
    return texts


def setting(name: str, value: Any) -> str:
    if isinstance(value, float):
        return f"{name} {value:g}"
    return f"{name} {value}"


def pot_options(config: PotConfig) -> list[str]:
    """The pot's own options that differ from the default, except those shown elsewhere."""
    return [
        f"{field.name} {getattr(config, field.name)}"
        for field in dataclasses.fields(config)
        if field.name not in ("pot_size", "distill_to", "policy", "chunk_tokens")
        and getattr(config, field.name) != field.default
    ]


def plan_text(config: PotConfig, plan: Plan) -> str:
    """The values in force, those still open, and the range of values that differ by layer."""
    if not config.policy.bounded:
        return "nothing is distilled"
    parts = []
    for name in PLANNED:
        if name not in plan.policy.options():
            continue
        values = sorted({getattr(layer, name) for layer in plan.layers})
        if len(values) > 1:
            parts.append(f"{name} {values[0]} to {values[-1]}, by layer")
        elif getattr(config, name) is None:
            parts.append(f"{name} not decided before the first distillation")
        else:
            parts.append(f"{name} {values[0]}")
    return ", ".join(parts) or "no options"
