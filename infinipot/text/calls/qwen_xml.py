"""Qwen3-Coder: <tool_call><function=name><parameter=key>value</parameter></function></tool_call>."""

from __future__ import annotations

import re
from collections.abc import Sequence

from infinipot.text.calls.base import CallReader, Family, Function, Part, Quote, Steps, compact
from infinipot.text.calls.xml_values import value_of, xml_rules

OPEN = "<tool_call>"
CLOSE = "</tool_call>"
FUNCTION = "<function="
PARAMETER = "<parameter="
END = "</function>"
VALUE_END = "</parameter>"
LAST = re.compile(rf"{VALUE_END}(?=\s*(?:{PARAMETER}|{END}))")
"""The end of a value: a text may hold the same mark with something else behind it."""


class QwenXmlReader(CallReader):
    openings = (OPEN, FUNCTION)

    def __init__(self, functions: Sequence[Function]) -> None:
        super().__init__()
        self.schemas = {function.name: function.schema for function in functions}

    def call(self, opening: str) -> Steps[None]:
        """A call may lack its first mark, as these models sometimes leave it out."""
        marked = opening.endswith(OPEN)
        if marked and not (yield from self.skip(FUNCTION)):
            yield Part(content=opening)
            return
        while not (set(">\n") & set(self.rest) or self.ended):
            yield None
        name, close, _ = self.rest.partition(">")
        if not close or "\n" in name:
            yield Part(content=opening + FUNCTION * marked)
            return
        self.take(len(name) + 1)
        yield self.begin(name.strip())
        yield from self._arguments(self.schemas.get(name.strip(), {}))
        if (yield from self.skip(CLOSE)):
            yield from self.blank()
        elif self.ended and CLOSE.startswith(self.rest.strip()):
            self.rest = ""  # the answer was cut within the closing mark

    def _arguments(self, schema: dict[str, object]) -> Steps[None]:
        """Each argument leaves when its value is whole."""
        before = "{"
        while (yield from self.skip(PARAMETER)):
            key = (yield from self.until(">")).strip()
            while not (LAST.search(self.rest) or self.ended):
                yield None
            found = LAST.search(self.rest)
            if found is not None:
                text = self.take(found.start())
                self.take(len(VALUE_END))
            else:
                text = yield from self.until(VALUE_END)
            value = value_of(text.removeprefix("\n").removesuffix("\n"), schema, key)
            yield self.argument(f"{before}{compact(key)}: {compact(value)}")
            before = ", "
        if (yield from self.skip(END)):
            self.complete += 1
        elif self.ended and END.startswith(self.rest.strip()):
            self.rest = ""  # cut within the mark
        yield self.argument(before.strip(", ") + "}")


class QwenXml(Family):
    name = "qwen_xml"
    signs = (FUNCTION,)
    closing = CLOSE
    bans = (OPEN,)
    tokens = (OPEN, CLOSE)

    def __init__(self, functions: Sequence[Function] = ()) -> None:
        self.functions = tuple(functions)
        """What may be called: their schemas say which values are texts."""

    def of_functions(self, functions: Sequence[Function]) -> QwenXml:
        return QwenXml(functions)

    def reader(self) -> QwenXmlReader:
        return QwenXmlReader(self.functions)

    def grammar(self, functions: Sequence[Function], several: bool, quote: Quote) -> str:
        more = f" ({quote(chr(10))} call)*" if several else ""
        start = f"calls: call{more}\n"
        names = " | ".join(f"call_{number}" for number in range(len(functions)))
        call = f'call: {quote(OPEN)} "\\n" ({names}) "{END}\\n" {quote(CLOSE)}\n'
        rules = [start + call]
        for number, function in enumerate(functions):
            head = compact(f"{FUNCTION}{function.name}>\n")
            rules.append(f"call_{number}: {head} args_{number}\n")
            rules.append(xml_rules(f"args_{number}", function.schema))
        return "".join(rules)
