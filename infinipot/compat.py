"""The only file that knows one version of transformers from another (supported: 5.17 up to, not including, 5.25)."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import transformers
from packaging.version import Version
from transformers import AttentionInterface, DynamicCache, PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicLayer, DynamicSlidingWindowLayer
from transformers.masking_utils import AttentionMaskInterface

OLDEST, TOO_NEW = "5.17.0", "5.25.0"
NAME = "infinipot"

__all__ = ["NAME", "Cache", "CacheLayerMixin", "cache_argument", "check_version", "layer_windows", "register"]


def check_version() -> None:
    if not Version(OLDEST) <= Version(Version(transformers.__version__).base_version) < Version(TOO_NEW):
        raise RuntimeError(
            f"transformers {transformers.__version__} is not supported: infinipot is tested with {OLDEST} up to {TOO_NEW}, which is not "
            f"included. Try: pip install 'transformers>={OLDEST},<{TOO_NEW}'"
        )


def cache_argument(model: PreTrainedModel) -> str:
    """What the model's forward calls its cache: `cache` from 5.24 on, `past_key_values` before."""
    return "cache" if "cache" in inspect.signature(type(model).forward).parameters else "past_key_values"


def register(attention: Callable[..., Any], mask: Callable[..., Any]) -> None:
    """Make the attention function selectable. A name without a mask function would silently drop padding masks."""
    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, mask)


def layer_windows(model: PreTrainedModel) -> list[int | None]:
    """Per layer the length of its sliding window, None for full attention. Refuses layers of any other kind."""
    windows: list[int | None] = []
    for number, layer in enumerate(DynamicCache(config=model.config).layers):
        if type(layer) is DynamicSlidingWindowLayer:
            windows.append(int(layer.sliding_window))
        elif type(layer) is DynamicLayer:
            windows.append(None)
        else:
            raise ValueError(
                f"layer {number} of {type(model).__name__} keeps its state in a {type(layer).__name__}, which a pot cannot bound: "
                "use a model whose layers are full or sliding-window attention"
            )
    return windows
