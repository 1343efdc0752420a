"""Calls that are JSON objects with a name and arguments, read while they arrive."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from infinipot.text.calls.base import CallReader, Function, Part, Steps, alternatives, compact

STRING = r'"(?:[^"\\]|\\.)*"'
HEAD = re.compile(
    rf'\s*\{{\s*(?:"(?:type|id)"\s*:\s*{STRING}\s*,\s*)*"name"\s*:\s*({STRING})\s*,\s*'
    r'"(?:arguments|parameters)"\s*:\s*(?=\S)'
)
"""The beginning of a call whose name comes before its arguments."""
ARGUMENTS = ("arguments", "parameters")


class ValueEnd:
    """Finds the end of a JSON value in a stream."""

    def __init__(self, depth: int = 0) -> None:
        """depth: of the objects that have begun already."""
        self.depth = depth
        self._began = depth > 0
        self._text = False
        self._escaped = False

    def find(self, text: str) -> int | None:
        """How many characters of the text belong to the value; None: all, and more follows."""
        place = 0
        while place < len(text):
            letter = text[place]
            if self._text:
                place += 1
                if self._step_in_text(letter):
                    return place
                continue
            if letter in '"{[' and self._began and self.depth == 0:
                return place
            if letter in ",]}" or letter.isspace():
                if self.depth == 0 and self._began:
                    return place
                self.depth -= letter in "]}"
                place += 1
                if letter in "]}" and self.depth <= 0:
                    return place
                continue
            self._began = True
            self.depth += letter in "{["
            self._text = letter == '"'
            place += 1
        return None

    def _step_in_text(self, letter: str) -> bool:
        """Whether the value ends with this letter of a text."""
        if self._escaped:
            self._escaped = False
        elif letter == "\\":
            self._escaped = True
        elif letter == '"':
            self._text = False
            return self.depth == 0
        return False


class JsonCallReader(CallReader):
    """Reads `{"name": ..., "arguments": ...}`; the arguments leave as they arrive."""

    def object(self, opening: str) -> Steps[bool]:
        """Read one call. Returns whether it was one; otherwise it was text, with its opening."""
        scan = ValueEnd()
        place = 0
        while (head := HEAD.match(self.rest)) is None:
            end = scan.find(self.rest[place:])
            if end is not None or self.ended:
                size = len(self.rest) if end is None else place + end
                return (yield from self._whole(opening, self.take(size)))
            place = len(self.rest)
            yield None
        self.take(head.end())
        yield self.begin(json.loads(head[1], strict=False))
        yield from self.value()
        scan = ValueEnd(depth=1)
        while (end := scan.find(self.rest)) is None:
            self.rest = ""
            if self.ended:
                return True
            yield None
        self.take(end)
        self.complete += 1
        return True

    def value(self) -> Steps[bool]:
        """Read a JSON value as arguments. Returns whether it is whole."""
        quoted = self.rest.lstrip().startswith('"')
        scan = ValueEnd()
        kept = ""
        while True:
            end = scan.find(self.rest)
            piece = self.take(len(self.rest) if end is None else end)
            if quoted:
                kept += piece
            else:
                yield self.argument(piece)
            if end is not None or self.ended:
                break
            yield None
        if quoted:
            yield self.argument(unquoted(kept))
        return end is not None

    def _whole(self, opening: str, text: str) -> Steps[bool]:
        """A whole object whose parts come in another order."""
        try:
            call = json.loads(text, strict=False)
        except ValueError:
            call = None
        if not isinstance(call, dict) or not isinstance(call.get("name"), str):
            yield Part(content=opening + text)
            return False
        arguments: Any = next((call[name] for name in ARGUMENTS if name in call), {})
        yield self.begin(call["name"])
        yield self.argument(arguments if isinstance(arguments, str) else compact(arguments))
        self.complete += 1
        return True


def unquoted(text: str) -> str:
    """The text that a JSON text stands for; the text itself, if it is cut."""
    try:
        return str(json.loads(text, strict=False))
    except ValueError:
        return text


def json_rules(functions: Sequence[Function], arguments: str) -> str:
    """Lark rules whose rule `object` is `{"name": ..., arguments: ...}` of one of the functions."""
    rules = [f"object: {alternatives(functions)}"]
    for number, function in enumerate(functions):
        head = f'{{"name": {compact(function.name)}, "{arguments}": '
        rules.append(f"call_{number}: {compact(head)} args_{number} {compact('}')}")
        rules.append(f"args_{number}: %json {compact(function.schema)}")
    return "\n".join(rules) + "\n"
