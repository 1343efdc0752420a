"""What stands around texts, questions and answers: the chat template, cut into pieces and turned
into ids."""

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
"""Shows whether white space around what users write is kept."""


@dataclass(frozen=True)
class Template:
    """head + text + gap + question + ask + answer + turn + text + ..."""

    head: str = ""
    """Up to the first user's text: the system prompt is in it."""
    ask: str = ""
    """From the end of a question to where the answer begins."""
    turn: str = ""
    """From the end of an answer to the next user's text."""
    gap: str = ""
    """Between a text and the question about it."""
    strips: bool = False
    """Whether white space around what a user writes is dropped."""


def template_of(tokenizer: PreTrainedTokenizerBase, system: str | None) -> Template:
    """Cut the tokenizer's own chat template at the places where texts stand.

    Without a chat template the head is the beginning-of-text token, if the tokenizer adds one, and
    empty lines part text, question and answer.
    """
    if not tokenizer.chat_template:
        if system is not None:
            raise ValueError(
                "system is given, but this tokenizer has no chat template to put it in: put it into the text instead"
            )
        ids = tokenizer("a").input_ids
        starts = bool(ids) and ids[0] == tokenizer.bos_token_id
        return Template(
            head=str(tokenizer.bos_token) if starts else "", ask="\n", turn="\n\n", gap="\n\n"
        )
    messages = [
        {"role": "user", "content": USER_1},
        {"role": "assistant", "content": ANSWER},
        {"role": "user", "content": PADDED},
    ]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    try:
        text = str(
            tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        )
    except TemplateError as problem:
        if system is None:
            what = "a conversation (pass template=False)"
        else:
            what = "a system prompt (put it into the text instead)"
        raise ValueError(f"the tokenizer's chat template refuses {what}: {problem}") from problem
    strips = PADDED not in text
    text = text.replace(PADDED, USER_2)
    head, user_1, rest = text.partition(USER_1)
    _, answer, rest = rest.partition(ANSWER)
    turn, user_2, ask = rest.partition(USER_2)
    if not (user_1 and answer and user_2):
        raise ValueError(
            "the tokenizer's chat template changes what users write, so texts cannot be placed in it; pass template=False"
        )
    if system is not None and system.strip() not in head:
        raise ValueError(
            "the tokenizer's chat template drops the system prompt: put it into the text instead"
        )
    return Template(head=head, ask=ask, turn=turn, gap="\n\n", strips=strips)


class Dialogue:
    """Where in the conversation a session stands, and the ids that come next.

    tokenizer None or templated False: texts and questions are read as they are, with nothing around
    them.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase | None, system: str | None, templated: bool
    ) -> None:
        self.tokenizer = tokenizer
        self.templated = templated
        if templated and tokenizer is not None:
            self.template = template_of(tokenizer, system)
        else:
            self.template = Template()
        self.in_text = False
        """Whether this turn's text has begun, so that a question needs a gap before it."""
        self.answered = False
        """Whether an answer came last, so that the turn changes before anything else is read."""

    def ids(self, text: str) -> list[int]:
        """The ids of a text that stands behind another one."""
        if not text:
            return []
        if self.tokenizer is None:
            raise ValueError(
                f"a text is given ({text[:30]!r}), but the session has no tokenizer: pass one, or token ids"
            )
        return fragment(self.tokenizer, text)

    def head(self) -> list[int]:
        """What stands before everything else."""
        text = self.template.head.rstrip(" ")
        if text and self.tokenizer is not None:
            return list(self.tokenizer.encode(text, add_special_tokens=False))
        return []

    def opening(self) -> list[int]:
        """What leads from an answer to the next text; nothing elsewhere."""
        if self.answered:
            return self.ids(self.template.turn.rstrip(" "))
        return []

    def place(self) -> tuple[str, str]:
        """What the next text stands behind, and the spaces that it begins with: a tokenizer takes
        them together with its first word."""
        if self.in_text:
            return "\n", ""
        if self.answered:
            whole = self.template.turn
        else:
            whole = self.template.head
        before = whole.rstrip(" ")
        return before or "\n", whole[len(before) :]

    def asked(self, question: str) -> tuple[str, str]:
        """What a question stands behind, and its own text with what leads to it."""
        before, spaces = self.place()
        if self.template.strips:
            if self.in_text:
                question = question.rstrip()
            else:
                question = question.strip()
        return before, (
            self.template.gap if self.in_text else spaces
        ) + question if question else ""

    def question(self, question: str | list[int] | None) -> list[int]:
        """From what was read to where the answer begins. Ids are taken as they are."""
        if isinstance(question, list):
            return question
        before, question = self.asked(question or "")
        if self.tokenizer is not None and question:
            asked = fragment(self.tokenizer, question, before)
        else:
            asked = self.ids(question)
        return self.opening() + asked + self.ids(self.template.ask)

    def catalyst(self, prompt: str | list[int]) -> list[int]:
        """The catalyst as a question about the text: a well-formed end of the user's turn."""
        if isinstance(prompt, list):
            return prompt
        return self.ids((self.template.gap or "\n\n") + prompt) + self.ids(
            self.template.ask or "\n"
        )

    def ends(self) -> set[int]:
        """The special token with which the template closes an answer, if it has one."""
        # without one there is no first
        first = self.ids(self.template.turn)[:1]
        known = cast(PreTrainedTokenizerBase, self.tokenizer)
        return {
            i
            for i in first
            if i in known.all_special_ids
            or (i in known.added_tokens_decoder and known.added_tokens_decoder[i].special)
        }
