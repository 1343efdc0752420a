"""From messages and prompts to token ids, the same as a session would read, and to where the question in them begins."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from transformers import PreTrainedTokenizerBase

from infinipot.config import PotConfig
from infinipot.custom_generate import PROMPT_END
from infinipot.server.errors import Refusal
from infinipot.server.schema import Message
from infinipot.text.chat_template import ANSWER, USER_1, Dialogue
from infinipot.text.tokens import BLOCK, LONGEST, boundary, checked, encode, fragment

T = TypeVar("T")
MOST_AT_ONCE = 64
"""Texts that are being made into ids."""


@dataclass(frozen=True)
class Prompt:
    """text + question is what is read, behind `head`, which stays pinned. The question is what is distilled by."""

    system: str | None
    templated: bool
    head: list[int]
    text: list[int]
    question: list[int]
    turn: list[int]
    """What leads from an answer to the next text."""
    place: tuple[str, str] = ("\n", "")
    """What an answer stands behind, and the spaces that it begins with."""

    @property
    def ids(self) -> list[int]:
        return self.head + self.text + self.question


@dataclass(frozen=True)
class Behind:
    """What a named pot has read already, as far as it matters for what comes next."""

    system: str | None
    templated: bool
    in_text: bool
    answered: bool


def ordered(messages: list[Message]) -> tuple[str | None, list[list[str]]]:
    """The system prompt, and the turns as parts of text: user, assistant, user ... user. Messages of the same role become one turn."""
    system: list[str] = []
    turns: list[list[str]] = []
    role = "assistant"
    for number, message in enumerate(messages):
        parts = [message.content] if isinstance(message.content, str) else [part.text for part in message.content]
        if message.role in ("system", "developer"):
            if turns:
                raise Refusal(400, f"messages[{number}]: a system message must come before all others", param="messages")
            system += parts
        elif message.role == role:
            if not turns:
                raise Refusal(400, f"messages[{number}]: the first message after the system prompt must be the user's", param="messages")
            turns[-1] += parts
        else:
            turns.append(parts)
            role = message.role
    if not turns:
        raise Refusal(400, "messages holds no message of the user: ask something", param="messages")
    if role == "assistant":
        raise Refusal(400, "the last message must be the user's; to continue a text use /v1/completions", param="messages")
    return "\n\n".join(system) if system else None, turns


class Turns:
    """A lock that whoever has had least gets next."""

    def __init__(self) -> None:
        self._own, self._taken, self._order = threading.Lock(), False, itertools.count()
        self._waiting: list[tuple[int, int, threading.Lock]] = []

    @contextmanager
    def after(self, had: int) -> Iterator[None]:
        """had: how much the one who asks has had already."""
        gate = threading.Lock()
        gate.acquire()
        with self._own:
            if self._taken:
                heapq.heappush(self._waiting, (had, next(self._order), gate))
            else:
                self._taken = True
                gate.release()
        gate.acquire()
        try:
            yield
        finally:
            with self._own:
                if self._waiting:
                    heapq.heappop(self._waiting)[2].release()
                else:
                    self._taken = False


class Words:
    """Texts as token ids, in threads of their own. One block of one text at a time: tokenizers are not made for several threads. Of those
    who wait the one comes next that has had least, so that a long text keeps no short one waiting."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, vocabulary: int) -> None:
        self.tokenizer, self.vocabulary = tokenizer, vocabulary
        self.threads = ThreadPoolExecutor(MOST_AT_ONCE, "infinipot-words")
        self._turns = Turns()

    async def aside(self, act: Callable[..., T], *given: Any) -> T:
        """Have something done in one of these threads."""
        return await asyncio.get_running_loop().run_in_executor(self.threads, act, *given)

    def ids(self, text: str, before: str = "\n") -> list[int]:
        """before: what the text stands behind; nothing if empty."""
        blocks = encode(self.tokenizer, [text] if text else [], before)
        out: list[int] = []
        while True:
            with self._turns.after(len(out)):  # block by block, so that a long text does not keep others waiting
                block = next(blocks, None)
            if block is None:
                return out
            out += block

    def offsets(self, text: str) -> list[int] | None:
        """Where each token of `ids(text)` begins; None if the tokenizer cannot tell."""
        if not self.tokenizer.is_fast:
            return None
        out: list[int] = []
        place = 0
        while place < len(text):
            block, longest = text[place : place + BLOCK], text[place : place + LONGEST]
            cut = len(block) if place + BLOCK >= len(text) else boundary(block) or boundary(longest) or len(longest)
            with self._turns.after(len(out)):
                starts = self._starts(longest[:cut])
            if starts is None:
                return None
            out += [place + start for start in starts]
            place += cut
        return out

    def _starts(self, text: str) -> list[int] | None:
        """Of a text that is encoded at once."""
        count = len(fragment(self.tokenizer, text))
        for lead in ("", "\n"):
            spans = self.tokenizer(lead + text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
            starts = [max(0, start - len(lead)) for start, end in spans if end > len(lead) or not lead]
            if len(starts) == count:
                return starts
        return None

    def first(self, text: str, system: str | None) -> list[int]:
        """The ids of a text that begins a session. Raises ValueError if there is no place for the system prompt."""
        with self._turns.after(0):
            before, spaces = Dialogue(self.tokenizer, system, True).place()
        return self.ids(spaces + text, before) if text else []

    def said(self, answer: str, place: tuple[str, str]) -> list[int]:
        """The ids that an answer has in a conversation: those that the model said, where it says what it was taught."""
        before, spaces = place
        return self.ids(answer if answer.startswith(spaces) or not answer else spaces + answer, before)

    def _place(self, ask: str) -> tuple[str, str]:
        """What answers stand behind, and the spaces that the template puts between: where it ends without them, the model says them."""
        if not self.tokenizer.chat_template or ask.endswith(" "):
            return ask, ""
        told = [{"role": "user", "content": USER_1}, {"role": "assistant", "content": ANSWER}]
        before = str(self.tokenizer.apply_chat_template(told, tokenize=False)).partition(ANSWER)[0]
        return ask or "\n", before[len(before.rstrip(" ")) :]

    def _read(self, dialogue: Dialogue, parts: list[str]) -> tuple[list[int], list[int]]:
        """A user's turn as a session would read it: the ids of all parts but the last, as a text, and those of the last, as a question."""
        with self._turns.after(0):
            opening, ask = dialogue.opening(), dialogue.ids(dialogue.template.ask)
        text: list[int] = []
        *before, last = parts
        if whole := "\n\n".join(before):
            behind, lead = ("\n", dialogue.template.gap) if dialogue.in_text else dialogue.place()
            text = opening + self.ids(lead + whole, behind)
            opening, dialogue.in_text, dialogue.answered = [], True, False
        behind, asked = dialogue.asked(last)
        question = opening + self.ids(asked, behind) + ask
        dialogue.in_text, dialogue.answered = False, True
        return text, question

    def chat(self, messages: list[Message], config: PotConfig, behind: Behind | None = None) -> Prompt:
        """A conversation: its last message is the question, or the last part of it, or, of a long text in one piece, its end."""
        system, turns = ordered(messages)
        if behind is not None and not behind.templated:
            raise Refusal(400, "this pot was filled without a chat template: use /v1/completions", param="pot")
        if behind is not None and system not in (None, behind.system):
            raise Refusal(400, "the pot has its own system prompt, read before everything else: leave this one out", param="messages")
        try:
            with self._turns.after(0):
                dialogue = Dialogue(self.tokenizer, behind.system if behind else system, True)
                head = [] if behind else dialogue.head()
                place = self._place(dialogue.template.ask)
        except ValueError as problem:
            raise Refusal(400, str(problem), param="messages") from None
        if behind is not None:
            dialogue.in_text, dialogue.answered = behind.in_text, behind.answered
        if not any(turns[-1]):
            raise Refusal(400, "the last message is empty: ask something", param="messages")
        before: list[int] = []
        for number, parts in enumerate(turns[:-1]):
            if number % 2:
                before += self.said("\n\n".join(parts), place)
            else:
                before += itertools.chain.from_iterable(self._read(dialogue, parts))
        text, question = self._read(dialogue, turns[-1])
        with self._turns.after(0):
            end = PROMPT_END + len(dialogue.ids(dialogue.template.ask))
            turn = dialogue.opening()
        prompt = Prompt(behind.system if behind else system, True, head, before + text, question, turn, place)
        return self._cut(prompt, config, end)

    def plain(self, prompt: str | list[int], config: PotConfig, behind: Behind | None = None) -> Prompt:
        """A text to be continued: its end is the catalyst. A text alone begins with what the tokenizer puts before texts."""
        if isinstance(prompt, str):
            with self._turns.after(0):
                first = self.tokenizer("a").input_ids[:1] if behind is None else []
            ids = [i for i in first if i == self.tokenizer.bos_token_id] + self.ids(prompt, "" if behind is None else "\n")
        else:
            ids = checked(prompt, self.vocabulary)
        if not ids:
            raise Refusal(400, "the prompt is empty: there is nothing to continue", param="prompt")
        return self._cut(Prompt(None, False, [], [], ids, []), config, PROMPT_END)

    def _cut(self, prompt: Prompt, config: PotConfig, end: int) -> Prompt:
        """The prompt with a question that leaves room in the pot: what is too long becomes text, but for its end.

        A plain prompt is all question; its end is taken always.
        """
        most = max(1, (config.pot_size - config.survivors - len(prompt.head)) // 2)
        if prompt.templated and len(prompt.question) <= most:
            return prompt
        cut = len(prompt.question) - min(end, most, len(prompt.question))
        return replace(prompt, text=prompt.text + prompt.question[:cut], question=prompt.question[cut:])
