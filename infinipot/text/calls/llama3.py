"""Llama 3: the whole answer is {"name": ..., "parameters": ...}, after <|python_tag|> or not."""

from __future__ import annotations

import re
from collections.abc import Sequence

from infinipot.text.calls.base import Family, Function, Part, Quote, Steps
from infinipot.text.calls.json_calls import JsonCallReader, json_rules

TAG = "<|python_tag|>"
KEY = re.compile(r'\s*\{\s*"(?:name|type|id|parameters|arguments|function)"\s*:')


class Llama3Reader(JsonCallReader):
    openings = (TAG,)

    def run(self) -> Steps[None]:
        """An answer without the tag may be a call, too: then it begins with one."""
        while self.rest.strip() in ("", "{") and not self.ended:
            yield None
        if self.rest.lstrip().startswith("{"):
            yield from self.call("")
        yield from super().run()

    def call(self, opening: str) -> Steps[None]:
        found = True
        while found:
            while not (self.ended or self.rest.strip()):
                yield None
            if not self.rest.lstrip().startswith("{"):
                yield Part(content=opening)
                return
            found = yield from self.object(opening)
            opening = ""
            found = found and ((yield from self.skip(";")) or (yield from self._follows()))

    def _follows(self) -> Steps[bool]:
        """Whether another object follows."""
        while not (self.ended or self.rest.strip()):
            yield None
        return self.rest.lstrip().startswith("{")


class Llama3(Family):
    name = "llama3"
    signs = (TAG, "Environment: ipython")
    ends = ("<|eot_id|>", "<|eom_id|>")
    bans = (TAG,)
    tokens = (TAG,)

    def reader(self) -> Llama3Reader:
        return Llama3Reader()

    def grammar(self, functions: Sequence[Function], several: bool, quote: Quote) -> str:
        """These models make one call an answer."""
        return "calls: object\n" + json_rules(functions, "parameters")
