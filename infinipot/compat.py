"""Everything that depends on the version of transformers (supported: >= 5.17 and < 5.25)."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

import transformers
from packaging.version import Version
from transformers import (
    AttentionInterface,
    DynamicCache,
    PreTrainedModel,
)
from transformers.cache_utils import Cache, CacheLayerMixin, LinearAttentionLayer
from transformers.masking_utils import AttentionMaskInterface

OLDEST = "5.17.0"
TOO_NEW = "5.25.0"
NAME = "infinipot"

__all__ = [
    "NAME",
    "Cache",
    "CacheLayerMixin",
    "LinearAttentionLayer",
    "cache_argument",
    "check_version",
    "layer_kinds",
    "register",
    "trained_length",
]


def check_version() -> None:
    """Raise RuntimeError if this version of transformers is not supported."""
    version = Version(Version(transformers.__version__).base_version)
    if not Version(OLDEST) <= version < Version(TOO_NEW):
        raise RuntimeError(
            f"transformers {transformers.__version__} is not supported: infinipot needs "
            f">={OLDEST},<{TOO_NEW}. Try: pip install 'transformers>={OLDEST},<{TOO_NEW}'"
        )


def unwrapped(model: Any) -> Any:
    """The model inside the wrapper of torch.compile or of PEFT. Adapters work inside the model.
    Raises ValueError for learned prompts (PEFT), which stand before a text."""
    model = getattr(model, "_orig_mod", model)
    if not hasattr(model, "peft_config") or not hasattr(model, "get_base_model"):
        return model
    if getattr(model.active_peft_config, "is_prompt_learning", False):
        raise ValueError(
            f"{type(model).__name__} has a learned prompt ({model.active_peft_config.peft_type}), "
            "which a pot cannot hold: use an adapter of another kind, such as LoRA"
        )
    return unwrapped(model.get_base_model())


def cache_argument(model: PreTrainedModel) -> str:
    """The name of the cache in the model's forward: `cache` since 5.24, else `past_key_values`."""
    if "cache" in inspect.signature(type(model).forward).parameters:
        return "cache"
    return "past_key_values"


def register(attention: Callable[..., Any], mask: Callable[..., Any]) -> None:
    """Register the attention function and its mask function with transformers.

    The mask function is necessary: without it, transformers drops padding masks without a warning.
    """
    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, mask)


ATTENDS = {
    "DynamicLayer": True,
    "DynamicSlidingWindowLayer": True,
    "LinearAttentionAndFullAttentionLayer": True,
    "LinearAttentionAndSlidingWindowAttentionLayer": True,
    "LinearAttentionLayer": False,
    "DummyLayer": False,
}
"""transformers' class of cache layer -> whether the model's layer has attention."""


def layer_kinds(model: PreTrainedModel) -> tuple[list[int | None], list[int]]:
    """For each layer: the length of its sliding window, and the number of states it carries.

    The length is None for full attention, and 0 for a layer without attention. Raises ValueError
    for models that a pot cannot bound.
    """
    _check_text_config(model)
    windows: list[int | None] = []
    states: list[int] = []
    for number, layer in enumerate(DynamicCache(config=model.config).layers):
        name = type(layer).__name__
        if name not in ATTENDS:
            raise ValueError(
                f"layer {number} of {type(model).__name__} keeps its entries in a {name}, which a "
                "pot cannot bound: use a model with full or sliding-window attention, or with "
                "recurrent states"
            )
        windows.append(getattr(layer, "sliding_window", None) if ATTENDS[name] else 0)
        states.append(getattr(layer, "number_of_states", 0))
    if not any(window != 0 for window in windows):
        raise ValueError(
            f"{type(model).__name__} keeps no entries, only recurrent states, so a pot has nothing "
            "to bound: use the model without a pot"
        )
    return windows, states


def trained_length(model: PreTrainedModel) -> int | None:
    """The longest text, in tokens, that the model was made for; None if its config does not say.

    Scaled rotary embeddings reach further than `max_position_embeddings`, if their factor says so.
    """
    config = model.config.get_text_config()
    length = getattr(config, "max_position_embeddings", None)
    if not isinstance(length, int):
        return None
    parameters = getattr(config, "rope_parameters", None) or {}
    tables = [parameters, *(table for table in parameters.values() if isinstance(table, dict))]
    reach = [
        (table.get("original_max_position_embeddings") or length) * table["factor"]
        for table in tables
        if table.get("factor")
    ]
    return int(max(length, *reach, 0))


def _check_text_config(model: PreTrainedModel) -> None:
    """Refuse kinds of attention that the entries alone cannot reproduce."""
    config = model.config.get_text_config()
    if getattr(config, "attention_chunk_size", None):
        raise ValueError(
            f"{type(model).__name__} attends within fixed chunks of the text. A pot does not keep "
            "the borders of these chunks, so it cannot run this model: use another model"
        )
    if getattr(config, "num_kv_shared_layers", 0):
        raise ValueError(
            f"some layers of {type(model).__name__} use the entries of other layers. Each layer of "
            "a pot keeps its own selection, so it cannot run this model: use another model"
        )


def streamer_given() -> Any:
    """The `streamer` of the call of `generate` that called the caller; None without one.

    transformers hands it to its own decoding loops only. From a `custom_generate` it keeps it back,
    without a word, so it is taken from the variables of `generate`.
    """
    frame = sys._getframe(2)
    if frame.f_code.co_name == "generate":
        return frame.f_locals.get("streamer")
    return None
