"""From the text of an option to its value. An error says what was given and what is allowed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer

from infinipot import checks


def whole(text: Any) -> int:
    try:
        if isinstance(text, bool):  # `yes` in a config file
            raise ValueError
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a whole number") from None


def size(text: Any) -> int:
    """`4096`, `4k`, `1m` -> 4096, 4096, 1048576."""
    try:
        return checks.size(str(text))
    except ValueError as problem:
        raise typer.BadParameter(str(problem)) from None


def size_from(least: int) -> Callable[[Any], int]:
    """A parser of sizes that refuses what is below `least`."""

    def at_least(text: Any) -> int:
        value = size(text)
        if value < least:
            raise typer.BadParameter(f"{text} is not allowed: it must be at least {least:,}")
        return value

    return at_least


def number(text: Any, what: str = "a number") -> float:
    try:
        if isinstance(text, bool):  # `yes` in a config file
            raise ValueError
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not {what}") from None


def whole_or_auto(text: Any) -> int | str:
    """PotConfig refuses `auto` later, with a sentence about what became of it."""
    if text == "auto":
        return "auto"
    return size(text)


def number_or_once(text: Any) -> float | str:
    if text == "once":
        return "once"
    return number(text, "a number, or once")


def weights(text: Any) -> Any:
    """A name, or numbers separated by commas. A comma after the last one is allowed."""
    if "," in text:
        return tuple(number(part) for part in text.removesuffix(",").split(","))
    return text


def biases(texts: list[str]) -> dict[int, float]:
    """`42=-5` -> {42: -5.0}"""
    found = {}
    for text in texts:
        token, equals, value = text.partition("=")
        if not equals:
            raise typer.BadParameter(f"{text!r} is not allowed: write ID=X, e.g. 42=-5")
        found[whole(token)] = number(value)
    return found
