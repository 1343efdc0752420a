"""Options that would do nothing are refused where they were given. Which policy makes use of which option is asked of the policies."""

from __future__ import annotations

from collections.abc import Sequence

from infinipot.cli.console import BadUse
from infinipot.cli.options import Given
from infinipot.config import PotConfig
from infinipot.eval.methods import PROBE
from infinipot.policies import POLICIES


def uses(name: str, option: str) -> bool:
    """Whether a policy makes any use of an option of PotConfig, whatever the other options are."""
    policy = POLICIES[name]()
    needs = frozenset[str]().union(*(policy.needs(share) for share in (0.0, PROBE, 1.0)))
    distils = policy.reads == "pot"
    scores = distils and policy.share(PROBE) < 1  # else novelty alone decides
    answers = {
        "policy": True,
        "chunk_tokens": True,
        "pot_dtype": True,
        "pot_size": policy.reads != "all",
        **dict.fromkeys(("novelty", "preset"), policy.share(PROBE) == PROBE),
        **dict.fromkeys(("catalyst", "begun"), "catalyst" in needs),
        **dict.fromkeys(("coverage", "contrast"), "catalyst" in needs and "replay" not in needs),
        "window": "newest" in needs,
        "gqa": bool(needs - {"novelty"}),
        **dict.fromkeys(("pool", "pool_kind", "shared_heads", "persist"), scores),
        **dict.fromkeys(("group", "neighbours"), policy.grouped),
    }
    return answers.get(option, distils)


def check(given: Given, policies: Sequence[str], others: Sequence[str] = ()) -> None:
    """Refuse options that none of the policies uses. others: policies that are not named, but may be chosen later."""
    for option in given.of(PotConfig):
        if not any(uses(name, option) for name in (*policies, *others)):
            raise BadUse(useless(given.origins[option], option, policies))


def check_label(label: str) -> None:
    """The same for what stands behind a policy's colons, as in `streaming:novelty=0.3`."""
    policy, *changes = label.split(":")
    for change in changes:
        option = change.partition("=")[0].replace("-", "_")
        if not uses(policy, option):
            raise BadUse(useless(f"{option} in {label!r}", option, [policy]))


def useless(what: str, option: str, policies: Sequence[str]) -> str:
    users = ", ".join(name for name in POLICIES if uses(name, option))
    return f"{what} does nothing with policy {' or '.join(dict.fromkeys(policies))}: leave it out, or choose a policy that uses it ({users})"
