"""Answers that call functions, and the functions' results, as a chat template writes them."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from transformers import PreTrainedTokenizerBase

from infinipot.text.calls.base import Family
from infinipot.text.rendering import Guard, TemplateOptions, render
from infinipot.text.reply import Call, Marks

QUESTION = "First-User-Text"
RESULT = "Result-Text"
ID_LETTERS = 9
"""Mistral's templates take ids of just this length."""
Message = Mapping[str, Any]


def new_id() -> str:
    """An id for a call."""
    return secrets.token_hex(ID_LETTERS)[:ID_LETTERS]


def short_id(identity: str) -> str:
    """An id of a call as every template takes it."""
    if len(identity) == ID_LETTERS and identity.isalnum() and identity.isascii():
        return identity
    return hashlib.sha256(identity.encode("utf-8", "replace")).hexdigest()[:ID_LETTERS]


def call_message(content: str, calls: Sequence[Call]) -> dict[str, Any]:
    """An answer with calls, in the form that templates take: arguments are objects."""
    return {
        "role": "assistant",
        "content": content,
        "tool_calls": [
            {
                "id": short_id(call.id),
                "type": "function",
                "function": {"name": call.name, "arguments": arguments_of(call)},
            }
            for call in calls
        ],
    }


def arguments_of(call: Call) -> Any:
    """The arguments as an object; as the text that they are, if a model wrote no JSON object."""
    try:
        found = json.loads(call.arguments or "{}")
    except ValueError:
        return call.arguments
    return found if isinstance(found, dict) else call.arguments


def result_message(identity: str, name: str, content: str) -> dict[str, Any]:
    """What a function gave back."""
    return {
        "role": "tool",
        "tool_call_id": short_id(identity),
        "name": name,
        "content": content,
    }


@dataclass(frozen=True)
class Exchange:
    """Places answers with calls, and what follows them, behind what the template writes before an
    answer."""

    tokenizer: PreTrainedTokenizerBase
    options: TemplateOptions
    ask: str
    """What the template writes between a question and its answer."""
    end: str
    """The special token that ends an answer; empty if there is none."""
    family: Family | None = None
    marks: Marks | None = None

    @cached_property
    def identity(self) -> str:
        """Differs between exchanges that write the same message in another way."""
        form = [list(self.options.tools), dict(self.options.values), self.options.source, self.ask]
        return hashlib.sha256(json.dumps(form, default=str).encode()).hexdigest()

    def answer(self, message: Message) -> list[int]:
        """The ids of an answer with calls, as the model writes them."""
        guard = Guard(self.tokenizer)
        text, before = self._answer(guard, guard.hide(message), self._results_of(message))
        return guard.ids(text, before)

    def following(self, message: Message, block: Sequence[Message]) -> list[int]:
        """The ids from the end of that answer to the start of the next one: the functions' results,
        and what a user says after them."""
        guard = Guard(self.tokenizer)
        call = guard.hide(message)
        text, _ = self._answer(guard, call, block)
        hidden = [guard.hide(one) for one in block]
        whole = self._behind_question(self._rendered(call, hidden))
        _, rest = self._lead(whole)
        if not rest.startswith(text):
            raise ValueError("the chat template writes calls in another way before their results")
        return guard.ids(rest[len(text) :])

    def _rendered(self, call: Message, block: Sequence[Message]) -> str:
        turn = [{"role": "user", "content": QUESTION}, call, *block]
        return render(self.tokenizer, turn, self.options, with_tools=bool(self.options.tools))

    def _results_of(self, message: Message) -> list[Message]:
        """Results that stand for those to come."""
        return [
            result_message(call["id"], call["function"]["name"], RESULT)
            for call in message["tool_calls"]
        ]

    def _answer(self, guard: Guard, call: Message, block: Sequence[Message]) -> tuple[str, str]:
        """The text of an answer with calls, and the text before it."""
        placed = [{**one, "content": RESULT} for one in block]
        whole = self._behind_question(self._rendered(call, placed))
        before, rest = self._lead(whole)
        text, found, _ = rest.partition(RESULT)
        if not found:
            raise ValueError("the chat template drops the results of functions")
        return text[: self._end(text)], before

    def _behind_question(self, text: str) -> str:
        _, found, rest = text.partition(QUESTION)
        if not found:
            raise ValueError("the chat template drops what users ask before a call")
        return rest

    def _lead(self, text: str) -> tuple[str, str]:
        """What the template writes before an answer, and what follows."""
        leads = [self.ask]
        if self.marks is not None and self.marks.start in self.ask:
            leads.append(self.ask.partition(self.marks.start)[0])
        for lead in (*leads, *(lead.rstrip(" ") for lead in leads)):
            if text.startswith(lead):
                return lead, text[len(lead) :]
        raise ValueError("the chat template writes something else before an answer with calls")

    def _end(self, text: str) -> int:
        """Where an answer with calls ends; behind it come the results."""
        if self.family is not None and self.family.closing is not None:
            place = text.rfind(self.family.closing)
            if place >= 0:
                return place + len(self.family.closing)
        ends = [self.end, self.tokenizer.eos_token]
        if self.family is not None:
            ends += self.family.ends
        places = [text.index(end) for end in ends if end and end in text]
        if not places:
            raise ValueError("the chat template does not end an answer with calls")
        return min(places)
