"""Attention as the pot needs it: queries rotated by slot, the catalyst's rows handed to whoever
observes them.

transformers calls `attend` through its attention interface. What happens there is decided by
whoever is at work in this thread: a pot being read, or the probe that finds out how a model
rotates. Outside `at_work` a model is exactly as it was; a stock forward of the same model must not
run beside it in another thread.
"""

from __future__ import annotations

import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.bias import causal_lower_right
from transformers import PreTrainedModel

from infinipot import compat
from infinipot.model.rope_bypass import bypassed, neutral


class Worker(ABC):
    """Who decides what attention does while a model runs."""

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
        """What a rotary module returns instead of `output`; None leaves it. Queries and keys are
        rotated in `attend`, not by the model."""
        return neutral(output)


_WORKER: ContextVar[Worker] = ContextVar("infinipot_worker")
IN_USE = threading.RLock()
"""Held by the thread that runs a model, looks at its modules, or exchanges one: no other thread may
see it half changed."""


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **options: Any,
) -> tuple[Tensor, None]:
    if attention_mask is not None:  # ours is None, so this one is the module's own doing
        raise ValueError(
            f"{type(module).__name__} makes an attention mask of its own, which a pot cannot follow"
        )
    if scaling is None:
        scaling = query.shape[-1] ** -0.5
    else:
        scaling = scaling
    return _WORKER.get().attend(module, query, key, value, scaling, options), None


def _no_mask(*args: Any, **kwargs: Any) -> None:
    """Masks are made where the slots are known, in `attend`."""


compat.register(_attention, _no_mask)


_ROTARY: WeakKeyDictionary[PreTrainedModel, list[nn.Module]] = WeakKeyDictionary()


def rotary_modules(model: PreTrainedModel) -> list[nn.Module]:
    """The model's rotary modules, looked for once: there are thousands of modules to look at, and a
    token is read in milliseconds."""
    if model not in _ROTARY:
        _ROTARY[model] = [
            module for module in model.modules() if "RotaryEmbedding" in type(module).__name__
        ]
    return _ROTARY[model]


@contextmanager
def at_work(model: PreTrainedModel, worker: Worker) -> Iterator[None]:
    """Inside, the model's attention and rotary modules ask `worker`, nothing is dropped out and
    nothing is autocast; afterwards the model is as before, also after an error. One model does one
    thing at a time: other threads wait."""
    with IN_USE, torch.autocast(model.device.type, enabled=False), bypassed(model):
        configs = [
            model.config,
            *(getattr(model.config, name, None) for name in model.config.sub_configs),
        ]
        before = [(config, config._attn_implementation) for config in configs if config is not None]
        if model.training:
            training = [module for module in model.modules() if module.training]
        else:
            training = []
        hooks = [
            module.register_forward_hook(worker.rotary, with_kwargs=True)
            for module in rotary_modules(model)
        ]
        token = _WORKER.set(worker)
        model.config._attn_implementation = compat.NAME
        try:
            for module in training:
                module.training = False
            yield
        finally:
            for config, implementation in before:
                config._attn_implementation = implementation
            _WORKER.reset(token)
            for hook in hooks:
                hook.remove()
            for module in training:
                module.training = True


def visible(
    rows: int,
    entries: int,
    window: int | None,
    hidden: tuple[int, int],
    device: torch.device,
    dtype: torch.dtype,
    plain: bool = False,
) -> Tensor | None:
    """What is added to the scores of the last `rows` of the entries so that they see none but those
    before, [rows, entries].

    hidden: entries [start, stop) that they do not see either. None where nothing is hidden: one row
    sees all. plain: for sdpa, whose flag says it where the rows are all there is; on a GPU in half
    precision it is then only described, so that the flash kernel is used, which needs no mask.
    """
    if window is None and hidden[0] >= hidden[1]:
        if rows == 1 or (plain and rows == entries):
            return None
        if plain and device.type == "cuda" and dtype in (torch.float16, torch.bfloat16):
            return causal_lower_right(rows, entries)
    shown = torch.ones(rows, entries, dtype=torch.bool, device=device).tril(entries - rows)
    if window is None:
        shown = shown
    else:
        shown = shown.triu(entries - rows - window + 1)
    shown[:, slice(*hidden)] = False
    return torch.zeros(rows, entries, dtype=dtype, device=device).masked_fill(~shown, -torch.inf)


def plain(options: dict[str, Any]) -> bool:
    """Whether sdpa can express the layer: no capped scores, no sinks."""
    return options.get("softcap") is None and options.get("s_aux") is None


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scaling: float,
    mask: Tensor | None,
    options: dict[str, Any],
) -> Tensor:
    """Causal attention of the last T of N entries, as the model computes it: [B, H, T, D], [B, K,
    N, D] -> [B, T, H, D].

    mask: from `visible`. sdpa wherever it can express the model; the model's own eager function
    where scores are capped or sinks take a share.
    """
    rows = query.shape[-2]
    if plain(options):
        # no kernel for both: the slow one would take over
        if type(mask) is Tensor and query.is_cuda and query.shape[1] != key.shape[1]:
            key, value = (
                x.repeat_interleave(query.shape[1] // x.shape[1], dim=1) for x in (key, value)
            )
        out = F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=mask,
            scale=scaling,
            is_causal=mask is None and rows > 1,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        return out.transpose(1, 2).contiguous()
    if mask is None:
        bias = None
    else:
        bias = mask[None, None]
    return eager_of(module)(
        module, query, key, value, bias, scaling=scaling, dropout=0.0, **options
    )[0]


def eager_of(module: nn.Module) -> Any:
    """The eager attention function of the file that defines the module's class."""
    for cls in type(module).__mro__:
        function = getattr(sys.modules[cls.__module__], "eager_attention_forward", None)
        if function is not None:
            return function
    raise ValueError(
        f"{type(module).__name__} caps its scores or has sinks, but its file has no eager attention function to call"
    )
