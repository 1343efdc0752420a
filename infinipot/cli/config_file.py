"""Options from a YAML file, `pot_size: 1024`."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from infinipot.checks import known
from infinipot.cli.console import BadUse


def read(path: Path, names: Collection[str]) -> dict[str, Any]:
    """The values of a config file as text, as flags would give them. Refuses other names."""
    values: dict[str, Any] = {}
    for key, value in content(path).items():
        name = str(key).replace("-", "_")
        try:
            known("option", name, names)
        except ValueError as problem:
            raise BadUse(f"{path}: {problem}") from None
        if not allowed(name, value):
            raise BadUse(f"{path}: {name} must be one value, not {value!r}")
        if value is not None:
            values[name] = as_flag(name, value)
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


def allowed(name: str, value: Any) -> bool:
    """Only `stop` may be a list, and `layer_budget` a list that is not empty."""
    if isinstance(value, list):
        return name == "stop" or (name == "layer_budget" and bool(value))
    return not isinstance(value, dict)


def as_flag(name: str, value: Any) -> Any:
    """What a flag would give: text. `yes` and `no` stay as YAML reads them."""
    if name == "stop" and not isinstance(value, list):
        return [text(value)]
    if name == "stop":
        return [text(item) for item in value]
    if isinstance(value, list):
        return "".join(f"{item}," for item in value)
    return text(value)


def text(value: Any) -> Any:
    if isinstance(value, bool):
        return value
    return str(value)
