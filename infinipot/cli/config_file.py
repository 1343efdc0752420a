"""Options from a YAML file, `pot_size: 1024`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from infinipot.checks import known
from infinipot.cli.console import BadUse

LISTS = ("LIST", "N,N")
"""Metavars of options that take several values with commas."""


def read(path: Path, options: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a config file as text, as flags would give them. Refuses other names.

    options: the options of all commands by name.
    """
    values: dict[str, Any] = {}
    for key, value in content(path).items():
        name = str(key).replace("-", "_")
        try:
            known("option", name, options)
        except ValueError as problem:
            sentence = str(problem).partition(" (known")[0]
            raise BadUse(
                f"{path}: {sentence} (infinipot COMMAND --help-all lists the options)"
            ) from None
        if name in values:
            raise BadUse(f"{path}: {name} stands there twice, with - and with _: leave one")
        option = options[name]
        if not allowed(option, value):
            raise BadUse(f"{path}: {name} must be one value, not {value!r}")
        if value is not None:
            values[name] = as_flag(option, value)
    return values


def content(path: Path) -> dict[Any, Any]:
    import yaml

    class Loader(yaml.SafeLoader):
        """Refuses a key that stands in a mapping twice, of which YAML would take the last."""

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            keys = [key.value for key, _ in node.value]
            twice = next((key for key in keys if keys.count(key) > 1), None)
            if twice is not None:
                raise yaml.YAMLError(f"{twice} stands there twice: leave one")
            return super().construct_mapping(node, deep)

    try:
        loaded = yaml.load(path.read_text("utf-8"), Loader) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as problem:
        raise BadUse(f"cannot use the config file {path}: {problem}") from problem
    if not isinstance(loaded, dict):
        raise BadUse(f"the config file {path} must consist of lines like `pot_size: 1024`")
    return loaded


def allowed(option: Any, value: Any) -> bool:
    """Only options that take several values may have a list, which is not empty."""
    if isinstance(value, list):
        several = option.multiple or joined(option)
        return several and bool(value) and not any(isinstance(item, (list, dict)) for item in value)
    return not isinstance(value, dict)


def joined(option: Any) -> bool:
    """Whether several values stand in one, with commas."""
    return option.metavar in LISTS or option.name in ("layer_budget", "policy")


def as_flag(option: Any, value: Any) -> Any:
    """What a flag would give: text. `yes` and `no` stay as YAML reads them."""
    if option.multiple and not isinstance(value, list):
        value = [value]
    if option.multiple:
        return [text(item) for item in value]
    if isinstance(value, list) and option.name == "layer_budget":
        return "".join(f"{item}," for item in value)  # a list of one is no name
    if isinstance(value, list):
        return ",".join(map(str, value))
    return text(value)


def text(value: Any) -> Any:
    if isinstance(value, bool):
        return value
    return str(value)
