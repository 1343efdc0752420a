"""infinipot policies"""

from __future__ import annotations

from typing import Annotated

import typer

from infinipot.cli.app import app
from infinipot.cli.command_options import CommandOptions, takes
from infinipot.cli.console import put
from infinipot.cli.options import ALWAYS
from infinipot.cli.policy_names import parse_policy

Name = Annotated[
    str | None,
    typer.Argument(metavar="NAME", help="Show this policy's options.", show_default=False),
]


@app.command("policies")
@takes(ALWAYS)
def policies(options: CommandOptions, name: Name = None) -> int:
    """List the policies: how surviving entries are chosen. With a name, or package.module:Class,
    its options."""
    if name is None:
        show_all()
    else:
        show(name)
    return 0


def show_all() -> None:
    from infinipot.policies import POLICIES

    width = max(map(len, POLICIES))
    for name, policy in POLICIES.items():
        put(f"{name:{width}}  {policy.summary}\n")


def show(name: str) -> None:
    """One policy: its summary, its paper, its options with their defaults."""
    from infinipot.policies.registry import documentation

    policy = parse_policy(name)
    put(f"{policy.name}: {policy.summary}\n")
    if policy.paper:
        put(f"paper: {policy.paper}\n")
    texts = documentation(type(policy))
    for option, value in policy.values.items():
        put(f"  {option} = {value!r}\n")
        if texts[option]:
            put(f"      {texts[option]}\n")
    if not texts:
        put("It has no options of its own.\n")
