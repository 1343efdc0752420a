"""A tokenizer from the metadata of a GGUF file.

transformers reads GGUF tokenizers too, but its ids depend on its version. Even in its newest
version some ids differ from those in the model's training: digits after spaces in SmolLM2, whole
words in Llama 3, composed accents in Qwen. This module builds a `tokenizers.Tokenizer` directly
from the vocabulary, so the ids are the same with every version of transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)
from transformers import PreTrainedTokenizerFast

NORMAL = 1
CONTROL = 3
USER_DEFINED = 4
BYTE = 6
"""Values of `tokenizer.ggml.token_type`."""


@dataclass(frozen=True)
class Pre:
    """How a byte-level tokenizer splits text before the merges."""

    split: str | None
    """Regular expression of a piece. None: the one of GPT-2."""
    digits: bool = False
    """Whether every digit is a piece of its own."""
    composed: bool = False
    """Whether text is normalised to Unicode NFC."""
    whole_words: bool = False
    """Whether a piece in the vocabulary becomes one token without merges."""
    bos: bool = False
    """Whether BOS is added if the file does not say."""


_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SLASH_TAIL = _TAIL.replace(r"[\r\n]*", r"[\r\n/]*")
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+END|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*END"

_GPT2 = Pre(None)
_DIGITS = Pre(None, digits=True)
_LLAMA3 = Pre(
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _TAIL, whole_words=True, bos=True
)
PRE: dict[str, Pre] = {
    "gpt-2": _GPT2,
    "smollm": _DIGITS,
    "starcoder": _DIGITS,
    "qwen2": Pre(_CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _TAIL, composed=True),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "tekken": Pre(_CASED.replace("END", "") + r"|\p{N}" + _SLASH_TAIL, whole_words=True, bos=True),
    "gpt-4o": Pre(
        _CASED.replace("END", _CONTRACTIONS + "?") + r"|\p{N}{1,3}" + _SLASH_TAIL, whole_words=True
    ),
}
"""The known values of `tokenizer.ggml.pre`."""

_INSTEAD = "Load the model from its Hub folder instead, which has its own tokenizer."


def build_tokenizer(path: Path, fields: dict[str, Any]) -> PreTrainedTokenizerFast:
    """The tokenizer of the file `path` with these metadata fields.

    Fields that an old file leaves out are added to `fields`. Raises ValueError for a tokenizer that
    cannot be built.
    """
    _check(path, fields)
    _add_defaults(fields)
    special = _special_tokens(path, fields)
    kind = fields["tokenizer.ggml.model"]
    prefix = kind == "llama" and fields.get("tokenizer.ggml.add_space_prefix", True)
    respell = kind == "llama" and not prefix
    pieces = _pieces(fields, respell)
    vocabulary = {token: index for index, token in enumerate(pieces)}
    if len(vocabulary) != len(pieces):
        count = len(pieces) - len(vocabulary)
        raise ValueError(f"{path}: {count} tokens are in the vocabulary twice. {_INSTEAD}")
    bos = True
    if kind == "gpt2":
        tokenizer, bos = _byte_level(path, fields, vocabulary)
    else:
        tokenizer = _sentencepiece(fields, vocabulary, prefix)
    tokenizer.add_tokens(_added_tokens(fields, pieces, respell))
    tokenizer.post_processor = _post_processor(fields, special, vocabulary, bos)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        clean_up_tokenization_spaces=False,
        chat_template=fields.get("tokenizer.chat_template"),
        **special,
    )


def _check(path: Path, fields: dict[str, Any]) -> None:
    """Refuse a part of a file, and an unknown kind of tokenizer."""
    kind = fields.get("tokenizer.ggml.model")
    if fields.get("split.count", 1) > 1:
        raise ValueError(
            f"{path}: the file is one of {fields['split.count']} parts. Join the parts first "
            "(llama-gguf-split --merge)."
        )
    if kind not in ("gpt2", "llama") or not fields.get("tokenizer.ggml.tokens"):
        raise ValueError(
            f"{path}: tokenizer kind {kind!r}; known are 'gpt2' (byte-level BPE) and 'llama' "
            f"(SentencePiece BPE). {_INSTEAD}"
        )


def _add_defaults(fields: dict[str, Any]) -> None:
    """Add the token types and SentencePiece's special ids, which old files leave out."""
    count = len(fields["tokenizer.ggml.tokens"])
    fields.setdefault("tokenizer.ggml.token_type", [NORMAL] * count)
    if fields["tokenizer.ggml.model"] == "llama":
        for name, default in (("bos", 1), ("eos", 2), ("unknown", 0)):
            fields.setdefault(f"tokenizer.ggml.{name}_token_id", default)


