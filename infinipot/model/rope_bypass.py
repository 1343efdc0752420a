"""The rotation that does nothing, done by doing nothing.

While a pot is read, a model's own rotary embedding must leave queries and keys as they are: its cosines are 1, its sines 0. As tensors of
these kinds they cost no multiplication: what is multiplied by one is returned, what is multiplied by zero is zero, what zero is added to is
returned. In any other computation they are the ordinary tensors they stand for.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

VIEWS = {"unsqueeze", "squeeze", "__getitem__", "to", "float", "expand"}
"""What a tensor of equal elements is still a tensor of equal elements after."""


def _ordinary(x: Any) -> Any:
    if isinstance(x, _Constant):
        return x.as_subclass(Tensor)
    return type(x)(_ordinary(item) for item in x) if isinstance(x, (list, tuple)) else x


def _covers(x: Any, constant: Tensor) -> bool:
    """Whether x has the shape and the dtype that x * constant has; a narrower float than the constant's is left as it is, too."""
    if type(x) is not Tensor or x.device != constant.device or not x.is_floating_point():
        return False
    return x.dim() >= constant.dim() and all(b in (1, a) for a, b in zip(reversed(x.shape), reversed(constant.shape), strict=False))


class _Constant(Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in ("mul", "__mul__", "__rmul__", "add", "__add__", "__radd__") and len(args) == 2 and not kwargs:
            constant, other = args if isinstance(args[0], _Constant) else args[::-1]
            if _covers(other, constant) and (result := constant.meet(other, "mul" in name)) is not None:
                return result
        out = func(*_ordinary(args), **{key: _ordinary(value) for key, value in (kwargs or {}).items()})
        if name in VIEWS and isinstance(args[0], cls) and isinstance(out, Tensor):
            return out.as_subclass(cls)
        return out

    def meet(self, other: Tensor, product: bool) -> Tensor | None:
        """other * self, or other + self; None where that must be computed."""
        return None


class One(_Constant):
    """All elements are 1."""

    def meet(self, other: Tensor, product: bool) -> Tensor | None:
        return other if product else None


class Zero(_Constant):
    """All elements are 0."""

    def meet(self, other: Tensor, product: bool) -> Tensor | None:
        if not product:
            return other
        return self.as_subclass(Tensor).as_strided(other.shape, (0,) * other.dim()).as_subclass(Zero)


def identity(output: Any) -> Any:
    """The rotation that does nothing, in the form the rotary module's own output has."""
    if not isinstance(output, tuple):
        return torch.ones_like(output)  # complex: e^(i0)
    cos, sin, *rest = output
    if cos.device.type == "cpu" and cos.shape[-2] == 1:  # one token: multiplying costs less than not to
        return (torch.ones_like(cos), torch.zeros_like(sin), *rest)
    return (torch.ones_like(cos).as_subclass(One), torch.zeros_like(sin).as_subclass(Zero), *rest)
