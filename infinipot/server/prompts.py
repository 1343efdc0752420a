"""Token ids of messages and prompts, as a session would read them, split into text and question."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from transformers import PreTrainedTokenizerBase

from infinipot.config import PotConfig
from infinipot.custom_generate import PROMPT_END
from infinipot.server.errors import APIError
from infinipot.server.fair_lock import FairLock
from infinipot.server.schema import Message
from infinipot.text.chat_template import ANSWER, USER_1, Dialogue
from infinipot.text.special_tokens import spans, special_ids, starting_ids
from infinipot.text.tokens import BLOCK, LONGEST, Place, boundary, checked, encode, fragment

T = TypeVar("T")
MAX_THREADS = 64
"""Texts that are tokenized at the same time."""


@dataclass(frozen=True)
class Prompt:
    """What a session reads: head, text, question. The head stays pinned; the question is the
    catalyst."""

    system: str | None
    templated: bool
    head: list[int]
    text: list[int]
    question: list[int]
    opening: list[int]
    """The template's ids between an answer and the next text."""
    place: tuple[str, str] = ("\n", "")
    """The text before an answer, and the spaces that the answer begins with."""

    @property
    def ids(self) -> list[int]:
        return self.head + self.text + self.question


@dataclass(frozen=True)
class PotContext:
    """Where a pot's conversation stands. It decides what the template puts before the next text."""

    system: str | None
    templated: bool
    in_text: bool
    answered: bool


def turns_of(messages: list[Message]) -> tuple[str | None, list[list[str]]]:
    """The system prompt, and the turns: user, assistant, user ... user, each a list of texts.

    Consecutive messages of one role become one turn.
    """

    def error(message: str) -> APIError:
        return APIError(400, message, param="messages")

    system: list[str] = []
    turns: list[list[str]] = []
    role = "assistant"
    for number, message in enumerate(messages):
        if message.content is None and message.role != "assistant":
            raise error(f"messages[{number}]: content is missing")
        if message.role in ("system", "developer"):
            if turns:
                raise error(f"messages[{number}]: a system message must come before all others")
            system += message.texts
        elif message.role != role:
            turns.append(message.texts)
            role = message.role
        elif turns:
            turns[-1] += message.texts
        else:
            raise error(
                f"messages[{number}]: the first message after the system prompt must be the user's"
            )
    if not turns:
        raise error("messages holds no message of the user: ask something")
    if role == "assistant":
        raise error("the last message must be the user's; to continue a text use /v1/completions")
    return "\n\n".join(system) if system else None, turns


def check_context(context: PotContext, system: str | None) -> None:
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


