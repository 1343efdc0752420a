"""A tokenizer's chat template, filled in: with tools, and with options of its own."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jinja2.exceptions import TemplateError
from transformers import PreTrainedTokenizerBase

from infinipot.text.special_tokens import (
    control_texts,
    holds_control,
    plain_encoder,
    raw_ids,
    template_text,
)

RESERVED = (
    "messages",
    "conversation",
    "tools",
    "tokenize",
    "chat_template",
    "add_generation_prompt",
    "continue_final_message",
)
"""Names that are no options of a template."""


@dataclass(frozen=True)
class TemplateOptions:
    """What a request asks of the chat template."""

    tools: tuple[Mapping[str, Any], ...] = ()
    """Descriptions of functions, in OpenAI's form."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Options of the template's own, such as `enable_thinking`."""
    source: str | None = None
    """A template instead of the tokenizer's."""
    begins_answer: bool = True
    """Whether the answer's first tokens, which the template writes, follow the question."""

    @property
    def names(self) -> list[str]:
        """The names of the functions."""
        return [str(tool["function"]["name"]) for tool in self.tools]


def template_source(tokenizer: PreTrainedTokenizerBase, options: TemplateOptions) -> str:
    """The source of the template that a request uses."""
    return options.source or template_text(tokenizer)


def render(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Mapping[str, Any]],
    options: TemplateOptions,
    *,
    with_tools: bool = False,
    asks: bool = True,
) -> str:
    """The messages in the chat template. asks: with the beginning of the answer, unless `options`
    say no. Raises ValueError if the template refuses them."""
    more = {name: value for name, value in options.values.items() if name not in RESERVED}
    tools = list(options.tools) if with_tools else None
    try:
        return str(
            tokenizer.apply_chat_template(
                list(messages),
                tools=tools,
                chat_template=options.source,
                tokenize=False,
                add_generation_prompt=asks and options.begins_answer,
                **more,
            )
        )
    except (TemplateError, TypeError, KeyError, IndexError, AttributeError) as problem:
        raise ValueError(str(problem)) from problem


class Guard:
    """Keeps special tokens text that users spell within what the template writes.

    Texts are hidden behind words that nobody can guess, then the template is filled in, then the ids
    are made.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self._words: dict[str, str] = {}
        """Word -> the text that it stands for."""
        self._pattern: re.Pattern[str] | None = None

    def hide(self, value: Any) -> Any:
        """The same value, with words in the place of special tokens in its texts."""
        if isinstance(value, str):
            return self._hidden(value)
        if isinstance(value, Mapping):
            return {self.hide(name): self.hide(one) for name, one in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.hide(one) for one in value]
        return value

    def _hidden(self, text: str) -> str:
        if not holds_control(self.tokenizer, raw_ids(self.tokenizer, text), None):
            return text
        if self._pattern is None:
            texts = sorted(control_texts(self.tokenizer), key=len, reverse=True)
            self._pattern = re.compile("|".join(map(re.escape, texts)))
        return self._pattern.sub(self._word, text)

    def _word(self, found: re.Match[str]) -> str:
        word = f"Hidden{secrets.token_hex(8)}Text"
        self._words[word] = found.group()
        return word

    def ids(self, text: str, before: str = "") -> list[int]:
        """The ids of a rendered text that follows `before`, which ends with a special token or a
        newline."""
        if not any(word in text for word in self._words):
            return self._following(raw_ids(self.tokenizer, before), before + text, raw=True)
        plain = plain_encoder(self.tokenizer)
        if plain.copy is None:
            raise ValueError(
                "the tools or their results spell special tokens, which this tokenizer cannot read "
                "as text within its chat template: leave them out"
            )
        lead = plain.encode(plain.mask(before))
        masked = plain.mask(before + text)
        for word, hidden in self._words.items():
            masked = masked.replace(word, hidden)
        return self._following(lead, masked, raw=False)

    def _following(self, lead: list[int], text: str, raw: bool) -> list[int]:
        if raw:
            ids = raw_ids(self.tokenizer, text)
        else:
            ids = plain_encoder(self.tokenizer).encode(text)
        if ids[: len(lead)] == lead:
            return ids[len(lead) :]
        raise ValueError(
            "the tokenizer merges the answer with what the chat template writes before it: "
            "tools cannot be used with this model"
        )

    def shown(self, text: str) -> str:
        """A rendered text, with the texts that were hidden in it."""
        for word, hidden in self._words.items():
            text = text.replace(word, hidden)
        return text
