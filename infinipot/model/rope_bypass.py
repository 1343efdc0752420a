"""Take a model's own rotary embedding out of its way: while a pot is read, `attend` rotates queries
and keys by slot.

The rotary module then returns cosines of 1 and sines of 0. A model's `apply_rotary_pos_emb(q, k,
cos, sin)` that gets these returns q and k without computing anything; whatever else a model does
with them computes with ordinary tensors.
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
"""What transformers' modeling files call the function that rotates queries and keys."""
ARGUMENTS = ["q", "k", "cos", "sin"]
"""The first parameters of such a function that can be replaced; a file whose function has others
keeps its own."""


def neutral(output: Any) -> Any:
    """A rotation that changes nothing, in the form of the rotary module's own output."""
    if not isinstance(output, tuple):
        return torch.ones_like(output)  # complex: e^(i0)
    cos, sin, *rest = output
    return (_marked(torch.ones_like(cos)), _marked(torch.zeros_like(sin)), *rest)


def _marked(constant: Tensor) -> Tensor:
    constant.is_neutral = True  # type: ignore[attr-defined]  # lost in whatever is computed from it, which is then computed with
    return constant


@functools.cache
def bypass(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that does what `function` does, but returns q and k as they are for the cos and
    sin of `neutral`.

    The first such call asks `function` itself. If that does anything else to q and k, a
    permutation, say, it is called ever after. Cos and sin of another model, which may run in
    another thread, are not marked, so they are always given to `function`.
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
    """The globals of the files that define the model's modules and have a function that can be
    replaced; looked for once."""
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
    """Inside, the model's functions for rotary embedding do nothing when they are told so. Only
    while no other thread exchanges them."""
    before = [(names, names[NAME]) for names in namespaces(model)]
    try:
        for names, function in before:
            names[NAME] = bypass(function)
        yield
    finally:
        for names, function in before:
            names[NAME] = function
