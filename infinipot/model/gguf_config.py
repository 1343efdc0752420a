"""The config of a model from the metadata of a GGUF file.

Every key of the architecture is read, or the file is refused: a key that is passed over would change
numbers without a word.
"""

from __future__ import annotations

import math
from typing import Any

from transformers import AutoConfig, PretrainedConfig

from infinipot.checks import known
from infinipot.model.gguf_architectures import ARCHITECTURES, COMMON, NEUTRAL, Architecture
from infinipot.model.gguf_file import GGUFFile

FACTORS = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")
"""Tensors that belong to the rotary embedding: divisors of its frequencies, for texts of any length,
for short ones and for long ones."""
INSTEAD = "Load the model from its Hub folder instead."


class Keys:
    """The keys of a file's architecture, without its name in front, and which of them were read."""

    def __init__(self, file: GGUFFile) -> None:
        self.file = file
        self.name = str(file.fields.get("general.architecture"))
        start = f"{self.name}."
        self.values = {
            key[len(start) :]: value for key, value in file.fields.items() if key.startswith(start)
        }
        self.unread = set(self.values)

    def get(self, key: str, default: Any = None) -> Any:
        """A value; one for all layers if the file has a list of equal values."""
        self.unread.discard(key)
        value = self.values.get(key, default)
        if isinstance(value, list) and value and all(item == value[0] for item in value):
            return value[0]
        return value

    def need(self, key: str) -> Any:
        value = self.get(key)
        if value is None:
            raise ValueError(f"{self.file.path}: {self.name}.{key} is missing. {INSTEAD}")
        return value

    def error(self, key: str) -> ValueError:
        return ValueError(
            f"{self.file.path}: {self.name}.{key} is {self.values.get(key)!r}, which is not known "
            f"here and would change what the model computes. {INSTEAD}"
        )

    def check_all_read(self) -> None:
        for key in sorted(self.unread):
            if self.values[key] not in NEUTRAL.get(key, ()):
                raise self.error(key)


def architecture_of(keys: Keys) -> Architecture:
    """Raises ValueError for an architecture that is not known."""
    try:
        known("architecture", keys.name, [name for name in ARCHITECTURES if name != "mixtral"])
    except ValueError as problem:
        raise ValueError(
            f"{keys.file.path}: cannot load architecture {keys.name!r} from a GGUF file: {problem}. "
            f"{INSTEAD}"
        ) from None
    name = keys.name
    if name == "llama" and keys.values.get("expert_count"):
        name = "mixtral"
    elif name == "llama" and keys.values.get("attention.sliding_window"):
        name = "mistral"
    return ARCHITECTURES[name]


def config_of(file: GGUFFile) -> tuple[PretrainedConfig, Architecture]:
    """The config of the model in a file. Raises ValueError for keys that are missing or not known."""
    keys = Keys(file)
    architecture = architecture_of(keys)
    options = size_options(keys, architecture)
    options |= special_options(keys, architecture, options)
    options |= window_options(keys, architecture, options)
    options |= rope_options(keys, architecture, options)
    keys.check_all_read()
    try:
        config = AutoConfig.for_model(architecture.model_type, **options)
    except Exception as problem:
        why = " ".join(str(problem).split())
        raise ValueError(f"{file.path}: its keys describe no possible model: {why}") from problem
    return config, architecture


def size_options(keys: Keys, architecture: Architecture) -> dict[str, Any]:
    """Sizes, and what else a key or a tensor says directly."""
    options = {name: keys.need(key) for key, name in COMMON.items()}
    heads = options["num_attention_heads"]
    names = {"attention.head_count_kv": "num_key_value_heads", **architecture.fields}
    options["num_key_value_heads"] = heads
    options |= {name: keys.get(key) for key, name in names.items() if key in keys.values}
    for key, name in {**COMMON, **names}.items():
        if isinstance(options.get(name), list):  # it differs between layers
            raise keys.error(key)
    tensors = keys.file.tensors
    options |= {name: tensor in tensors for name, tensor in architecture.flags.items()}
    rows = 0
    if "token_embd.weight" in tensors:
        rows = tensors["token_embd.weight"].shape[0]
    options["vocab_size"] = keys.get("vocab_size", rows)
    options["tie_word_embeddings"] = "output.weight" not in tensors
    options["head_dim"] = head_dim(keys, options)
    # those of transformers may be outside of this vocabulary
    return {**options, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}


def head_dim(keys: Keys, options: dict[str, Any]) -> int:
    """The numbers of a head's key, which are those of its value."""
    usual = options["hidden_size"] // options["num_attention_heads"]
    size = keys.get("attention.key_length", usual)
    if keys.get("attention.value_length", size) != size:
        raise keys.error("attention.value_length")
    return int(size)


