"""JSON schemas as grammars of Gemma's values, which are no JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from infinipot.text.calls.base import compact

LETTER = '[^<{}"]'
"""What may stand in a text: no letter of the tokens around it."""
KINDS = {
    "integer": "/-?(0|[1-9][0-9]*)/",
    "number": r"/-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?/",
    "boolean": '("true" | "false")',
    "null": '"null"',
}


def argument_rules(name: str, schema: dict[str, Any], quote: str) -> list[str]:
    """Lark rules, of which `name` is a value of this schema. quote: the token around texts, as the
    grammar spells it."""
    return list(Schema(name, quote).rules(name, schema))


class Schema:
    """Writes the rules of one schema."""

    def __init__(self, name: str, quote: str) -> None:
        self.text = f"({quote} /{LETTER}*/ {quote})"
        self.any = f"{name}_any"
        self.quote = quote

    def rules(self, name: str, schema: dict[str, Any]) -> Iterator[str]:
        yield from self.rule(name, schema)
        scalar = " | ".join((self.text, *KINDS.values()))
        key = "/[A-Za-z_][A-Za-z0-9_]*/"
        yield f"{self.any}: {scalar} | {self.any}_object | {self.any}_list"
        pair = f'{key} ":" {self.any}'
        yield f'{self.any}_object: "{{" ({pair} ("," {pair})*)? "}}"'
        yield f'{self.any}_list: "[" ({self.any} ("," {self.any})*)? "]"'

    def rule(self, name: str, schema: Any) -> Iterator[str]:
        """The rules of a part of the schema."""
        if not isinstance(schema, dict):
            schema = {}
        choices = schema.get("anyOf") or schema.get("oneOf")
        if isinstance(schema.get("type"), list):
            choices = [{**schema, "type": one} for one in schema["type"]]
        values = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if values:
            yield f"{name}: {' | '.join(map(self.constant, values))}"
        elif choices:
            yield f"{name}: {' | '.join(f'{name}_{number}' for number in range(len(choices)))}"
            for number, one in enumerate(choices):
                yield from self.rule(f"{name}_{number}", one)
        elif schema.get("type") == "object" and closed(schema):
            yield from self.members(name, schema)
        elif schema.get("type") == "array":
            yield f'{name}: "[" ({name}_item ("," {name}_item)*)? "]"'
            yield from self.rule(f"{name}_item", schema.get("items"))
        else:
            yield f"{name}: {self.scalar(schema)}"

    def scalar(self, schema: dict[str, Any]) -> str:
        kind = schema.get("type")
        if kind == "string":
            return self.string(schema)
        if kind == "object":
            return f"{self.any}_object"
        if kind in KINDS:  # these are written as in JSON
            return f"%json {compact(schema)}"
        return self.any

    def string(self, schema: dict[str, Any]) -> str:
        """Raises ValueError for what would not be kept to."""
        for name in ("pattern", "format"):
            if name in schema:
                raise ValueError(f"{name} of a text is not possible with this model's calls")
        least = schema.get("minLength", 0)
        most = schema.get("maxLength", "")
        return f"({self.quote} /{LETTER}{{{least},{most}}}/ {self.quote})"

    def constant(self, value: Any) -> str:
        if isinstance(value, str):
            return f"({self.quote} {compact(value)} {self.quote})"
        return compact(compact(value))

    def members(self, name: str, schema: dict[str, Any]) -> Iterator[str]:
        """The members of an object, in order; those that are not required may be left out."""
        required = set(schema.get("required") or ())
        yield f'{name}: "{{" {name}_first_0 "}}"'
        properties = list((schema.get("properties") or {}).items())
        for number, (key, value) in enumerate(properties):
            member = f"{name}_member_{number}"
            follow = f"{name}_more_{number + 1}"
            yield f"{member}: {compact(key + ':')} {name}_value_{number}"
            yield from self.rule(f"{name}_value_{number}", value)
            if key in required:
                yield f"{name}_first_{number}: {member} {follow}"
                yield f'{name}_more_{number}: "," {member} {follow}'
            else:
                yield f"{name}_first_{number}: {member} {follow} | {name}_first_{number + 1}"
                yield f'{name}_more_{number}: ("," {member})? {follow}'
        yield f'{name}_first_{len(properties)}: ""'
        yield f'{name}_more_{len(properties)}: ""'


def closed(schema: dict[str, Any]) -> bool:
    """Whether the schema says which members an object has."""
    return bool(schema.get("properties")) or schema.get("additionalProperties") is False
