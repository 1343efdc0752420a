"""Models from GGUF files: weights by transformers, the tokenizer from the file's own metadata.

transformers reads GGUF tokenizers too, but differently from version to version, and even its newest
ids differ from those some models were trained with (digits after spaces in SmolLM2, whole words in
Llama 3, composed accents in Qwen). Here the vocabulary is turned into a `tokenizers.Tokenizer`
directly, so the ids are the same whatever transformers is installed.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
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
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

NORMAL = 1
CONTROL = 3
USER_DEFINED = 4
BYTE = 6
"""Values of `tokenizer.ggml.token_type` that matter here."""

END_OF_TURN = {
    "<|im_end|>",
    "<|end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<end_of_turn>",
    "<EOT>",
    "<|EOT|>",
    "<|return|>",
    "<|call|>",
}
END_OF_TURN |= {"<|endoftext|>", "<|end_of_text|>"}
"""Control tokens after which a model has nothing more to say; those in the vocabulary end a
generation, beside the file's own EOS."""


@dataclass(frozen=True)
class Pre:
    """How a byte-level vocabulary cuts text before merging."""

    split: str | None  # None: GPT-2's own cut
    digits: bool = False  # every digit is cut off first
    composed: bool = False  # text is brought to Unicode NFC
    # a piece that is in the vocabulary is taken as it is, whatever the merges
    whole_words: bool = False
    bos: bool = False  # BOS comes first if the file does not say


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

_INSTEAD = "Load the model from its Hub folder instead, which carries its own tokenizer."


def load_gguf(path: Path, *, dtype: torch.dtype) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """The model with its weights unpacked to `dtype`, in eval mode on the CPU, and its tokenizer.

    The model's generation_config has the file's BOS and padding, and as EOS every end-of-turn token
    of the vocabulary. Raises FileNotFoundError, or ValueError with what was found and what to do:
    not a GGUF, cut off, one part of several, an unknown tokenizer, an architecture that the
    installed transformers cannot load.
    """
    path = Path(path)
    fields = read_metadata(path)
    tokenizer = _tokenizer(path, fields)  # before the weights: it refuses sooner
    options: dict[str, Any] = {}
    # these versions would keep packed weights and choose an attention kernel of their own
    if hasattr(transformers, "GgufConfig"):
        options["quantization_config"] = transformers.GgufConfig(dequantize=True)
    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            path.parent,
            gguf_file=path.name,
            dtype=dtype,
            local_files_only=True,
            output_loading_info=True,
            **options,
        )
    except (ValueError, KeyError, NotImplementedError) as error:
        raise ValueError(
            f"{path}: transformers {transformers.__version__} cannot load architecture {fields.get('general.architecture')!r} from a GGUF "
            f"file ({type(error).__name__}: {error}). Load the model from its Hub folder instead."
        ) from error
    if report["missing_keys"]:  # transformers fills these with random numbers
        raise ValueError(
            f"{path}: weights are missing: {', '.join(sorted(report['missing_keys']))}. The file is damaged; get it again."
        )
    ends = end_ids(fields)
    for config in (model.config, model.generation_config):
        config.bos_token_id = tokenizer.bos_token_id
        config.pad_token_id = tokenizer.pad_token_id
        if len(ends) > 1:
            config.eos_token_id = ends
        else:
            config.eos_token_id = next(iter(ends), None)
    return model.eval(), tokenizer


def gguf_tokenizer(path: Path) -> PreTrainedTokenizerFast:
    """The tokenizer of a GGUF file, without reading weights. Raises as `load_gguf` does."""
    path = Path(path)
    return _tokenizer(path, read_metadata(path))


