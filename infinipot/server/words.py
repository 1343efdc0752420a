"""From messages and prompts to token ids, the same as a session would read, and to where the question in them begins."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace

from transformers import PreTrainedTokenizerBase

from infinipot.generation import PROMPT_END
from infinipot.options import PotConfig
from infinipot.server.refusal import Refusal
from infinipot.server.schema import Message
from infinipot.template import Dialogue
from infinipot.text import checked, encode


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


class Words:
    """Texts as token ids. One text at a time: tokenizers are not made for several threads."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, vocabulary: int) -> None:
        self.tokenizer, self.vocabulary = tokenizer, vocabulary
        self._lock = threading.Lock()

    def ids(self, text: str, behind: bool = True) -> list[int]:
        blocks = encode(self.tokenizer, [text], "\n" if behind else "")
        out: list[int] = []
        while True:
            with self._lock:  # block by block, so that a long text does not keep others waiting
                block = next(blocks, None)
            if block is None:
                return out
            out += block

    def offsets(self, text: str) -> list[int] | None:
        """Where each token of `ids(text)` begins; None if the tokenizer cannot tell."""
        if not self.tokenizer.is_fast:
            return None
        for lead in ("", "\n"):
            with self._lock:
                spans = self.tokenizer(lead + text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
            starts = [max(0, start - len(lead)) for start, end in spans if end > len(lead) or not lead]
            if len(starts) == len(self.ids(text)):
                return starts
        return None

    def _dialogue(self, system: str | None) -> Dialogue:
        with self._lock:
            return Dialogue(self.tokenizer, system, True)

    def chat(self, messages: list[Message], config: PotConfig, behind: Behind | None = None) -> Prompt:
        """A conversation: its last message is the question, or the last part of it, or, of a long text in one piece, its end."""
        system, turns = ordered(messages)
        if behind is not None and not behind.templated:
            raise Refusal(400, "this pot was filled without a chat template: use /v1/completions", param="pot")
        if behind is not None and system not in (None, behind.system):
            raise Refusal(400, "the pot has its own system prompt, read before everything else: leave this one out", param="messages")
        try:
            dialogue = self._dialogue(behind.system if behind else system)
        except ValueError as problem:
            raise Refusal(400, str(problem), param="messages") from None
        head = [] if behind else dialogue.head()
        ask, turn, gap = self.ids(dialogue.template.ask), self.ids(dialogue.template.turn), dialogue.template.gap
        text = list(turn) if behind is not None and behind.answered else []
        lead = gap if behind is not None and behind.in_text else ""
        for number, parts in enumerate(turns[:-1]):
            said = "\n\n".join(parts)
            text += ask + self.ids(said) + turn if number % 2 else self.ids(lead + said if said else "")
            lead = ""
        *before, last = turns[-1]
        if not last and not before:
            raise Refusal(400, "the last message is empty: ask something", param="messages")
        if before:
            text, question = text + self.ids(lead + "\n\n".join(before)), self.ids(gap + last) + ask
        else:
            cut = len(text) - len(turn) if turn and text[-len(turn) :] == turn else len(text)
            text, question = text[:cut], text[cut:] + self.ids(lead + last) + ask
        return self._cut(Prompt(behind.system if behind else system, True, head, text, question, turn), config, PROMPT_END + len(ask))

    def plain(self, prompt: str | list[int], config: PotConfig, behind: Behind | None = None) -> Prompt:
        """A text to be continued: its end is the catalyst. A text alone begins with what the tokenizer puts before texts."""
        if isinstance(prompt, str):
            with self._lock:
                first = self.tokenizer("a").input_ids[:1] if behind is None else []
            ids = [i for i in first if i == self.tokenizer.bos_token_id] + self.ids(prompt, behind is not None)
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