def _special_tokens(path: Path, fields: dict[str, Any]) -> dict[str, str]:
    """transformers' names of the special tokens -> the tokens."""
    tokens = fields["tokenizer.ggml.tokens"]
    special = {}
    for ours, theirs in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        index = fields.get(f"tokenizer.ggml.{theirs}_token_id")
        if index is None:
            continue
        if not 0 <= index < len(tokens):
            raise ValueError(
                f"{path}: {theirs} token {index} of a vocabulary of {len(tokens)}. The file is "
                "damaged: download it again."
            )
        special[f"{ours}_token"] = tokens[index]
    return special


def _pieces(fields: dict[str, Any], respell: bool) -> list[str]:
    """The tokens as `tokenizers` has to match them.

    respell: write the spaces of user-defined tokens as U+2581. SentencePiece searches for these
    tokens after it has replaced the spaces of the text.
    """
    tokens = list(fields["tokenizer.ggml.tokens"])
    if respell:
        for index, kind in enumerate(fields["tokenizer.ggml.token_type"]):
            if kind == USER_DEFINED:
                tokens[index] = tokens[index].replace(" ", "\u2581")
    return tokens


def _added_tokens(fields: dict[str, Any], pieces: Sequence[str], respell: bool) -> list[AddedToken]:
    """The tokens that are never split: control tokens and user-defined ones."""
    kinds = fields["tokenizer.ggml.token_type"]
    return [
        AddedToken(piece, special=kind == CONTROL, normalized=respell and kind == USER_DEFINED)
        for piece, kind in zip(pieces, kinds, strict=True)
        if kind in (CONTROL, USER_DEFINED)
    ]


def _post_processor(
    fields: dict[str, Any], special: dict[str, str], vocabulary: dict[str, int], bos: bool
) -> processors.TemplateProcessing:
    """Adds BOS and EOS, as the file says. bos: whether BOS is added if the file does not say."""
    start = []
    if fields.get("tokenizer.ggml.add_bos_token", bos) and "bos_token" in special:
        start = [special["bos_token"]]
    end = []
    if fields.get("tokenizer.ggml.add_eos_token", False) and "eos_token" in special:
        end = [special["eos_token"]]
    return processors.TemplateProcessing(
        single=[*start, "$A", *end],
        pair=[*start, "$A", *end, *(f"{piece}:1" for piece in (*start, "$B", *end))],
        special_tokens=[(token, vocabulary[token]) for token in {*start, *end}],
    )


def _byte_level(
    path: Path, fields: dict[str, Any], vocabulary: dict[str, int]
) -> tuple[Tokenizer, bool]:
    """The tokenizer, and whether BOS is added if the file does not say."""
    name = fields.get("tokenizer.ggml.pre")
    if name not in PRE:
        raise ValueError(
            f"{path}: pre-tokenizer {name!r} (tokenizer.ggml.pre); known are {', '.join(PRE)}. "
            f"{_INSTEAD}"
        )
    pre = PRE[name]
    merges = [tuple(merge.split(" ", 1)) for merge in fields.get("tokenizer.ggml.merges", ())]
    tokenizer = Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, ignore_merges=pre.whole_words)
    )
    if pre.composed:
        tokenizer.normalizer = normalizers.NFC()
    cuts: list[Any] = []
    if pre.digits:
        cuts.append(pre_tokenizers.Digits(individual_digits=True))
    if pre.split is not None:
        cuts.append(pre_tokenizers.Split(Regex(pre.split), behavior="isolated"))
    cuts.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre.split is None))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(cuts)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, pre.bos


def _sentencepiece(fields: dict[str, Any], vocabulary: dict[str, int], prefix: bool) -> Tokenizer:
    """A BPE tokenizer that merges like SentencePiece.

    SentencePiece merges the two neighbours whose joined piece has the highest score. A BPE does the
    same if its merges are sorted by that score.
    """
    types = fields["tokenizer.ggml.token_type"]
    unknown = list(vocabulary)[fields["tokenizer.ggml.unknown_token_id"]]
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocabulary,
            merges=_merges(fields, vocabulary),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=BYTE in types,
        )
    )
    spaces = normalizers.Replace(" ", "\u2581")
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.normalizer = spaces
    if prefix:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), spaces])
        steps.append(decoders.Strip(" ", 1, 0))
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def _merges(fields: dict[str, Any], vocabulary: dict[str, int]) -> list[tuple[str, str]]:
    """All pairs of pieces that join to a normal piece, highest score first.

    Of equal scores, the longest left part is first, then the longest right part.
    """
    scores = fields["tokenizer.ggml.scores"]
    types = fields["tokenizer.ggml.token_type"]
    merges = [
        (-scores[index], -cut, cut - len(piece), piece[:cut], piece[cut:])
        for index, piece in enumerate(vocabulary)
        if types[index] == NORMAL
        for cut in range(1, len(piece))
        if piece[:cut] in vocabulary and piece[cut:] in vocabulary
    ]
    return [(left, right) for *_, left, right in sorted(merges)]
