"""Special tokens count where the chat template writes them. In what users write they are text.

A text is encoded as it is. Only if a control token is among its ids, it is encoded again by a copy
of the tokenizer in which the control tokens have names that nobody can guess.
"""

from __future__ import annotations

import json
import secrets
import weakref
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

Span = tuple[int, int]
"""First character of a token, and the character behind it."""
Encoded = tuple[list[int], list[Span]]


@dataclass(frozen=True)
class Controls:
    """The control tokens of a tokenizer, by id."""

    special: frozenset[int]
    """Those that the tokenizer calls special."""
    all: frozenset[int]
    """Also the added tokens that the chat template writes, such as `<think>`."""
    texts: dict[int, str]


class PlainEncoder:
    """Encodes texts in which no control token counts."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, controls: Controls) -> None:
        self.tokenizer = tokenizer
        self.renamed: dict[str, str] = {}
        """The control tokens' names in the copy. Empty without a copy."""
        self.copy: Any = None
        if tokenizer.is_fast:
            self._rename(controls)

    def _rename(self, controls: Controls) -> None:
        from tokenizers import Tokenizer

        state = json.loads(self.tokenizer.backend_tokenizer.to_str())
        state |= {"post_processor": None, "truncation": None, "padding": None}
        words = ordinary_words(state["model"])
        for number, text in controls.texts.items():
            if text not in words:
                self.renamed[text] = f"\ue000{secrets.token_hex(8)} {number}\ue000"
        dropped = words & set(controls.texts.values())
        added = [token for token in state["added_tokens"] if token["content"] not in dropped]
        for token in added:
            if name := self.renamed.get(token["content"]):
                token |= {"content": name, "normalized": False, "single_word": False}
        state["added_tokens"] = added
        rename_in_model(state["model"], self.renamed)
        self.copy = Tokenizer.from_str(json.dumps(state))

    def mask(self, text: str) -> str:
        """A text of the template, for `encode`: its control tokens count."""
        for old in sorted(self.renamed, key=len, reverse=True):
            text = text.replace(old, self.renamed[old])
        return text

    def spans(self, text: str) -> Encoded:
        """Ids and places of a text. A tokenizer in Python gives no places."""
        if self.copy is not None:
            encoding = self.copy.encode(text, add_special_tokens=False)
            return list(encoding.ids), list(encoding.offsets)
        ids = self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
        return list(ids), []

    def encode(self, text: str) -> list[int]:
        return self.spans(text)[0]


def ordinary_words(model: dict[str, Any]) -> set[str]:
    """Pieces of the vocabulary of a tokenizer file that ordinary text gives: single characters, and
    what merges give. Such a piece stays one, also if it is called special."""
    vocabulary = model.get("vocab") or ()
    if not isinstance(vocabulary, dict):
        vocabulary = [piece for piece, _ in vocabulary]
    merges = model.get("merges") or ()
    words = {"".join(merge.split(" ", 1) if isinstance(merge, str) else merge) for merge in merges}
    return words | {piece for piece in vocabulary if len(piece) == 1}


def rename_in_model(model: dict[str, Any], names: dict[str, str]) -> None:
    """Rename pieces of the vocabulary of a tokenizer file. Ids stay."""
    vocabulary = model.get("vocab")
    if isinstance(vocabulary, dict):
        model["vocab"] = {names.get(piece, piece): number for piece, number in vocabulary.items()}
    elif vocabulary:
        model["vocab"] = [[names.get(piece, piece), score] for piece, score in vocabulary]
    if isinstance(model.get("unk_token"), str):
        model["unk_token"] = names.get(model["unk_token"], model["unk_token"])


@dataclass
class Known:
    """What is known of a tokenizer, as long as it stays as it is."""

    state: tuple[Any, ...]
    controls: Controls
    plain: PlainEncoder | None = None


_known: weakref.WeakKeyDictionary[PreTrainedTokenizerBase, Known] = weakref.WeakKeyDictionary()


