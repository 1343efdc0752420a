"""How values from outside are refused: what was given, what is allowed, the nearest name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def known(what: str, value: str, allowed: Iterable[str]) -> None:
    """Refuse a name that is not among those allowed, with the nearest one."""
    names = list(allowed)
    if value in names:
        return
    near = difflib.get_close_matches(value, names, n=1)
    if near:
        hint = f"did you mean {near[0]!r}? "
    else:
        hint = ""
    raise ValueError(f"unknown {what} {value!r}; {hint}(known: {', '.join(names)})")


def within(what: str, value: float, low: float, high: float | None = None) -> None:
    if not (value >= low and (high is None or value <= high)):
        if high is None:
            allowed = f"at least {low}"
        else:
            allowed = f"between {low} and {high}"
        raise ValueError(f"{what}={value} is not allowed: it must be {allowed}")
