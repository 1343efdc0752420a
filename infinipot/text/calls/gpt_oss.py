"""gpt-oss: messages on channels; a message to a function is a call."""

from __future__ import annotations

import re
from collections.abc import Sequence

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

MESSAGE = "<|message|>"
CALL = "<|call|>"
ENDS = ("<|end|>", "<|return|>", CALL, "<|start|>")
CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
TO = re.compile(r"to=(?:functions\.)?([\w.-]+)")


class GptOssReader(CallReader):
    def call(self, opening: str) -> Steps[None]:
        raise AssertionError("calls have no opening here")

    def run(self) -> Steps[None]:
        while self.rest or not self.ended:
            if not self.rest:
                yield None
                continue
            while MESSAGE not in self.rest and not self.ended:
                yield None
            header, found, self.rest = self.rest.partition(MESSAGE)
            if not found:
                yield Part(content=header.replace("<|start|>assistant", ""))
                return
            yield from self._body(header)

    def _body(self, header: str) -> Steps[None]:
        """A message, of which the header has been read."""
        function = TO.search(header)
        channel = CHANNEL.search(header)
        if function is not None:
            yield self.begin(function[1])
            yield from self.stream(ENDS, self.argument)
            self.complete += 1
        elif channel is not None and channel[1] == "analysis":
            yield from self.stream(ENDS, lambda text: Part(reasoning=text))
        else:
            yield from self.stream(ENDS, lambda text: Part(content=text))


class GptOss(Family):
    name = "gpt_oss"
    signs = ("<|channel|>commentary", "to=functions.")
    ends = (CALL,)
    goes_on = ("<|end|>",)
    tokens = ("<|channel|>", "<|constrain|>", MESSAGE, *ENDS)
    spells_reasoning = True

    def writes(self, template: str) -> bool:
        return "<|channel|>" in template and MESSAGE in template

    def reader(self) -> GptOssReader:
        return GptOssReader()

    def answer_rules(self, quote: Quote) -> str:
        """Lark rules of a whole answer whose text is another grammar, `body`, after reasoning or without."""
        reasoning = (
            f'{quote("<|channel|>")} "analysis" {quote(MESSAGE)} /(.|\\n)*/ '
            f'{quote("<|end|>")} {quote("<|start|>")} "assistant"'
        )
        final = f'{quote("<|channel|>")} "final" {quote(MESSAGE)}'
        return f"start: reasoning? {final} @body\nreasoning: {reasoning}\n"

    def grammar(self, functions: Sequence[Function], several: bool, quote: Quote) -> str:
        """One call an answer: its end ends the answer."""
        analysis = (
            f'({quote("<|channel|>")} "analysis" {quote(MESSAGE)} /(.|\\n)*/ '
            f'{quote("<|end|>")} {quote("<|start|>")} "assistant")?'
        )
        rules = [f"calls: {analysis} call", f"call: {alternatives(functions)}"]
        for number, function in enumerate(functions):
            head = f"{quote('<|channel|>')} {compact(f'commentary to=functions.{function.name} ')}"
            format_ = f'{quote("<|constrain|>")} "json" {quote(MESSAGE)}'
            rules.append(f"call_{number}: {head} {format_} args_{number}")
            rules.append(f"args_{number}: %json {compact(function.schema)}")
        return "\n".join(rules) + "\n"