def special_options(
    keys: Keys, architecture: Architecture, options: dict[str, Any]
) -> dict[str, Any]:
    """What single architectures say in their own way, as llama.cpp does."""
    kind = architecture.model_type
    if kind in ("gemma2", "gemma3_text"):
        # the largest model of each scales by the width of all heads
        scalar = options["head_dim"]
        if options["num_hidden_layers"] == {"gemma2": 46, "gemma3_text": 62}[kind]:
            scalar = options["hidden_size"] // options["num_attention_heads"]
        scale = keys.get("attention.scale") or scalar**-0.5
        scalar = round(scale**-2)
        if not math.isclose(scalar**-0.5, scale, rel_tol=1e-5):
            raise keys.error("attention.scale")
        return {"query_pre_attn_scalar": scalar}
    if kind == "stablelm":
        parallel = "blk.0.ffn_norm.weight" not in keys.file.tensors
        return {"use_parallel_residual": keys.get("use_parallel_residual", parallel)}
    if kind == "qwen3_moe":
        return {"norm_topk_prob": options.get("norm_topk_prob", True)}
    return {}


def window_options(
    keys: Keys, architecture: Architecture, options: dict[str, Any]
) -> dict[str, Any]:
    """The sliding window, and which layers have it."""
    if not architecture.windows:
        return {}
    window = keys.get("attention.sliding_window") or None
    if architecture.windows == "all" or window is None:
        return {"sliding_window": window}
    layers = options["num_hidden_layers"]
    usual = {"gemma2": 2, "gemma3_text": 6, "cohere2": 4}.get(architecture.model_type, layers + 1)
    pattern = keys.values.get("attention.sliding_window_pattern", usual)
    keys.unread.discard("attention.sliding_window_pattern")
    if isinstance(pattern, list):
        slides = [bool(item) for item in pattern]
    else:
        slides = [not pattern or (layer + 1) % pattern != 0 for layer in range(layers)]
    if len(slides) != layers:
        raise keys.error("attention.sliding_window_pattern")
    kinds = ["sliding_attention" if slide else "full_attention" for slide in slides]
    return {"sliding_window": window, "use_sliding_window": True, "layer_types": kinds}


def rope_options(keys: Keys, architecture: Architecture, options: dict[str, Any]) -> dict[str, Any]:
    """The rotary embedding: its base, its width, and how it is scaled."""
    size = options["head_dim"]
    width = keys.get("rope.dimension_count", size)
    if width > size or (width != size and not architecture.partial):
        raise keys.error("rope.dimension_count")
    original = keys.get("rope.scaling.original_context_length", options["max_position_embeddings"])
    rope = {"rope_theta": keys.get("rope.freq_base", 10000.0), **scaling(keys, original, width)}
    if architecture.partial:
        rope["partial_rotary_factor"] = width / size
    if architecture.model_type == "gemma3_text":
        local = {"rope_type": "default", "rope_theta": keys.get("rope.freq_base_swa", 10000.0)}
        return {"rope_parameters": {"full_attention": rope, "sliding_attention": local}}
    if rope["rope_type"] == "longrope":
        return {"rope_parameters": rope, "original_max_position_embeddings": original}
    return {"rope_parameters": rope}


def scaling(keys: Keys, original: int, width: int) -> dict[str, Any]:
    """transformers' parameters of scaled frequencies. original: tokens that the model was trained for
    before they were scaled. width: rotated numbers of a head."""
    kind = keys.get("rope.scaling.type", "linear")
    factor = keys.get("rope.scaling.factor", keys.get("rope.scale_linear")) or 1.0
    attention = keys.get("rope.scaling.attn_factor") or 1.0
    if kind not in ("none", "linear", "yarn", "longrope"):
        raise keys.error("rope.scaling.type")
    factors = [keys.file.numbers(name) for name in FACTORS if name in keys.file.tensors]
    if any(len(numbers) != width // 2 for numbers in factors):
        raise ValueError(
            f"{keys.file.path}: {', '.join(FACTORS)} must hold {width // 2} numbers. {INSTEAD}"
        )
    if kind == "none":
        factor = 1.0
    if factors and kind != "yarn":
        # divisors of the frequencies are what transformers' longrope has, for short and long texts
        return {
            "rope_type": "longrope",
            "short_factor": [factor * x for x in factors[0]],
            "long_factor": [factor * x for x in factors[-1]],
            "attention_factor": attention,
            "original_max_position_embeddings": original,
            "factor": 1.0,
        }
    if factors or kind == "longrope":
        raise keys.error("rope.scaling.type")
    if kind == "yarn":
        return yarn(keys, original, factor, attention)
    if attention != 1.0:
        raise keys.error("rope.scaling.attn_factor")
    if factor != 1.0:
        return {"rope_type": "linear", "factor": factor}
    return {"rope_type": "default"}


def yarn(keys: Keys, original: int, factor: float, attention: float) -> dict[str, Any]:
    scale = 0.1 * math.log(max(factor, 1.0))
    every = keys.get("rope.scaling.yarn_log_multiplier") or 0.0
    return {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": original,
        "attention_factor": attention * (1 + scale) / (1 + every * scale),
        "beta_fast": keys.get("rope.scaling.yarn_beta_fast", 32.0),
        "beta_slow": keys.get("rope.scaling.yarn_beta_slow", 1.0),
    }