def known(tokenizer: PreTrainedTokenizerBase) -> Known:
    """The control tokens of a tokenizer, found once."""
    template = template_text(tokenizer)
    state = (len(tokenizer), template, tuple(tokenizer.all_special_ids))
    found = _known.get(tokenizer)
    if found is None or found.state != state:
        found = Known(state, find(tokenizer, template))
        _known[tokenizer] = found
    return found


def template_text(tokenizer: PreTrainedTokenizerBase) -> str:
    """The source of the tokenizer's chat templates."""
    template = tokenizer.chat_template
    if isinstance(template, dict):
        return "\n".join(template.values())
    return template or ""


def find(tokenizer: PreTrainedTokenizerBase, template: str) -> Controls:
    """The special tokens, and the added tokens that the chat template names."""
    special = dict(zip(tokenizer.all_special_ids, tokenizer.all_special_tokens, strict=False))
    named: dict[int, str] = {}
    own = getattr(tokenizer, "chat_control_tokens", None)
    for number, token in tokenizer.added_tokens_decoder.items():
        text = token.content
        if token.special:
            special[number] = text
        elif text in own if own is not None else text in template and not text.isspace():
            named[number] = text
    return Controls(frozenset(special), frozenset({*special, *named}), {**special, **named})


def plain_encoder(tokenizer: PreTrainedTokenizerBase) -> PlainEncoder:
    """The tokenizer's `PlainEncoder`. The first call takes a second for a large vocabulary."""
    about = known(tokenizer)
    if about.plain is None:
        about.plain = PlainEncoder(tokenizer, about.controls)
    return about.plain


def special_ids(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    return known(tokenizer).controls.special


def control_texts(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """The control tokens as texts spell them."""
    return list(known(tokenizer).controls.texts.values())


def check_characters(text: str) -> None:
    """Raise ValueError for a text with halves of surrogate pairs, which UTF-8 cannot hold."""
    try:
        text.encode()
    except UnicodeEncodeError as problem:
        raise ValueError(
            f"the text holds half of a character, U+{ord(text[problem.start]):04X} at place "
            f"{problem.start:,}, which UTF-8 cannot hold: decode it anew from its bytes"
        ) from None


def raw_ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """The ids of a text in which control tokens count. Raises ValueError for halves of characters."""
    check_characters(text)
    options = {}
    if getattr(tokenizer, "split_special_tokens", False):
        options["split_special_tokens"] = False
    return list(tokenizer.encode(text, add_special_tokens=False, **options))


def holds_control(
    tokenizer: PreTrainedTokenizerBase, ids: Collection[int], split: Collection[int] | None
) -> bool:
    """Whether ids of a text hold a token that must not count there. split: such tokens; None: all
    control tokens."""
    if split is None:
        split = known(tokenizer).controls.all
    return bool(split) and not frozenset(split).isdisjoint(ids)


def spans(tokenizer: PreTrainedTokenizerBase, text: str) -> Encoded:
    """Ids and places of a user's text. The tokenizer must be a fast one."""
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    ids = list(encoded["input_ids"])
    if holds_control(tokenizer, ids, None):
        return plain_encoder(tokenizer).spans(text)
    return ids, list(encoded["offset_mapping"])


def surrounded(
    tokenizer: PreTrainedTokenizerBase, before: str, text: str, behind: str
) -> list[int]:
    """The ids of a user's text within the template's."""
    if holds_control(tokenizer, raw_ids(tokenizer, text), None):
        plain = plain_encoder(tokenizer)
        return plain.encode(plain.mask(before) + text + plain.mask(behind))
    return raw_ids(tokenizer, before + text + behind)


def starting_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """What the tokenizer puts before a text: usually nothing, or the beginning-of-text token."""
    whole = list(tokenizer("a").input_ids)
    inner = raw_ids(tokenizer, "a")
    for start in range(len(whole) - len(inner) + 1):
        if inner and whole[start : start + len(inner)] == inner:
            return whole[:start]
    return [number for number in whole[:1] if number == tokenizer.bos_token_id]