class Prompts:
    """Tokenizes texts, in threads of its own.

    One block of one text at a time, since tokenizers are not made for several threads. The text
    with the fewest ids comes next, so that a short text does not wait for a long one.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, vocabulary: int) -> None:
        self.tokenizer = tokenizer
        self.vocabulary = vocabulary
        self.threads = ThreadPoolExecutor(MAX_THREADS, "infinipot-words")
        self._turn_lock = FairLock()

    async def in_thread(self, act: Callable[..., T], *args: Any) -> T:
        """Run a function in one of these threads."""
        return await asyncio.get_running_loop().run_in_executor(self.threads, act, *args)

    def ids(self, text: str, before: str = "\n", split: Collection[int] | None = None) -> list[int]:
        """The ids of a text that follows `before`; an empty `before`: the text stands alone.
        split: as in `tokens.fragment`."""
        blocks = encode(self.tokenizer, [text] if text else [], before, split)
        out: list[int] = []
        while True:
            with self._turn_lock.after(len(out)):
                block = next(blocks, None)
            if block is None:
                return out
            out += block

    def offsets(self, text: str) -> list[int] | None:
        """The first character of each token of `ids(text)`; None if the tokenizer cannot tell."""
        if not self.tokenizer.is_fast:
            return None
        out: list[int] = []
        place = 0
        while place < len(text):
            block = text[place : place + BLOCK]
            longest = text[place : place + LONGEST]
            last = place + BLOCK >= len(text)
            cut = len(block) if last else boundary(block) or boundary(longest) or len(longest)
            with self._turn_lock.after(len(out)):
                starts = self._starts(longest[:cut])
            if starts is None:
                return None
            out += [place + start for start in starts]
            place += cut
        return out

    def _starts(self, text: str) -> list[int] | None:
        """The offsets of a text that is encoded as one block."""
        count = len(fragment(self.tokenizer, text))
        for lead in ("", "\n"):
            _, places = spans(self.tokenizer, lead + text)
            starts = [
                max(0, start - len(lead)) for start, end in places if end > len(lead) or not lead
            ]
            if len(starts) == count:
                return starts
        return None

    def first_ids(self, text: str, system: str | None) -> list[int]:
        """The ids of a session's first text. Raises ValueError if the template takes no system
        prompt."""
        with self._turn_lock.after(0):
            place = Dialogue(self.tokenizer, system, True).place()
        if text:
            return self.ids(place.spaces + text, place.before)
        return []

    def answer_ids(self, answer: str, place: tuple[str, str]) -> list[int]:
        """The ids of an answer in a conversation. Usually they are the generated ids: also of added
        tokens that the template writes, such as `<think>`."""
        before, spaces = place
        if answer and not answer.startswith(spaces):
            answer = spaces + answer
        return self.ids(answer, before, special_ids(self.tokenizer))

    def _place(self, ask: str) -> tuple[str, str]:
        """The text before an answer, and the spaces between. If the generation prompt ends without
        them, the model generates them."""
        if not self.tokenizer.chat_template or ask.endswith(" "):
            return ask, ""
        messages = [
            {"role": "user", "content": USER_1},
            {"role": "assistant", "content": ANSWER},
        ]
        before = str(self.tokenizer.apply_chat_template(messages, tokenize=False)).partition(
            ANSWER
        )[0]
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
        dialogue.in_text = False
        dialogue.answered = True
        return text, question

    def chat(
        self, messages: list[Message], config: PotConfig, context: PotContext | None = None
    ) -> Prompt:
        """The prompt of a conversation. The question is the last message, or its last part; in a
        long text of one piece, the end. context: of the named pot before it."""
        system, turns = turns_of(messages)
        if context is not None:
            check_context(context, system)
            system = context.system
        try:
            with self._turn_lock.after(0):
                dialogue = Dialogue(self.tokenizer, system, True)
                head = dialogue.head() if context is None else []
                place = self._place(dialogue.template.ask)
        except ValueError as problem:
            raise APIError(400, str(problem), param="messages") from None
        if context is not None:
            dialogue.in_text = context.in_text
            dialogue.answered = context.answered
        if not any(turns[-1]):
            raise APIError(400, "the last message is empty: ask something", param="messages")
        before: list[int] = []
        for number, parts in enumerate(turns[:-1]):
            if number % 2:
                before += self.answer_ids("\n\n".join(parts), place)
            else:
                before += itertools.chain.from_iterable(self._user_ids(dialogue, parts))
        text, question = self._user_ids(dialogue, turns[-1])
        with self._turn_lock.after(0):
            end = PROMPT_END + len(dialogue.own_ids(dialogue.template.ask))
            opening = dialogue.opening()
        prompt = Prompt(system, True, head, before + text, question, opening, place)
        return self._split(prompt, config, end)

    def plain(
        self,
        prompt: str | list[int],
        config: PotConfig,
        context: PotContext | None = None,
        special_tokens: bool = False,
    ) -> Prompt:
        """The prompt of a completion. Its end is the catalyst. Without a named pot before it, a text
        begins with what the tokenizer puts before texts. special_tokens: whether they count in it.
        """
        split = () if special_tokens else None
        if not isinstance(prompt, str):
            ids = checked(prompt, self.vocabulary)
        elif context is None:
            with self._turn_lock.after(0):
                start = tuple(starting_ids(self.tokenizer))
            place = Place("", "", start=start)
            ids = [*start, *place.after_start(self.ids(prompt, "", split))]
        else:
            ids = self.ids(prompt, split=split)
        if not ids:
            raise APIError(400, "the prompt is empty: there is nothing to continue", param="prompt")
        return self._split(Prompt(None, False, [], [], ids, []), config, PROMPT_END)

    def _split(self, prompt: Prompt, config: PotConfig, end: int) -> Prompt:
        """Keep the question short enough for the pot: all but its end becomes text.

        A plain prompt is all question, so it is always split.
        """
        most = max(1, (config.pot_size - config.mean_budget - len(prompt.head)) // 2)
        if prompt.templated and len(prompt.question) <= most:
            return prompt
        cut = len(prompt.question) - min(end, most, len(prompt.question))
        text = prompt.text + prompt.question[:cut]
        return replace(prompt, text=text, question=prompt.question[cut:])
