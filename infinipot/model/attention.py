"""Attention as the pot needs it: queries rotate by slot, and observers see the catalyst's rows.

transformers calls `attend` through its attention interface. The worker of this thread decides what
happens there: a forward pass over a pot, or the probe that finds out how a model rotates. Outside
`at_work` a model is unchanged. No stock forward of the same model may run in another thread
meanwhile.
"""

from __future__ import annotations

import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.bias import causal_lower_right
from transformers import PreTrainedModel

from infinipot import compat
from infinipot.cache.at_work import AT_WORK
from infinipot.model.rope_bypass import bypassed, neutral


class Worker(ABC):
    """Decides what attention does while a model runs."""

    @abstractmethod
    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scaling: float,
        options: dict[str, Any],
    ) -> Tensor:
        """query [B, H, T, D], key and value [B, K, N, D] -> [B, T, H, D]."""

    def rotary(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> Any:
        """The return value of a rotary module; None: `output`. Queries and keys are rotated in
        `attend`, not by the model."""
        return neutral(output)


_WORKER: ContextVar[Worker] = ContextVar("infinipot_worker")
IN_USE = threading.RLock()
"""Lock for running a model, and for inspecting or replacing its modules."""


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    **options: Any,
) -> tuple[Tensor, None]:
    """The function that transformers calls. dropout: never used; by its place, as kvpress gives it."""
    if attention_mask is not None:  # not made by `_no_mask`, so by the module
        raise ValueError(
            f"{type(module).__name__} makes an attention mask of its own, which a pot cannot follow"
        )
    scaling = options.pop("scaling", None)
    if scaling is None:
        scaling = query.shape[-1] ** -0.5
    return _WORKER.get().attend(module, query, key, value, scaling, options), None


def _no_mask(*args: Any, **kwargs: Any) -> None:
    """No mask: `attend` makes it, where the slots are known."""


compat.register(_attention, _no_mask)


_ROTARY: WeakKeyDictionary[PreTrainedModel, list[nn.Module]] = WeakKeyDictionary()


def rotary_modules(model: PreTrainedModel) -> list[nn.Module]:
    """The model's rotary modules, found once: a model has thousands of modules, and reading a token
    takes milliseconds."""
    if model not in _ROTARY:
        _ROTARY[model] = [
            module for module in model.modules() if "RotaryEmbedding" in type(module).__name__
        ]
    return _ROTARY[model]


@contextmanager
def at_work(model: PreTrainedModel, worker: Worker) -> Iterator[None]:
    """Inside, the model's attention and rotary modules call `worker`, without dropout and autocast.
    Afterwards the model is as before, also after an error. Other threads wait."""
    with IN_USE, torch.autocast(model.device.type, enabled=False), bypassed(model):
        configs = [
            model.config,
            *(getattr(model.config, name, None) for name in model.config.sub_configs),
        ]
        before = [(config, config._attn_implementation) for config in configs if config is not None]
        training = []
        if model.training:
            training = [module for module in model.modules() if module.training]
        hooks = [
            module.register_forward_hook(worker.rotary, with_kwargs=True)
            for module in rotary_modules(model)
        ]
        token = _WORKER.set(worker)
        reading = AT_WORK.set(True)
        model.config._attn_implementation = compat.NAME
        try:
            for module in training:
                module.training = False
            yield
        finally:
            for config, implementation in before:
                config._attn_implementation = implementation
            _WORKER.reset(token)
            AT_WORK.reset(reading)
            for hook in hooks:
                hook.remove()
            for module in training:
                module.training = True


BLOCK_ROWS = 256
"""Rows of a mask for which a CPU computes attention at a time."""


class Visible(NamedTuple):
    """What the last `rows` of the entries attend to: all entries before them, except:

    window: entries at this distance or more, for a sliding window. hidden: entries [start, stop).
    plain: whether sdpa can express the layer.
    """

    rows: int
    entries: int
    window: int | None
    hidden: tuple[int, int]
    device: torch.device
    dtype: torch.dtype
    plain: bool


