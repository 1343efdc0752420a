"""Models from GGUF files: transformers loads the weights, `gguf_tokenizer` builds the tokenizer."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from infinipot import compat
from infinipot.model.gguf_file import read_metadata
from infinipot.model.gguf_tokenizer import CONTROL, USER_DEFINED, build_tokenizer

LOADING = threading.Lock()
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
    "<|endoftext|>",
    "<|end_of_text|>",
}
"""Control tokens at the end of an answer. Those in the vocabulary end generation, as the file's own
EOS does."""


def load_gguf(path: Path, *, dtype: torch.dtype) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """The model and its tokenizer. The weights are unpacked to `dtype`; the model is in eval mode
    on the CPU.

    The model's generation_config has the file's BOS and padding. Its EOS is the list of all
    end-of-turn tokens in the vocabulary. Raises FileNotFoundError. Raises ValueError, with what to
    do, for a file that is not GGUF, is cut off, is one part of several, has an unknown tokenizer,
    or has an architecture that the installed transformers cannot load.
    """
    path = Path(path)
    fields = read_metadata(path)
    tokenizer = build_tokenizer(path, fields)  # before the weights: errors come sooner
    model = _load_weights(path, fields, dtype)
    ends = end_ids(fields)
    eos = ends if len(ends) > 1 else next(iter(ends), None)
    for config in (model.config, model.generation_config):
        config.bos_token_id = tokenizer.bos_token_id
        config.pad_token_id = tokenizer.pad_token_id
        config.eos_token_id = eos
    return model.eval(), tokenizer


def _load_weights(path: Path, fields: dict[str, Any], dtype: torch.dtype) -> PreTrainedModel:
    options: dict[str, Any] = {}
    compat.use_own_bars()
    # versions with GgufConfig keep packed weights and choose an attention kernel by default
    if hasattr(transformers, "GgufConfig"):
        options["quantization_config"] = transformers.GgufConfig(dequantize=True)
    try:
        with quick_reading():
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
            f"{path}: transformers {transformers.__version__} cannot load architecture "
            f"{fields.get('general.architecture')!r} from a GGUF file ({type(error).__name__}: "
            f"{error}). Load the model from its Hub folder instead."
        ) from error
    if report["missing_keys"]:  # transformers gives these random numbers
        missing = ", ".join(sorted(report["missing_keys"]))
        raise ValueError(
            f"{path}: weights are missing: {missing}. The file is damaged: download it again."
        )
    return model


class PlainReader(gguf.GGUFReader):
    """Reads metadata through plain arrays: a memmap takes several times as long for each piece."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "data":
            value = value.view(np.ndarray)
        super().__setattr__(name, value)


@contextmanager
def quick_reading() -> Iterator[None]:
    """Inside, transformers reads GGUF files in a fraction of the time: by `PlainReader`, and with one
    table of tensors' names instead of one for each module."""
    with LOADING:
        names = vars(gguf)
        quick = {
            "GGUFReader": PlainReader,
            "get_tensor_name_map": functools.cache(gguf.get_tensor_name_map),
        }
        before = {name: names[name] for name in quick}
        names.update(quick)
        try:
            yield
        finally:
            names.update(before)


def gguf_tokenizer(path: Path) -> PreTrainedTokenizerFast:
    """The tokenizer of a GGUF file. Does not read the weights. Raises as `load_gguf` does."""
    path = Path(path)
    return build_tokenizer(path, read_metadata(path))


def end_ids(fields: dict[str, Any]) -> list[int]:
    """The ids of all tokens that end a turn or a text: the file's EOS first, then its other end
    tokens, then the END_OF_TURN tokens that are not plain text."""
    ends = [fields.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    tokens = fields["tokenizer.ggml.tokens"]
    types = fields["tokenizer.ggml.token_type"]
    others = [
        i
        for i, token in enumerate(tokens)
        if token in END_OF_TURN and types[i] in (CONTROL, USER_DEFINED)
    ]
    # in a vocabulary with <|return|>, the token <|end|> ends a message, not the turn
    if "<|return|>" in [tokens[i] for i in others]:
        others = [i for i in others if tokens[i] != "<|end|>"]
    return list(dict.fromkeys(i for i in (*ends, *others) if i is not None))
