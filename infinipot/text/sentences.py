"""Which tokens end a sentence, found once for each tokenizer."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

ENDS = (".", "!", "?", "…", "。", "！", "？", "।", "؟")
CLOSERS = " \t\r\n\"'”’»)]*_"
"""Signs that may follow the end of a sentence in its token."""
LINES = ("\n\n", "\r\n\r\n")
"""A single newline may be that of a wrapped line."""
SPACES = "Ġ▁"
"""How vocabularies spell the space before a word."""
_TABLES: WeakKeyDictionary[PreTrainedTokenizerBase, Tensor] = WeakKeyDictionary()


def ends_sentence(text: str) -> bool:
    """Whether a token with this text ends a sentence or a paragraph."""
    return text.rstrip(CLOSERS).endswith(ENDS) or any(line in text for line in LINES)


def sentence_ends(tokenizer: PreTrainedTokenizerBase | None, vocabulary: int) -> Tensor:
    """For each id, whether it ends a sentence, [vocabulary] bool, on the CPU. Without a tokenizer
    none does."""
    if tokenizer is None:
        return torch.zeros(vocabulary, dtype=torch.bool)
    known = _TABLES.get(tokenizer)
    if known is None or len(known) != vocabulary:
        ids = candidates(tokenizer, vocabulary)
        texts = tokenizer.batch_decode([[token] for token in ids])
        known = torch.zeros(vocabulary, dtype=torch.bool)
        known[ids] = torch.tensor([ends_sentence(text) for text in texts], dtype=torch.bool)
        _TABLES[tokenizer] = known
    return known


def candidates(tokenizer: PreTrainedTokenizerBase, vocabulary: int) -> list[int]:
    """Ids whose text may end a sentence: decoding the others, plain words, would take seconds."""
    ids = range(min(vocabulary, len(tokenizer)))
    spelled = tokenizer.convert_ids_to_tokens(list(ids))
    return [
        token
        for token, text in zip(ids, spelled, strict=True)
        if text is None or not is_word(text.lstrip(SPACES))
    ]


def is_word(text: str) -> bool:
    return text.isascii() and text.isalnum()
