"""Mistral: [TOOL_CALLS][{"name": ..., "arguments": ...}, ...], or [TOOL_CALLS]name[ARGS]{...}."""

from __future__ import annotations

from collections.abc import Sequence

from infinipot.text.calls.base import (
    Family,
    Function,
    Part,
    Quote,
    Steps,
    alternatives,
    compact,
)
from infinipot.text.calls.json_calls import JsonCallReader, json_rules

OPEN = "[TOOL_CALLS]"
ARGS = "[ARGS]"
CALL_ID = "[CALL_ID]"


class MistralReader(JsonCallReader):
    openings = (OPEN,)

    def call(self, opening: str) -> Steps[None]:
        while not (self.ended or self.rest.strip()):
            yield None
        if self.rest.lstrip()[:1] not in ("[", "{"):
            yield from self._named(opening)
            return
        if not (yield from self.skip("[")):
            yield from self.object(opening)
            return
        while (yield from self.object(opening)):
            opening = ""
            if not (yield from self.skip(",")):
                yield from self.skip("]")
                return

    def _named(self, opening: str) -> Steps[None]:
        """The name stands before the arguments, not within them."""
        while "{" not in self.rest and not self.ended:
            yield None
        name, brace, _ = self.rest.partition("{")
        if not brace:
            yield Part(content=opening + self.take(len(self.rest)))
            return
        self.take(len(name))
        yield self.begin(name.replace(ARGS, "").partition(CALL_ID)[0].strip())
        self.complete += yield from self.value()


class Mistral(Family):
    name = "mistral"
    signs = (OPEN,)
    bans = (OPEN,)
    tokens = (OPEN, ARGS, CALL_ID)

    def __init__(self, named: bool = False) -> None:
        self.named = named
        """Whether calls are written `name[ARGS]{...}`."""

    def reader(self) -> MistralReader:
        return MistralReader()

    def grammar(self, functions: Sequence[Function], several: bool, quote: Quote) -> str:
        if self.named:
            rules = [f"calls: call{'+' if several else ''}", f"call: {alternatives(functions)}"]
            for number, function in enumerate(functions):
                head = f"{quote(OPEN)} {compact(function.name)} {quote(ARGS)}"
                rules.append(f"call_{number}: {head} args_{number}")
                rules.append(f"args_{number}: %json {compact(function.schema)}")
            return "\n".join(rules) + "\n"
        more = ' (", " object)*' if several else ""
        start = f'calls: {quote(OPEN)} " "? "[" object{more} "]"\n'
        return start + json_rules(functions, "arguments")
