"""Answers of a given form: a grammar says which tokens may come next (llguidance)."""

from __future__ import annotations

import json
import logging
import re
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from infinipot.optional import STRUCTURED, need
from infinipot.text.calls.base import Family, Function, compact
from infinipot.text.calls.gpt_oss import GptOss

log = logging.getLogger("infinipot")
LAYOUT = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
"""JSON on one line: a model that may write white space without end does."""


OPEN = {
    "additionalProperties",
    "patternProperties",
    "unevaluatedProperties",
    "allOf",
    "anyOf",
    "$ref",
}
"""Keywords beside `properties` that may name other members."""
MAPS = ("properties", "$defs", "definitions", "dependentSchemas")
"""Keywords whose values are schemas by names."""
VALUES = ("enum", "const", "default", "examples", "required")
"""Keywords whose values are no schemas."""


@dataclass(frozen=True)
class Form:
    """The form of an answer. kind: json, regex, choice, grammar. content: a JSON schema, a regular
    expression, a list of texts, a grammar (Lark or GBNF)."""

    kind: str
    content: Any


class TokenRules:
    """A tokenizer, as grammars see it. It makes grammars from forms, and constraints from grammars."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, vocabulary: int, ends: set[int]) -> None:
        """vocabulary: how many logits the model has. ends: tokens that may end an answer."""
        self.library = need("llguidance", "answers of a given form", STRUCTURED)
        if not tokenizer.is_fast:
            raise ValueError(
                "answers of a given form need a fast tokenizer, and this model's is written in "
                "Python: leave the form out"
            )
        from llguidance import hf

        size = max(vocabulary, len(tokenizer))
        self.tokenizer = tokenizer
        self.ends = ends
        self._added = tokenizer.get_added_vocab()
        self.tokens = hf.from_tokenizer(tokenizer, size, eos_token=sorted(ends))

    def grammar(
        self,
        form: Form,
        family: Family | None = None,
        functions: Sequence[Function] = (),
        several: bool = False,
    ) -> str:
        """The grammar of an answer of this form, or one that calls functions. family: how the model
        writes answers. Raises ValueError for what is no schema, no regular expression, ..."""
        whole = self._body(form)
        start = "start: @body"
        if isinstance(family, GptOss):
            start = family.answer_rules(self.quote)
        if functions and family is not None:
            rules = family.grammar(laid_out(functions), several, self.quote)
            start = f"{start.replace('start: ', 'start: calls | ', 1)}\n{rules}"
        if start != "start: @body":
            body = {**json.loads(whole)["grammars"][0], "name": "body"}
            first = {"name": "start", "lark_grammar": start}
            whole = json.dumps({"grammars": [first, body]})
        return self.checked(whole, form.kind)

    def _body(self, form: Form) -> str:
        make = self.library.LLMatcher
        if form.kind == "json":
            return str(make.grammar_from_json_schema(closed(form.content), overrides=LAYOUT))
        if form.kind == "regex":
            return str(make.grammar_from_regex(form.content))
        if form.kind == "choice":
            return str(make.grammar_from_lark(f"start: {' | '.join(map(compact, form.content))}"))
        from llguidance.gbnf_to_lark import any_to_lark

        try:
            return str(make.grammar_from_lark(any_to_lark(form.content)))
        except Exception as problem:  # the converter raises its own kinds
            raise ValueError(f"the grammar cannot be used: {problem}") from problem

    def calls(self, family: Family, functions: Sequence[Function], several: bool) -> str:
        """The grammar of an answer that calls one of these functions, or several."""
        rules = family.grammar(laid_out(functions), several, self.quote)
        return self._lark(f"start: calls\n{rules}")

    def strict_calls(self, family: Family, functions: Sequence[Function], several: bool) -> str:
        """The grammar of a free answer, in which calls have the form of one of these functions."""
        text = "/(.|\\n)*/"
        if not family.bans:
            raise ValueError(
                "this model's calls have no mark of their own, so strict functions need tool_choice "
                "'required', or the name of one function"
            )
        if not self.is_token(family.bans[0]):
            opening = re.escape(family.bans[0]).replace("/", "\\/")
            text += f" & ~/(.|\\n)*{opening}(.|\\n)*/"
        start = f"start: TEXT | TEXT calls\nTEXT: {text}\n"
        return self._lark(start + family.grammar(laid_out(functions), several, self.quote))

    def _lark(self, rules: str) -> str:
        return self.checked(str(self.library.LLMatcher.grammar_from_lark(rules)), "tools")

    def checked(self, grammar: str, what: str) -> str:
        """Raises ValueError for a grammar that cannot be used."""
        wrong, messages = self.library.LLMatcher.validate_grammar_with_warnings(
            grammar, self.tokens
        )
        if wrong:
            said = " ".join(messages[0].split())[:300]
            raise ValueError(f"the form of the answer ({what}) cannot be used: {said}")
        return grammar

    def is_token(self, text: str) -> bool:
        """Whether a text is one special token."""
        number = self._added.get(text)
        return number is not None and bool(self.tokens.is_special_token(number))

    def quote(self, text: str) -> str:
        """A text as a grammar spells it: a special token is a token, others are letters."""
        if self.is_token(text):
            return f"<[{self._added[text]}]>"
        return compact(text)

    def constraint(self, grammar: str, wakes: int | None = None) -> GrammarConstraint:
        return GrammarConstraint(self, grammar, wakes)


class GrammarConstraint:
    """Where an answer stands in its grammar."""

    def __init__(self, rules: TokenRules, grammar: str, wakes: int | None = None) -> None:
        """wakes: the token after which the grammar begins; None: it begins with the answer."""
        self.rules = rules
        self.wakes = wakes
        self.problem: str | None = None
        """What went wrong inside; the answer then ends."""
        self._matcher = rules.library.LLMatcher(rules.tokens, grammar)

    def accept(self, token: int) -> None:
        """The answer goes on with this token."""
        if self.wakes is not None:
            if token == self.wakes:
                self.wakes = None
            return
        if self.problem is None and not self._matcher.consume_token(token):
            self.problem = str(self._matcher.get_error()) or f"the token {token} was not allowed"
            log.error("a grammar failed: %s", self.problem)

    def fill(self, mask: Tensor) -> None:
        """Set the bits of the allowed tokens in mask [ceil(V / 32)] int32."""
        if self.wakes is not None:
            mask.fill_(-1)
            return
        if self.problem is None:
            bits = torch.frombuffer(bytearray(self._matcher.compute_bitmask()), dtype=torch.int32)
            mask.copy_(bits[: len(mask)])
            return
        mask.zero_()
        for end in self.rules.ends:
            place = torch.tensor(1 << (end % 32), dtype=torch.int64).to(torch.int32)
            mask[end // 32] |= place


def laid_out(functions: Sequence[Function]) -> list[Function]:
    """The functions, with arguments on one line and of those names only that their schemas have."""
    return [
        Function(function.name, {**closed(function.schema), "x-guidance": LAYOUT})
        for function in functions
    ]


def closed(schema: Any) -> Any:
    """The schema, in which an object has no other members than those that are named, unless the
    schema speaks of others: a weak model would invent some."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {}
    for name, one in schema.items():
        found[name] = one
        if name in MAPS and isinstance(one, dict):
            found[name] = {member: closed(inner) for member, inner in one.items()}
        elif name not in VALUES:
            found[name] = closed(one)
    if isinstance(schema.get("properties"), dict) and not OPEN & set(schema):
        found["additionalProperties"] = False
    return found


_rules: weakref.WeakKeyDictionary[PreTrainedTokenizerBase, dict[Any, TokenRules]]
_rules = weakref.WeakKeyDictionary()
_making = threading.Lock()


def token_rules(tokenizer: PreTrainedTokenizerBase, vocabulary: int, ends: set[int]) -> TokenRules:
    """The rules of a tokenizer, made once: that takes a second for a large vocabulary."""
    with _making:
        known = _rules.setdefault(tokenizer, {})
        key = (vocabulary, frozenset(ends))
        if key not in known:
            known[key] = TokenRules(tokenizer, vocabulary, ends)
        return known[key]
