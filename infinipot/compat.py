"""The only file that knows one version of transformers from another (supported: 5.17 up to, not
including, 5.25)."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import transformers
from packaging.version import Version
from transformers import AttentionInterface, DynamicCache, PreTrainedModel
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
]


def check_version() -> None:
    if (
        not Version(OLDEST)
        <= Version(Version(transformers.__version__).base_version)
        < Version(TOO_NEW)
    ):
        raise RuntimeError(
            f"transformers {transformers.__version__} is not supported: infinipot is tested with {OLDEST} up to {TOO_NEW}, which is not "
            f"included. Try: pip install 'transformers>={OLDEST},<{TOO_NEW}'"
        )


def cache_argument(model: PreTrainedModel) -> str:
    """What the model's forward calls its cache: `cache` from 5.24 on, `past_key_values` before."""
    if "cache" in inspect.signature(type(model).forward).parameters:
        return "cache"
    return "past_key_values"


def register(attention: Callable[..., Any], mask: Callable[..., Any]) -> None:
    """Make the attention function selectable. A name without a mask function would silently drop
    padding masks."""
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
"""Whether a layer has attention, by the cache layer that transformers gives it."""


def layer_kinds(model: PreTrainedModel) -> tuple[list[int | None], list[int]]:
    """Per layer the length of its sliding window (None: full attention, 0: none at all), and how
    many states it carries. Refuses others."""
    if getattr(model.config.get_text_config(), "attention_chunk_size", None):
        raise ValueError(
            f"{type(model).__name__} attends within fixed chunks of the text, whose borders are lost with its positions: no pot"
        )
    if getattr(model.config.get_text_config(), "num_kv_shared_layers", 0):
        raise ValueError(
            f"in {type(model).__name__} some layers attend to the entries of other layers, which may keep others: no pot"
        )
    windows: list[int | None] = []
    states: list[int] = []
    for number, layer in enumerate(DynamicCache(config=model.config).layers):
        name = type(layer).__name__
        if name not in ATTENDS:
            raise ValueError(
                f"layer {number} of {type(model).__name__} keeps its entries in a {name}, which a pot cannot bound: "
                "use a model whose layers are full or sliding-window attention, or carry a state"
            )
        windows.append(getattr(layer, "sliding_window", None) if ATTENDS[name] else 0)
        states.append(getattr(layer, "number_of_states", 0))
    if not any(window != 0 for window in windows):
        raise ValueError(
            f"{type(model).__name__} keeps no entries in transformers' cache, only states: there is nothing a pot could bound"
        )
    return windows, states
