"""The chat template around texts, questions and answers: cut into pieces, and encoded to ids."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import cast

from transformers import PreTrainedTokenizerBase

from infinipot.text.calls.registry import family_of
from infinipot.text.rendering import TemplateOptions, render
from infinipot.text.special_tokens import (
    holds_control,
    raw_ids,
    special_ids,
    starting_ids,
    surrounded,
    template_text,
)
from infinipot.text.tokens import Place, fragment
from infinipot.text.tool_head import NO_TOOLS, tool_head

USER_1 = "First-User-Text"
ANSWER = "Answer-Text"
USER_2 = "Second-User-Text"
SYSTEM = "System-Text"
PLAIN = TemplateOptions()
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
    system: tuple[str, str, str] | None = None
    """The head around the system prompt, if that holds special tokens, which are text there."""
    start: tuple[int, ...] = ()
    """Without a chat template: the ids that the tokenizer puts before a text."""
    head_ids: tuple[int, ...] | None = None
    """The ids of a head with tools, of which `head` is only the end; None without tools."""


def template_of(
    tokenizer: PreTrainedTokenizerBase, system: str | None, options: TemplateOptions = PLAIN
) -> Template:
    """Cut the tokenizer's chat template at the user's texts and the answer.

    Without a chat template, a text begins with what the tokenizer puts before it, and empty lines
    separate text, question and answer.
    """
    if not (options.source or tokenizer.chat_template):
        if options.tools:
            raise ValueError(NO_TOOLS)
        return _plain_template(tokenizer, system)
    text = _rendered(tokenizer, system, options)
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
    cut = Template(head=head, ask=ask, turn=turn, gap="\n\n", strips=strips)
    if options.tools:
        end, ids = tool_head(tokenizer, system, options, USER_1)
        return replace(cut, head=end, head_ids=tuple(ids))
    within = system_within(tokenizer, system, head, options)
    return replace(cut, system=within)


def system_within(
    tokenizer: PreTrainedTokenizerBase,
    system: str | None,
    head: str,
    options: TemplateOptions = PLAIN,
) -> tuple[str, str, str] | None:
    """The head before a system prompt, the prompt, and the head behind it. None for a prompt that
    spells no special tokens."""
    if system is None or not holds_control(tokenizer, raw_ids(tokenizer, system), None):
        return None
    before, _, rest = _rendered(tokenizer, SYSTEM, options).partition(SYSTEM)
    behind = rest.partition(USER_1)[0]
    for prompt in (system, system.strip()):
        if before + prompt + behind == head:
            return before, prompt, behind
    raise ValueError(
        "the system prompt spells special tokens, and the tokenizer's chat template changes what "
        "stands around it: leave them out of the system prompt"
    )


def _plain_template(tokenizer: PreTrainedTokenizerBase, system: str | None) -> Template:
    """The template of a tokenizer that has none."""
    if system is not None:
        raise ValueError(
            "this tokenizer has no chat template, so it has no place for a system prompt: put the "
            "system prompt into the text instead"
        )
    start = tuple(starting_ids(tokenizer))
    return Template(ask="\n", turn="\n\n", gap="\n\n", start=start)


def _rendered(
    tokenizer: PreTrainedTokenizerBase, system: str | None, options: TemplateOptions
) -> str:
    """A short conversation in the tokenizer's chat template."""
    messages = [
        {"role": "user", "content": USER_1},
        {"role": "assistant", "content": ANSWER},
        {"role": "user", "content": PADDED},
    ]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    try:
        return render(tokenizer, messages, options)
    except ValueError as problem:
        what = "a conversation (pass template=False)"
        if system is not None:
            what = "a system prompt (put it into the text instead)"
        raise ValueError(f"the tokenizer's chat template refuses {what}: {problem}") from problem


