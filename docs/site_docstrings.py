"""For mkdocstrings: our docstrings, `name: meaning. other: meaning.`, as lists of parameters."""

from __future__ import annotations

import re
from typing import Any

import griffe


def listed(text: str, names: list[str]) -> str:
    """The text with a line of its own for each of these names, and for what is raised."""
    known = "|".join(map(re.escape, names))
    start = rf"(?:^|(?<=\.\s)|(?<=;\s))((?:{known})(?:, (?:{known}))*):\s"
    if names:
        text = re.sub(start, r"\n\n- **\1**: ", text, flags=re.MULTILINE)
    return re.sub(r"(?<=\.)\s+(Raises|Returns|Otherwise|Warns)\b", r"\n\n\1", text)


def names_of(function: Any) -> list[str]:
    parameters = getattr(function, "parameters", ())
    return [parameter.name.lstrip("*") for parameter in parameters if parameter.name != "self"]


class Parameters(griffe.Extension):
    """Changes docstrings as they are collected."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        if func.docstring is not None:
            func.docstring.value = listed(func.docstring.value, names_of(func))

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        if cls.docstring is not None:
            names = names_of(cls.members.get("__init__"))
            cls.docstring.value = listed(cls.docstring.value, names)