def visible(what: Visible) -> Tensor | None:
    """An additive mask [rows, entries].

    None if nothing is hidden, or if `is_causal` of sdpa says it. In half precision on a GPU only a
    description of the mask, so that sdpa can use the flash kernel.
    """
    rows = what.rows
    entries = what.entries
    if what.window is None and what.hidden[0] >= what.hidden[1]:
        if rows == 1 or (what.plain and rows == entries):
            return None
        half = what.dtype in (torch.float16, torch.bfloat16)
        if what.plain and what.device.type == "cuda" and half:
            return causal_lower_right(rows, entries)
    shown = torch.ones(rows, entries, dtype=torch.bool, device=what.device).tril(entries - rows)
    if what.window is not None:
        shown = shown.triu(entries - rows - what.window + 1)
    shown[:, slice(*what.hidden)] = False
    mask = torch.zeros(rows, entries, dtype=what.dtype, device=what.device)
    return mask.masked_fill(~shown, -torch.inf)


def plain(options: dict[str, Any]) -> bool:
    """Whether sdpa can express the layer: no capped scores, no sinks."""
    return options.get("softcap") is None and options.get("s_aux") is None


def attention(
    module: nn.Module,
    qkv: tuple[Tensor, Tensor, Tensor],
    scaling: float,
    mask: Tensor | None,
    options: dict[str, Any],
) -> Tensor:
    """Causal attention of the last T of N entries: [B, H, T, D], [B, K, N, D] twice -> [B, T, H, D].

    mask: from `visible`. Uses sdpa if it can express the layer, else the model's own eager function
    (capped scores, attention sinks).
    """
    query, key, value = qkv
    shared = query.shape[1] != key.shape[1]
    if plain(options):
        # with a mask and shared heads, sdpa has only a slow kernel
        if shared and type(mask) is Tensor and query.is_cuda:
            repeats = query.shape[1] // key.shape[1]
            key = key.repeat_interleave(repeats, dim=1)
            value = value.repeat_interleave(repeats, dim=1)
            shared = False
        how: dict[str, Any] = {"scale": scaling, "enable_gqa": shared}
        if shared and mask is None and query.shape[-2] == 1 and query.device.type == "cpu":
            out = of_one_token(qkv, scaling)
        elif type(mask) is Tensor and not query.is_cuda:
            out = in_blocks(qkv, mask, how)
        else:
            causal = mask is None and query.shape[-2] > 1
            out = F.scaled_dot_product_attention(
                query, key, value, attn_mask=mask, is_causal=causal, **how
            )
        return out.transpose(1, 2).contiguous()
    eager = eager_of(module)
    if mask is not None:
        mask = mask[None, None]
    return eager(module, query, key, value, mask, scaling=scaling, dropout=0.0, **options)[0]


def of_one_token(qkv: tuple[Tensor, Tensor, Tensor], scaling: float) -> Tensor:
    """Attention of one token [B, H, 1, D] to all entries [B, K, N, D], with heads that share entries as
    rows of one head: a CPU takes half of the time in float32, and less than a tenth in bfloat16."""
    query, key, value = qkv
    rows = query.reshape(query.shape[0], key.shape[1], -1, query.shape[-1])
    out = F.scaled_dot_product_attention(rows, key, value, scale=scaling)
    return out.reshape(*query.shape[:-1], value.shape[-1])


def in_blocks(qkv: tuple[Tensor, Tensor, Tensor], mask: Tensor, how: dict[str, Any]) -> Tensor:
    """sdpa with a mask [T, N] that hides later entries, [B, H, T, D]: a block of rows at a time, each
    without the entries behind it, which a CPU would compute and drop. how: options of sdpa."""
    query, key, value = qkv
    rows, entries = mask.shape
    outputs = []
    for start in range(0, rows, BLOCK_ROWS):
        own = slice(start, start + BLOCK_ROWS)
        stop = min(entries, entries - rows + own.stop)
        outputs.append(
            F.scaled_dot_product_attention(
                query[:, :, own],
                key[:, :, :stop],
                value[:, :, :stop],
                attn_mask=mask[own, :stop],
                **how,
            )
        )
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=2)


def eager_of(module: nn.Module) -> Any:
    """The eager attention function of the file that defines the module's class."""
    for cls in type(module).__mro__:
        function = getattr(sys.modules[cls.__module__], "eager_attention_forward", None)
        if function is not None:
            return function
    raise ValueError(
        f"{type(module).__name__} caps its scores or has sinks, but its file has no eager attention function to call"
    )
