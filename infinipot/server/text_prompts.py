"""Token ids of messages and prompts, as a session would read them, split into text and question."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from transformers import PreTrainedTokenizerBase

from infinipot.config import PotConfig
from infinipot.custom_generate import PROMPT_END
from infinipot.server.errors import APIError
from infinipot.server.fair_lock import FairLock
from infinipot.text.chat_template import Dialogue
from infinipot.text.exchange import Exchange
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
    exchange: Exchange | None = None
    """Places answers that call functions; None for completions."""

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


class TextPrompts:
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
