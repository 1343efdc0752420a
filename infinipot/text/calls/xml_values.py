"""Values between XML marks: text as it is, anything else as JSON. The schema says which."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from infinipot.text.calls.base import compact

TYPES = {
    bool: {"boolean"},
    int: {"integer", "number"},
    float: {"number"},
    str: {"string"},
    list: {"array"},
    dict: {"object"},
    type(None): {"null"},
}
"""Names in a schema by the type of a value."""
IN_PYTHON = {"True": "true", "False": "false", "None": "null"}
"""Templates may show a model these words as Python writes them."""
LIMITS = ("pattern", "format", "minLength", "maxLength")


def resolved(schema: Any, root: dict[str, Any]) -> dict[str, Any]:
    """A part of a schema, with a reference into its root followed. {} if it says nothing."""
    for _ in range(8):
        if not (isinstance(schema, dict) and isinstance(schema.get("$ref"), str)):
            break
        found: Any = root
        for name in schema["$ref"].removeprefix("#").strip("/").split("/"):
            found = found.get(name) if isinstance(found, dict) else None
        schema = found
    return schema if isinstance(schema, dict) else {}


def kinds_of(schema: Any, root: dict[str, Any]) -> set[str]:
    """The types that a schema allows; empty if it allows any."""
    schema = resolved(schema, root)
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if values:
        return set().union(*(TYPES[type(value)] for value in values))
    kinds = schema.get("type")
    if isinstance(kinds, str):
        return {kinds}
    if isinstance(kinds, list):
        return set(kinds)
    choices = [kinds_of(one, root) for one in schema.get("anyOf") or schema.get("oneOf") or ()]
    if not all(choices):
        return set()
    return set().union(*choices)


def value_of(text: str, root: dict[str, Any], key: str) -> Any:
    """The value that a text stands for, under the schema of the arguments. A text that is no value of
    its schema stays a text."""
    kinds = kinds_of((root.get("properties") or {}).get(key), root)
    if kinds == {"string"}:
        return text
    try:
        value = json.loads(IN_PYTHON.get(text.strip(), text))
    except ValueError:
        return text
    if "string" in kinds and not TYPES[type(value)] & kinds:
        return text
    return value


def xml_rules(name: str, schema: dict[str, Any]) -> str:
    """Lark rules, of which `name` is the parameters of this schema, in order. Those that are not
    required may be left out. Raises ValueError for what would not be kept to."""
    return "".join(f"{rule}\n" for rule in _rules(name, schema))


def _rules(name: str, schema: dict[str, Any]) -> Iterator[str]:
    text = f"{name}_text"
    yield f'{text}[suffix="\\n</parameter>\\n"]: /(.|\\n)*/'
    properties = schema.get("properties") or {}
    if not properties and schema.get("additionalProperties") is not False:
        yield f'{name}: ("<parameter=" /[A-Za-z_][A-Za-z0-9_]*/ ">\\n" {text})*'
        return
    required = set(schema.get("required") or ())
    members = []
    for number, (key, part) in enumerate(properties.items()):
        member = f"{name}_{number}"
        members.append(member if key in required else f"{member}?")
        yield f"{member}: {compact(f'<parameter={key}>' + chr(10))} {member}_value"
        yield from _value(f"{member}_value", part, schema, text)
    yield f"{name}: {' '.join(members) or compact('')}"


def _value(name: str, schema: Any, root: dict[str, Any], text: str) -> Iterator[str]:
    """A value with the mark behind it."""
    part = resolved(schema, root)
    end = compact("\n</parameter>\n")
    kinds = kinds_of(part, root)
    values = part.get("enum", [part["const"]] if "const" in part else None)
    if values:
        texts = [one if isinstance(one, str) else compact(one) for one in values]
        yield f"{name}: ({' | '.join(compact(one) for one in texts)}) {end}"
    elif not kinds or "string" in kinds:
        limits = [limit for limit in LIMITS if limit in part]
        if limits:
            raise ValueError(f"{limits[0]} of a text is not possible with this model's calls")
        yield f"{name}: {text}"
    else:
        definitions = {key: root[key] for key in ("$defs", "definitions") if key in root}
        yield f"{name}: {name}_json {end}"
        yield f"{name}_json: %json {compact({**definitions, **part})}"
