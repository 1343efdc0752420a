"""Gemma: call:name{key:value, ...} between two special tokens, with texts between others."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from infinipot.text.calls.base import (
    CallReader,
    Family,
    Function,
    Part,
    Quote,
    Steps,
    alternatives,
    compact,
)
from infinipot.text.calls.gemma_grammar import argument_rules

HEAD = re.compile(r"\s*call:\s*([^\s{}]+)\s*(?=\{)")


class GemmaReader(CallReader):
    def __init__(self, start: str, close: str, quote: str) -> None:
        super().__init__()
        self.openings = (start,)
        self.close = close
        self.quote = quote

    def call(self, opening: str) -> Steps[None]:
        """The name leaves at once, the arguments when they are whole: they are no JSON."""
        while not (self.ended or "{" in self.rest):
            yield None
        head = HEAD.match(self.rest)
        if head is None:
            body = yield from self.until(self.close)
            yield Part(content=opening + body)
            return
        self.take(head.end())
        yield self.begin(head[1])
        while self.close not in self.rest and not self.ended:
            yield None
        self.complete += self.close in self.rest
        body, _, self.rest = self.rest.partition(self.close)
        yield self.argument(compact(Values(body, self.quote).value()))


class Values:
    """Reads values of this form: `{key:<escape>text<escape>,list:[1,2],deep:{key:true}}`."""

    def __init__(self, text: str, quote: str) -> None:
        self.text = text
        self.quote = quote
        self.place = 0

    def value(self) -> Any:
        """The value at this place. What is cut ends at the end of the text."""
        self._skip(" \n\t")
        if self.text.startswith(self.quote, self.place):
            return self._quoted()
        if self.text.startswith("{", self.place):
            return self._object()
        if self.text.startswith("[", self.place):
            return self._list()
        return self._bare()

    def _skip(self, letters: str) -> None:
        while self.place < len(self.text) and self.text[self.place] in letters:
            self.place += 1

    def _quoted(self) -> str:
        start = self.place + len(self.quote)
        end = self.text.find(self.quote, start)
        if end < 0:
            end = len(self.text)
        self.place = end + len(self.quote)
        return self.text[start:end]

    def _more(self, close: str) -> bool:
        """Whether another item follows in a list or an object, before its `close`."""
        self._skip(" \n\t,")
        if self.place >= len(self.text):
            return False
        if self.text[self.place] == close:
            self.place += 1
            return False
        return True

    def _object(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        self.place += 1
        while self._more("}"):
            if self.text.startswith(self.quote, self.place):
                name = self._quoted()
                self._skip(" \n\t:")
            else:
                name, _, _ = self.text[self.place :].partition(":")
                self.place += len(name) + 1
            found[name.strip()] = self.value()
        return found

    def _list(self) -> list[Any]:
        found = []
        self.place += 1
        while self._more("]"):
            found.append(self.value())
        return found

    def _bare(self) -> Any:
        """A number, true, false, null, or a text without quotes."""
        start = self.place
        while self.place < len(self.text) and self.text[self.place] not in ",]}":
            self.place += 1
        text = self.text[start : self.place].strip()
        if self.place == start:
            self.place += 1  # no value: go on behind it
        try:
            return json.loads(text)
        except ValueError:
            return text


class Gemma(Family):
    def __init__(self, name: str, start: str, close: str, quote: str) -> None:
        self.name = name
        self.signs = (start,)
        self.closing = close
        self.bans = (start,)
        self.tokens = (start, close, quote)
        self.quote = quote

    def reader(self) -> GemmaReader:
        assert self.closing is not None
        return GemmaReader(self.signs[0], self.closing, self.quote)

    def grammar(self, functions: Sequence[Function], several: bool, quote: Quote) -> str:
        assert self.closing is not None
        rules = [f"calls: call{'+' if several else ''}", f"call: {alternatives(functions)}"]
        for number, function in enumerate(functions):
            head = f"{quote(self.signs[0])} {compact(f'call:{function.name}')}"
            rules.append(f"call_{number}: {head} args_{number} {quote(self.closing)}")
            rules += argument_rules(f"args_{number}", function.schema, quote(self.quote))
        return "\n".join(rules) + "\n"
