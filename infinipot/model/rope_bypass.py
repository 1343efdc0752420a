"""Disable a model's own rotary embedding during reading, as `attend` rotates queries and keys by
slot.

The rotary module returns marked tensors: cosines of 1 and sines of 0. With these,
`apply_rotary_pos_emb(q, k, cos, sin)` returns q and k without computation. All other operations of a
model work on them as on ordinary tensors.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

NAME = "apply_rotary_pos_emb"
"""Name of the function that rotates queries and keys, in the modeling files of transformers."""
ARGUMENTS = ["q", "k", "cos", "sin"]
"""The first parameters of such a function. A function with other parameters is not replaced."""


def neutral(output: Any) -> Any:
    """A rotation by 0, in the form of the rotary module's own output."""
    if not isinstance(output, tuple):
        return torch.ones_like(output)  # complex: e^(i0)
    cos, sin, *rest = output
    return (_marked(torch.ones_like(cos)), _marked(torch.zeros_like(sin)), *rest)


def _marked(constant: Tensor) -> Tensor:
    # tensors computed from it do not have the mark
    constant.is_neutral = True  # type: ignore[attr-defined]
    return constant


@functools.cache
def bypass(function: Callable[..., Any]) -> Callable[..., Any]:
    """A replacement for `function` that returns q and k unchanged for the cos and sin of `neutral`.

    The first such call runs `function`. If that changes q or k, for example by a permutation, every
    later call runs it, too. The cos and sin of another model in another thread have no mark, so
    `function` handles them.
    """
    changes_nothing: bool | None = None

    @functools.wraps(function)
    def rotate(q: Any, k: Any, cos: Any, sin: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal changes_nothing
        if changes_nothing is False or not (
            hasattr(cos, "is_neutral") and hasattr(sin, "is_neutral")
        ):
            return function(q, k, cos, sin, *args, **kwargs)
        if changes_nothing is None:
            output = function(q, k, cos, sin, *args, **kwargs)
            changes_nothing = all(
                torch.equal(x.to(y.dtype), y) for x, y in zip(output, (q, k), strict=True)
            )
            return output
        return q, k

    return rotate


_NAMESPACES: WeakKeyDictionary[nn.Module, list[dict[str, Any]]] = WeakKeyDictionary()


def namespaces(model: nn.Module) -> list[dict[str, Any]]:
    """The globals of the model's modeling files that have a replaceable function. Cached."""
    if model not in _NAMESPACES:
        files = {
            cls.__module__
            for kind in {type(module) for module in model.modules()}
            for cls in kind.__mro__
        }
        globals_of = [vars(sys.modules[name]) for name in sorted(files) if name in sys.modules]
        _NAMESPACES[model] = [
            names for names in globals_of if NAME in names and _replaceable(names[NAME])
        ]
    return _NAMESPACES[model]


def _replaceable(function: Any) -> bool:
    parameters = list(inspect.signature(function).parameters.values())[: len(ARGUMENTS)]
    return [p.name for p in parameters if p.default is p.empty] == ARGUMENTS


@contextmanager
def bypassed(model: nn.Module) -> Iterator[None]:
    """Replace the model's functions for rotary embedding inside the context. No other thread may
    replace them meanwhile."""
    before = [(names, names[NAME]) for names in namespaces(model)]
    try:
        for names, function in before:
            names[NAME] = bypass(function)
        yield
    finally:
        for names, function in before:
            names[NAME] = function