class Dialogue:
    """The state of a session's conversation, and the ids that come next.

    Without a tokenizer, or with templated=False, no template is put around texts and questions.
    begins: then the first text begins with what the tokenizer puts before a text. special_tokens:
    whether they count in the system prompt, and in texts and questions. options: of the template.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase | None,
        system: str | None,
        templated: bool,
        begins: bool = False,
        special_tokens: bool = False,
        options: TemplateOptions = PLAIN,
    ) -> None:
        self.tokenizer = tokenizer
        self.templated = templated
        self.template = Template()
        if templated and tokenizer is not None:
            self.template = template_of(tokenizer, system, options)
        elif begins and tokenizer is not None:
            self.template = Template(start=tuple(starting_ids(tokenizer)))
        self.special_tokens = special_tokens
        self.trusts_system = special_tokens
        self.in_text = False
        """Whether this turn already has a text. A question then needs a gap before it."""
        self.answered = False
        """Whether an answer came last. The next text or question then starts a new turn."""

    @property
    def split(self) -> Collection[int] | None:
        """Tokens that are text in what users write, as in `tokens.fragment`."""
        if self.special_tokens:
            return ()
        return None

    def ids(self, text: str) -> list[int]:
        """The ids of a user's text that follows another text."""
        return self._ids(text, self.split)

    def own_ids(self, text: str) -> list[int]:
        """The ids of a piece of the template that follows a text."""
        return self._ids(text, ())

    def _ids(self, text: str, split: Collection[int] | None) -> list[int]:
        if not text:
            return []
        if self.tokenizer is None:
            raise ValueError(
                f"the session has no tokenizer to encode the text {text[:30]!r}: pass a tokenizer, "
                "or pass token ids"
            )
        return fragment(self.tokenizer, text, split=split)

    def head(self) -> list[int]:
        """The ids at the very start of a conversation."""
        template = self.template
        if template.head_ids is not None:
            return list(template.head_ids)
        if self.tokenizer is None or not template.head.rstrip(" "):
            return list(template.start)
        if template.system is not None and not self.trusts_system:
            before, system, behind = template.system
            return surrounded(self.tokenizer, before, system, behind.rstrip(" "))
        return raw_ids(self.tokenizer, template.head.rstrip(" "))

    def opening(self) -> list[int]:
        """The ids between an answer and the next text. Empty unless an answer came last."""
        if self.answered:
            return self.own_ids(self.template.turn.rstrip(" "))
        return []

    def place(self) -> Place:
        """Where the next text stands."""
        if self.in_text:
            return Place("\n", "", self.split)
        whole = self.template.turn if self.answered else self.template.head
        before = whole.rstrip(" ")
        spaces = whole[len(before) :]
        if self.answered:
            return Place(before or "\n", spaces, self.split)
        return Place(before, spaces, self.split, self.template.start)

    def asked(self, question: str) -> tuple[Place, str]:
        """Where a question stands, and the question with its gap or leading spaces."""
        place = self.place()
        lead = place.spaces
        if self.in_text:
            lead = self.template.gap
        if self.template.strips:
            question = question.rstrip()
            if not self.in_text:
                question = question.lstrip()
        if not question:
            return place, ""
        return place, lead + question

    def question(self, question: str | list[int] | None) -> list[int]:
        """The ids from the end of the text to the start of the answer.

        A question that is already ids is returned unchanged.
        """
        if isinstance(question, list):
            return question
        place, question = self.asked(question or "")
        ids = self.ids(question)
        if self.tokenizer is not None and question:
            ids = place.after_start(fragment(self.tokenizer, question, place.before, place.split))
        return self.opening() + ids + self.own_ids(self.template.ask)

    def note_answer(self) -> None:
        """An answer came last now."""
        self.in_text = False
        self.answered = True

    def catalyst(self, prompt: str | list[int]) -> list[int]:
        """The ids of the catalyst, in the form of a question at the end of the user's turn."""
        if isinstance(prompt, list):
            return prompt
        question = self.ids((self.template.gap or "\n\n") + prompt)
        return question + self.own_ids(self.template.ask or "\n")

    def ends(self) -> set[int]:
        """The special token that closes an answer, if the template has one."""
        first = self.own_ids(self.template.turn)[:1]
        if not first:  # no template, and perhaps no tokenizer
            return set()
        tokenizer = cast(PreTrainedTokenizerBase, self.tokenizer)
        family = family_of(template_text(tokenizer))
        if family is not None and tokenizer.convert_ids_to_tokens(first[0]) in family.goes_on:
            return set()
        return {token for token in first if token in special_ids(tokenizer)}
