"""Checks of values from outside. An error names the value and the allowed ones."""

from __future__ import annotations

import difflib
import math
import os
import warnings
from collections.abc import Iterable
from typing import Any

MOST_TOKENS = 1 << 31
"""The largest number of tokens in an option."""
LARGEST = (1 << 63) - 1
"""The largest number that torch holds."""
RENAMED = {"begun": "answer_prefix", "persist": "score_memory", "pool_kind": "pool_mode"}
"""Old names of options and the new ones, for one release."""


EMBEDDED = "smollm2"
"""The name of the embedded model."""


SIZES = (
    "pot_size",
    "distill_to",
    "sinks",
    "recent",
    "window",
    "group",
    "neighbours",
    "chunk_tokens",
    "max_tokens",
    "min_tokens",
    "limit",
)
"""Options in tokens or entries, which may end in k or m."""
UNITS = {"k": 1 << 10, "m": 1 << 20}


class ModelWarning(UserWarning):
    """Something about a model that its user should know. The command line shows it, too."""


def old_name(old: str, new: str) -> property:
    """A property with a member's old name, for one release. It warns, and gives the member `new`."""

    def member(owner: object) -> Any:
        warnings.warn(
            f"{old} is called {new} now; the old name goes with the next release",
            DeprecationWarning,
            stacklevel=2,
        )
        return getattr(owner, new)

    return property(member)


def known(what: str, value: str, allowed: Iterable[str]) -> None:
    """Raise ValueError for a name that is not allowed, and suggest the nearest allowed name."""
    names = list(allowed)
    if value in names:
        return
    near = difflib.get_close_matches(str(value), names, n=1)
    hint = ""
    if near:
        hint = f"; did you mean {near[0]!r}?"
    raise ValueError(f"unknown {what} {value!r}{hint} (known: {', '.join(names)})")


def size(text: str) -> int:
    """`4096`, `4k`, `1m` -> 4096, 4096, 1048576. Raises ValueError for anything else."""
    number = text.strip().lower()
    unit = UNITS.get(number[-1:], 1)
    try:
        if unit == 1:
            return int(number)
        value = float(number[:-1]) * unit
        if value == int(value):
            return int(value)
    except (ValueError, OverflowError):
        pass
    raise ValueError(f"{text!r} is not a whole number: write 4096, 4k or 1m")


def check_model_name(model: str) -> None:
    """Raise ValueError for a name that no model can have, and for one that is almost the embedded
    one's: the Hub need not be asked."""
    if os.path.exists(model):
        return
    if not model.strip() or any(letter.isspace() for letter in model):
        raise ValueError(
            f"{model!r} names no model: give a Hub id, a folder, a .gguf file or {EMBEDDED!r}"
        )
    near = difflib.get_close_matches(model.lower(), [EMBEDDED], cutoff=0.8)
    if near and model != EMBEDDED and "/" not in model:
        raise ValueError(f"there is no model {model!r}: did you mean {EMBEDDED!r}?")


def within(what: str, value: float, low: float, high: float | None = None) -> None:
    """Raise ValueError for a number below `low` or above `high`, and for NaN."""
    if not (value >= low and (high is None or value <= high)):
        if high is None:
            allowed = f"at least {low}"
        else:
            allowed = f"between {low} and {high}"
        raise ValueError(f"{what}={value} is not allowed: it must be {allowed}")


def whole_number(
    what: str, value: object, low: int, high: int | None = None, unit: str = " of tokens"
) -> None:
    """Raise for anything but a whole number from `low` to `high`, MOST_TOKENS by default."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{what}={value!r} is not allowed: it must be a whole number{unit}")
    most = high or MOST_TOKENS
    if value > most:
        within(what, value, low, most)
    within(what, value, low)


def finite_number(what: str, value: object, low: float, high: float | None = None) -> None:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise TypeError(f"{what}={value!r} is not allowed: it must be a number")
    if not math.isfinite(value):
        raise ValueError(f"{what}={value} is not allowed: it must be a finite number")
    within(what, value, low, high)