def read_metadata(path: Path) -> dict[str, Any]:
    """All key-value fields of a GGUF file; arrays are lists. Also checks that no tensor reaches
    beyond the end of the file.

    (`gguf.GGUFReader` takes ten seconds for a vocabulary of 262,144 tokens, this takes half a
    second.)
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file. Name a GGUF file.")
    with path.open("rb") as file:
        magic = file.read(4)
        if magic != b"GGUF":
            raise ValueError(
                f"{path}: not a GGUF file: it begins with {magic!r}, not with b'GGUF'."
            )
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return _Reader(data).fields()
            except (struct.error, EOFError) as error:
                raise ValueError(
                    f"{path}: the file is cut off or damaged ({error}; {len(data):,} bytes). Get it again."
                ) from error
            except (NotImplementedError, UnicodeDecodeError) as error:
                raise ValueError(
                    f"{path}: damaged, or a kind of GGUF that is not known here ({error})."
                ) from error


class _Reader:
    """Little-endian GGUF 2 and 3, from the first byte to the list of tensors."""

    SCALARS = "BbHhIif?  Qqd"  # layout by GGUF type number; 8 is a text, 9 a list
    STRING = 8
    ARRAY = 9

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.at = 4

    def fields(self) -> dict[str, Any]:
        (version,) = self.scalars("I")
        if version not in (2, 3):
            raise NotImplementedError(f"GGUF version {version}; 2 and 3 are known, little-endian")
        tensors, keys = self.scalars("QQ")
        fields: dict[str, Any] = {}
        for _ in range(keys):
            key = self.string()
            fields[key] = self.value(*self.scalars("I"))
        ends = [self.tensor_end() for _ in range(tensors)]
        alignment = int(fields.get("general.alignment", 32))
        begin = -(-self.at // alignment) * alignment
        if begin + max(ends, default=0) > len(self.data):
            raise EOFError(f"its tensors reach to byte {begin + max(ends):,}")
        return fields

    def scalars(self, layout: str) -> tuple[Any, ...]:
        values = struct.unpack_from("<" + layout, self.data, self.at)
        self.at += struct.calcsize("<" + layout)
        return values

    def string(self) -> str:
        (length,) = self.scalars("Q")
        if self.at + length > len(self.data):
            raise EOFError(f"a text reaches to byte {self.at + length:,}")
        self.at += length
        return self.data[self.at - length : self.at].decode()

    def value(self, kind: int) -> Any:
        if kind == self.STRING:
            return self.string()
        if kind != self.ARRAY:
            return self.scalars(self.layout(kind))[0]
        inner, count = self.scalars("IQ")
        if count > len(self.data) - self.at:
            raise EOFError(f"a list of {count:,} items")
        if inner in (self.STRING, self.ARRAY):
            return [self.value(inner) for _ in range(count)]
        return list(self.scalars(f"{count}{self.layout(inner)}"))

    def layout(self, kind: int) -> str:
        if kind >= len(self.SCALARS):
            raise NotImplementedError(f"value type {kind}")
        return self.SCALARS[kind]

    def tensor_end(self) -> int:
        """Where the next tensor of the list ends, in bytes after the beginning of the tensors."""
        self.string()
        (dimensions,) = self.scalars("I")
        elements = 1
        for size in self.scalars(f"{dimensions}Q"):
            elements *= size
        kind, offset = self.scalars("IQ")
        try:
            block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
        except ValueError as error:
            raise NotImplementedError(f"tensor type {kind}") from error
        return int(offset + elements // block * block_bytes)


def end_ids(fields: dict[str, Any]) -> list[int]:
    """Every id that ends a turn or a text: the file's own, first its EOS, then the END_OF_TURN
    tokens that are not plain text."""
    own = [fields.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    tokens = fields["tokenizer.ggml.tokens"]
    types = fields["tokenizer.ggml.token_type"]
    known = [
        i
        for i, token in enumerate(tokens)
        if token in END_OF_TURN and types[i] in (CONTROL, USER_DEFINED)
    ]
    if "<|return|>" in (tokens[i] for i in known):  # there <|end|> ends a message, not the turn
        known = [i for i in known if tokens[i] != "<|end|>"]
    return list(dict.fromkeys(i for i in (*own, *known) if i is not None))


def _tokenizer(path: Path, fields: dict[str, Any]) -> PreTrainedTokenizerFast:
    kind = fields.get("tokenizer.ggml.model")
    tokens = fields.get("tokenizer.ggml.tokens")
    if fields.get("split.count", 1) > 1:
        raise ValueError(
            f"{path}: one of {fields['split.count']} parts. Join them first (llama-gguf-split --merge)."
        )
    if kind not in ("gpt2", "llama") or not tokens:
        raise ValueError(
            f"{path}: tokenizer kind {kind!r}; known are 'gpt2' (byte-level BPE) and 'llama' (SentencePiece BPE). {_INSTEAD}"
        )
    types = fields.setdefault("tokenizer.ggml.token_type", [NORMAL] * len(tokens))
    for name, default in (("bos", 1), ("eos", 2), ("unknown", 0)) if kind == "llama" else ():
        # SentencePiece's own, left out by old files
        fields.setdefault(f"tokenizer.ggml.{name}_token_id", default)
    special: dict[str, str] = {}
    for ours, theirs in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        index = fields.get(f"tokenizer.ggml.{theirs}_token_id")
        if index is not None and not 0 <= index < len(tokens):
            raise ValueError(
                f"{path}: {theirs} token {index} of a vocabulary of {len(tokens)}; the file is damaged."
            )
        if index is not None:
            special[f"{ours}_token"] = tokens[index]

    prefix = kind == "llama" and fields.get("tokenizer.ggml.add_space_prefix", True)
    # added tokens are then looked for after spaces have become U+2581, as SentencePiece does
    respell = kind == "llama" and not prefix
    spelled = [
        t.replace(" ", "\u2581") if respell and types[i] == USER_DEFINED else t
        for i, t in enumerate(tokens)
    ]
    vocabulary = {token: index for index, token in enumerate(spelled)}
    if len(vocabulary) != len(tokens):
        raise ValueError(
            f"{path}: {len(tokens) - len(vocabulary)} tokens are in the vocabulary twice. {_INSTEAD}"
        )
    if kind == "gpt2":
        tokenizer, bos = _byte_level(path, fields, vocabulary)
    else:
        tokenizer = _sentencepiece(fields, vocabulary, prefix)
        bos = True
    tokenizer.add_tokens(
        [
            AddedToken(
                token, special=types[i] == CONTROL, normalized=respell and types[i] == USER_DEFINED
            )
            for i, token in enumerate(spelled)
            if types[i] in (CONTROL, USER_DEFINED)
        ]
    )
    if fields.get("tokenizer.ggml.add_bos_token", bos) and "bos_token" in special:
        begin = [special["bos_token"]]
    else:
        begin = []
    if fields.get("tokenizer.ggml.add_eos_token", False) and "eos_token" in special:
        end = [special["eos_token"]]
    else:
        end = []
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[*begin, "$A", *end],
        pair=[*begin, "$A", *end, *(f"{piece}:1" for piece in (*begin, "$B", *end))],
        special_tokens=[(token, vocabulary[token]) for token in {*begin, *end}],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        clean_up_tokenization_spaces=False,
        chat_template=fields.get("tokenizer.chat_template"),
        **special,
    )


def _byte_level(
    path: Path, fields: dict[str, Any], vocabulary: dict[str, int]
) -> tuple[Tokenizer, bool]:
    name = fields.get("tokenizer.ggml.pre")
    if name not in PRE:
        raise ValueError(
            f"{path}: pre-tokenizer {name!r} (tokenizer.ggml.pre); known are {', '.join(PRE)}. {_INSTEAD}"
        )
    pre = PRE[name]
    merges = [tuple(merge.split(" ", 1)) for merge in fields.get("tokenizer.ggml.merges", ())]
    tokenizer = Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, ignore_merges=pre.whole_words)
    )
    if pre.composed:
        tokenizer.normalizer = normalizers.NFC()
    cuts: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if pre.digits else []
    if pre.split is not None:
        cuts.append(pre_tokenizers.Split(Regex(pre.split), behavior="isolated"))
    cuts.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre.split is None))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(cuts)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, pre.bos


def _sentencepiece(fields: dict[str, Any], vocabulary: dict[str, int], prefix: bool) -> Tokenizer:
    """SentencePiece merges whichever neighbours make the piece with the best score: a BPE whose
    merges are ordered by that score."""
    scores = fields["tokenizer.ggml.scores"]
    types = fields["tokenizer.ggml.token_type"]
    pieces = list(vocabulary)
    merges = [
        # of equal scores the longest left, then right, part first
        (-scores[index], -cut, cut - len(piece), piece[:cut], piece[cut:])
        for index, piece in enumerate(pieces)
        if types[index] == NORMAL
        for cut in range(1, len(piece))
        if piece[:cut] in vocabulary and piece[cut:] in vocabulary
    ]
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocabulary,
            merges=[(left, right) for *_, left, right in sorted(merges)],
            unk_token=pieces[fields["tokenizer.ggml.unknown_token_id"]],
            fuse_unk=True,
            byte_fallback=BYTE in types,
        )
    )
    spaces = normalizers.Replace(" ", "\u2581")
    if prefix:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), spaces])
    else:
        tokenizer.normalizer = spaces
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    return tokenizer
