"""The prompt of a conversation: its messages as a session would read them."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from transformers import PreTrainedTokenizerBase

from infinipot.config import PotConfig
from infinipot.custom_generate import PROMPT_END
from infinipot.server.errors import APIError
from infinipot.server.schema import Message
from infinipot.server.text_prompts import PotContext, Prompt, TextPrompts
from infinipot.server.turns import Turn, turns_of
from infinipot.text.calls.base import Family
from infinipot.text.chat_template import ANSWER, USER_1, Dialogue
from infinipot.text.exchange import Exchange, call_message
from infinipot.text.rendering import TemplateOptions, render, template_source
from infinipot.text.reply import Reply, reasoning_marks

MAX_EXCHANGES = 4096
"""Answers with calls, and results, whose ids are kept: an agent sends them again with each request."""


@dataclass(frozen=True)
class Style:
    """How a conversation uses the chat template."""

    options: TemplateOptions = field(default_factory=TemplateOptions)
    family: Family | None = None
    """How the model writes calls."""
    continues: bool = False
    """The last message is the assistant's, and goes on."""


def check_context(context: PotContext, system: str | None, style: Style) -> None:
    """Raise APIError if a chat cannot go on from this pot."""
    if not context.templated:
        message = "this pot was filled without a chat template: use /v1/completions"
        raise APIError(400, message, param="pot")
    if system not in (None, context.system):
        raise APIError(
            400,
            "the pot has its own system prompt, read before everything else: leave this one out",
            param="messages",
        )
    if style.options.tools:
        raise APIError(
            400,
            "a named pot was read without tools, whose descriptions come before everything else: "
            "leave tools out, or ask without the pot",
            param="tools",
        )


class Prompts(TextPrompts):
    """Makes prompts of conversations."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, vocabulary: int) -> None:
        super().__init__(tokenizer, vocabulary)
        self._exchanges: OrderedDict[bytes, list[int]] = OrderedDict()

    def chat(
        self,
        messages: list[Message],
        config: PotConfig,
        context: PotContext | None = None,
        style: Style | None = None,
    ) -> Prompt:
        """The prompt of a conversation. The question is the last message, or its last part; in a
        long text of one piece, the end. context: of the named pot before it."""
        style = style or Style()
        system, turns = turns_of(messages, style.continues)
        if context is not None:
            check_context(context, system, style)
            system = context.system
        try:
            with self._turn_lock.after(0):
                dialogue = Dialogue(self.tokenizer, system, True, options=style.options)
                head = dialogue.head() if context is None else []
                place = self._place(dialogue.template.ask, style.options)
                exchange = self._exchange(dialogue, style)
            if context is not None:
                dialogue.in_text = context.in_text
                dialogue.answered = context.answered
            empty = Prompt(system, True, head, [], [], [], place, exchange)
            return self._fill(empty, turns, dialogue, config)
        except ValueError as problem:
            raise APIError(400, str(problem), param="messages") from None

    def _fill(
        self, prompt: Prompt, turns: Sequence[Turn], dialogue: Dialogue, config: PotConfig
    ) -> Prompt:
        """The prompt with the turns."""
        begun: list[int] = []
        if turns[-1].assistant:
            begun = self.answer_ids(turns[-1].text, prompt.place)
            turns = turns[:-1]
        read: list[int] = []
        text: list[int] = []
        question: list[int] = []
        previous: Turn | None = None
        for turn in turns:
            read += text + question
            text, question = self._turn_ids(prompt, dialogue, turn, previous)
            previous = turn
        with self._turn_lock.after(0):
            end = PROMPT_END + len(dialogue.own_ids(dialogue.template.ask)) + len(begun)
            opening = dialogue.opening()
        prompt = replace(prompt, text=read + text, question=question + begun, opening=opening)
        return self._split(prompt, config, end)

    def _turn_ids(
        self, prompt: Prompt, dialogue: Dialogue, turn: Turn, previous: Turn | None
    ) -> tuple[list[int], list[int]]:
        """The text and the question of a turn. An answer is text."""
        if turn.assistant:
            reply = Reply(turn.text, calls=turn.calls)
            return self.reply_ids(reply, prompt), []
        if previous is None or not previous.calls:
            return self._user_ids(dialogue, turn.texts)
        exchange = prompt.exchange
        assert exchange is not None
        message = call_message(previous.text, previous.calls)
        block = turn.block or [{"role": "user", "content": turn.text}]
        key = (exchange.identity, message, block)
        ids = self._kept(key, lambda: exchange.following(message, block))
        return [], ids

    def reply_ids(self, reply: Reply, prompt: Prompt) -> list[int]:
        """The ids of an answer in a conversation, as a client sends it back: without its reasoning."""
        exchange = prompt.exchange
        if reply.calls and exchange is not None:
            message = call_message(reply.content, reply.calls)
            key = (exchange.identity, message)
            return self._kept(key, lambda: exchange.answer(message))
        text = reply.content
        marks = exchange.marks if exchange is not None else None
        if marks is not None and marks.begun:
            text = f"{marks.close}\n\n{text}"
        return self.answer_ids(text, prompt.place)

    def _kept(self, key: object, make: Callable[[], list[int]]) -> list[int]:
        """The ids of an exchange, made once."""
        name = hashlib.sha256(json.dumps(key, default=str).encode("utf-8", "replace")).digest()
        with self._turn_lock.after(0):
            if name not in self._exchanges:
                self._exchanges[name] = make()
            self._exchanges.move_to_end(name)
            while len(self._exchanges) > MAX_EXCHANGES:
                self._exchanges.popitem(last=False)
            return self._exchanges[name]

    def _exchange(self, dialogue: Dialogue, style: Style) -> Exchange:
        source = template_source(self.tokenizer, style.options)
        ask = dialogue.template.ask
        ends = dialogue.ends()
        end = str(self.tokenizer.convert_ids_to_tokens(min(ends))) if ends else ""
        marks = reasoning_marks(source, ask)
        return Exchange(self.tokenizer, style.options, ask, end, style.family, marks)

    def _place(self, ask: str, options: TemplateOptions) -> tuple[str, str]:
        """The text before an answer, and the spaces between. If the generation prompt ends without
        them, the model generates them."""
        if not template_source(self.tokenizer, options) or ask.endswith(" "):
            return ask, ""
        messages = [
            {"role": "user", "content": USER_1},
            {"role": "assistant", "content": ANSWER},
        ]
        before = render(self.tokenizer, messages, options, asks=False).partition(ANSWER)[0]
        return ask or "\n", before[len(before.rstrip(" ")) :]

    def _user_ids(self, dialogue: Dialogue, parts: list[str]) -> tuple[list[int], list[int]]:
        """A user's turn as a session reads it. The last part is the question, the rest is text."""
        with self._turn_lock.after(0):
            opening = dialogue.opening()
            ask = dialogue.own_ids(dialogue.template.ask)
        text: list[int] = []
        *before, last = parts
        if whole := "\n\n".join(before):
            if dialogue.in_text:
                preceding = "\n"
                lead = dialogue.template.gap
            else:
                place = dialogue.place()
                preceding = place.before
                lead = place.spaces
            text = opening + self.ids(lead + whole, preceding)
            opening = []
            dialogue.in_text = True
            dialogue.answered = False
        place, asked = dialogue.asked(last)
        question = opening + self.ids(asked, place.before) + ask
        dialogue.note_answer()
        return text, question
