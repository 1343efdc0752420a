"""Models from GGUF files: `gguf_config` reads the keys, `gguf_weights` the weights, and
`gguf_tokenizer` builds the tokenizer."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import torch
from accelerate import init_empty_weights
from transformers import (
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.initialization import no_init_weights

from infinipot.model.gguf_config import Keys, architecture_of, config_of
from infinipot.model.gguf_file import GGUFFile, read_file, read_metadata
from infinipot.model.gguf_groups import fill_groups
from infinipot.model.gguf_tokenizer import CONTROL, USER_DEFINED, build_tokenizer
from infinipot.model.gguf_weights import adopt, fill
from infinipot.model.rounding import CPU
from infinipot.model.unpacked_copies import place_of, read_copy, write_copy

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


def load_gguf(
    path: Path,
    *,
    dtype: torch.dtype,
    weights: str | None = None,
    device: torch.device = CPU,
) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """The model and its tokenizer. The weights are unpacked to `dtype`; the model is in eval mode
    on the CPU. weights: `auto`, `int8` or `int4` keeps them in groups of whole numbers, on `device`.

    The model's generation_config has the file's BOS and padding. Its EOS is the list of all
    end-of-turn tokens in the vocabulary. Raises FileNotFoundError. Raises ValueError, with what to
    do, for a file that is not GGUF, is cut off, is one part of several, or has an unknown tokenizer,
    architecture, key or tensor.
    """
    path = Path(path)
    file = read_file(path)
    fields = file.fields
    if "general.architecture" in fields:  # a new one often has a new tokenizer, too
        architecture_of(Keys(file))
    tokenizer = build_tokenizer(path, fields)  # before the weights: errors come sooner
    model = _load_weights(file, dtype, weights, device)
    ends = end_ids(fields)
    eos = ends if len(ends) > 1 else next(iter(ends), None)
    named = {
        "_model_name_or_path": fields.get("general.name"),
        "unk_token_id": tokenizer.unk_token_id,
    }
    model.config.update({name: value for name, value in named.items() if value is not None})
    model.config._name_or_path = str(path)
    for config in (model.config, model.generation_config):
        config.bos_token_id = tokenizer.bos_token_id
        config.pad_token_id = tokenizer.pad_token_id
        config.eos_token_id = eos
    return model.eval(), tokenizer


def _load_weights(
    file: GGUFFile, dtype: torch.dtype, weights: str | None, device: torch.device
) -> PreTrainedModel:
    config, architecture = config_of(file)
    if weights is not None:
        empty = _empty(config, dtype)
        fill_groups(empty, file, architecture, weights, device)
        return empty
    place = place_of(file.path, dtype)
    copy = read_copy(place)
    if copy is not None:
        mapped = _empty(config, dtype)
        if adopt(mapped, copy):
            return mapped
    # the functions that draw random weights are replaced for all threads
    with LOADING, no_init_weights():
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.tie_weights()  # part of what was left out
    fill(model, file, architecture)
    write_copy(place, dict(model.named_parameters()))
    return model


def _empty(config: PreTrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    """A model whose parameters, on the device meta, take no memory. Buffers are computed as ever."""
    with init_empty_weights(include_buffers=False):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.tie_weights()
    return model


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
