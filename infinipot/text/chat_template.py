"""The chat template around texts, questions and answers: cut into pieces, and encoded to ids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from jinja2.exceptions import TemplateError
from transformers import PreTrainedTokenizerBase

from infinipot.text.tokens import fragment

USER_1 = "First-User-Text"
ANSWER = "Answer-Text"
USER_2 = "Second-User-Text"
PADDED = f"\t{USER_2}\t"
"""Shows whether the template keeps white space around a user's text."""


@dataclass(frozen=True)
class Template:
    """head + text + gap + question + ask + answer + turn + text + ..."""

    head: str = ""
    """Everything before the first user's text, with the system prompt."""
    ask: str = ""
    """From the end of a question to the start of the answer."""
    turn: str = ""
    """From the end of an answer to the next user's text."""
    gap: str = ""
    """Between a text and the question about it."""
    strips: bool = False
    """Whether the template drops white space around a user's text."""


def template_of(tokenizer: PreTrainedTokenizerBase, system: str | None) -> Template:
    """Cut the tokenizer's chat template at the user's texts and the answer.

    Without a chat template, the head is the beginning-of-text token if the tokenizer adds one, and
    empty lines separate text, question and answer.
    """
    if not tokenizer.chat_template:
        return _plain_template(tokenizer, system)
    text = _rendered(tokenizer, system)
    strips = PADDED not in text
    text = text.replace(PADDED, USER_2)
    head, user_1, rest = text.partition(USER_1)
    _, answer, rest = rest.partition(ANSWER)
    turn, user_2, ask = rest.partition(USER_2)
    if not (user_1 and answer and user_2):
        raise ValueError(
            "the tokenizer's chat template changes what users write, so no text can be placed in "
            "it: pass template=False"
        )
    if system is not None and system.strip() not in head:
        raise ValueError(
            "the tokenizer's chat template drops the system prompt: put it into the text instead"
        )
    return Template(head=head, ask=ask, turn=turn, gap="\n\n", strips=strips)


def _plain_template(tokenizer: PreTrainedTokenizerBase, system: str | None) -> Template:
    """The template of a tokenizer that has none."""
    if system is not None:
        raise ValueError(
            "this tokenizer has no chat template, so it has no place for a system prompt: put the "
            "system prompt into the text instead"
        )
    ids = tokenizer("a").input_ids
    head = ""
    if ids and ids[0] == tokenizer.bos_token_id:
        head = str(tokenizer.bos_token)
    return Template(head=head, ask="\n", turn="\n\n", gap="\n\n")


def _rendered(tokenizer: PreTrainedTokenizerBase, system: str | None) -> str:
    """A short conversation in the tokenizer's chat template."""
    messages = [
        {"role": "user", "content": USER_1},
        {"role": "assistant", "content": ANSWER},
        {"role": "user", "content": PADDED},
    ]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    try:
        return str(
            tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        )
    except TemplateError as problem:
        what = "a conversation (pass template=False)"
        if system is not None:
            what = "a system prompt (put it into the text instead)"
        raise ValueError(f"the tokenizer's chat template refuses {what}: {problem}") from problem


class Dialogue:
    """The state of a session's conversation, and the ids that come next.

    Without a tokenizer, or with templated=False, no template is put around texts and questions.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase | None, system: str | None, templated: bool
    ) -> None:
        self.tokenizer = tokenizer
        self.templated = templated
        self.template = Template()
        if templated and tokenizer is not None:
            self.template = template_of(tokenizer, system)
        self.in_text = False
        """Whether this turn already has a text. A question then needs a gap before it."""
        self.answered = False
        """Whether an answer came last. The next text or question then starts a new turn."""

    def ids(self, text: str) -> list[int]:
        """The ids of a text that follows another text."""
        if not text:
            return []
        if self.tokenizer is None:
            raise ValueError(
                f"the session has no tokenizer to encode the text {text[:30]!r}: pass a tokenizer, "
                "or pass token ids"
            )
        return fragment(self.tokenizer, text)

    def head(self) -> list[int]:
        """The ids at the very start of a conversation."""
        text = self.template.head.rstrip(" ")
        if text and self.tokenizer is not None:
            return list(self.tokenizer.encode(text, add_special_tokens=False))
        return []

    def opening(self) -> list[int]:
        """The ids between an answer and the next text. Empty unless an answer came last."""
        if self.answered:
            return self.ids(self.template.turn.rstrip(" "))
        return []

    def place(self) -> tuple[str, str]:
        """The string before the next text, and the spaces at the text's start.

        The spaces go with the text, because a tokenizer merges them with the first word.
        """
        if self.in_text:
            return "\n", ""
        if self.answered:
            whole = self.template.turn
        else:
            whole = self.template.head
        before = whole.rstrip(" ")
        return before or "\n", whole[len(before) :]

    def asked(self, question: str) -> tuple[str, str]:
        """The string before a question, and the question with its gap or leading spaces."""
        before, lead = self.place()
        if self.in_text:
            lead = self.template.gap
        if self.template.strips:
            question = question.rstrip()
            if not self.in_text:
                question = question.lstrip()
        if not question:
            return before, ""
        return before, lead + question

    def question(self, question: str | list[int] | None) -> list[int]:
        """The ids from the end of the text to the start of the answer.

        A question that is already ids is returned unchanged.
        """
        if isinstance(question, list):
            return question
        before, question = self.asked(question or "")
        if self.tokenizer is not None and question:
            ids = fragment(self.tokenizer, question, before)
        else:
            ids = self.ids(question)
        return self.opening() + ids + self.ids(self.template.ask)

    def note_answer(self) -> None:
        """An answer came last now."""
        self.in_text = False
        self.answered = True

    def catalyst(self, prompt: str | list[int]) -> list[int]:
        """The ids of the catalyst, in the form of a question at the end of the user's turn."""
        if isinstance(prompt, list):
            return prompt
        question = self.ids((self.template.gap or "\n\n") + prompt)
        return question + self.ids(self.template.ask or "\n")

    def ends(self) -> set[int]:
        """The special token that closes an answer, if the template has one."""
        first = self.ids(self.template.turn)[:1]
        if not first:  # no template, and perhaps no tokenizer
            return set()
        tokenizer = cast(PreTrainedTokenizerBase, self.tokenizer)
        added = tokenizer.added_tokens_decoder
        return {
            i for i in first if i in tokenizer.all_special_ids or (i in added and added[i].special)
        }
