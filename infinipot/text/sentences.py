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
_TABLES: WeakKeyDictionary[PreTrainedTokenizerBase, Tensor] = WeakKeyDictionary()


def ends_sentence(text: str) -> bool:
    """Whether a token with this text ends a sentence or a paragraph."""
    return text.rstrip(CLOSERS).endswith(ENDS) or any(line in text for line in LINES)


def sentence_ends(tokenizer: PreTrainedTokenizerBase, vocabulary: int) -> Tensor:
    """For each id, whether it ends a sentence, [vocabulary] bool, on the CPU."""
    known = _TABLES.get(tokenizer)
    if known is None or len(known) != vocabulary:
        ids = [[token] for token in range(min(vocabulary, len(tokenizer)))]
        texts = tokenizer.batch_decode(ids)
        known = torch.zeros(vocabulary, dtype=torch.bool)
        known[: len(ids)] = torch.tensor([ends_sentence(text) for text in texts])
        _TABLES[tokenizer] = known
    return known


def ends_for(policy: str, tokenizer: PreTrainedTokenizerBase | None, vocabulary: int) -> Tensor:
    """The same for a policy of this name. Raises ValueError without a tokenizer."""
    if tokenizer is None:
        raise ValueError(
            f"policy {policy!r} is to look at sentences, and there is no tokenizer to find them: "
            "use a Session with a tokenizer, or leave `sentences` out"
        )
    return sentence_ends(tokenizer, vocabulary)
