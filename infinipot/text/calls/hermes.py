"""Hermes, Qwen and others: <tool_call>{"name": ..., "arguments": ...}</tool_call>."""

from __future__ import annotations

from collections.abc import Sequence

from infinipot.text.calls.base import Family, Function, Quote, Steps
from infinipot.text.calls.json_calls import JsonCallReader, json_rules

OPEN = "<tool_call>"
CLOSE = "</tool_call>"


class HermesReader(JsonCallReader):
    openings = (OPEN,)

    def call(self, opening: str) -> Steps[None]:
        if not (yield from self.object(opening)):
            return
        if (yield from self.skip(CLOSE)):
            yield from self.blank()
        elif self.ended and CLOSE.startswith(self.rest.strip()):
            self.rest = ""  # the answer was cut within the closing mark


class Hermes(Family):
    name = "hermes"
    signs = (OPEN,)
    closing = CLOSE
    bans = (OPEN,)
    tokens = (OPEN, CLOSE)

    def writes(self, template: str) -> bool:
        return super().writes(template) and "<function=" not in template

    def reader(self) -> HermesReader:
        return HermesReader()

    def grammar(self, functions: Sequence[Function], several: bool, quote: Quote) -> str:
        rules = json_rules(functions, "arguments")
        more = f" ({quote(chr(10))} call)*" if several else ""
        start = f"calls: call{more}\n"
        call = f"call: {quote(OPEN)} {quote(chr(10))} object {quote(chr(10))} {quote(CLOSE)}\n"
        return start + call + rules
