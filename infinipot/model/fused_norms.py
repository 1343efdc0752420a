"""RMS norms as one kernel on a GPU. A trial finds the formula of each norm."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from infinipot.kernels import launch

KINDS = (0, 1, 2)
Norm = tuple[nn.Module, float, int]
"""A module, its epsilon, and the kind of its formula."""


def rms_norm(x: Tensor, weight: Tensor, eps: float, kind: int) -> Tensor:
    """x [..., D] divided by its root mean square, in float32. kind 0: rounded to x's type, then times the
    weight (Llama, Qwen); 1: times the weight in float32 (OLMo-2, gpt-oss); 2: times one more than
    the weight (Gemma)."""
    normed = x.float() * torch.rsqrt(x.float().pow(2).mean(dim=-1, keepdim=True) + eps)
    if kind == 0:
        return weight * normed.to(x.dtype)
    return (normed * (weight.float() + (kind == 2))).to(x.dtype)


@torch.no_grad()
def find_norms(model: nn.Module) -> list[Norm]:
    """The model's norms that equal one of the formulas on random rows, to the last bit. Empty if no
    kernel supports them."""
    norms: list[Norm] = []
    for module in model.modules():
        weight = getattr(module, "weight", None)
        eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
        if (
            "RMSNorm" not in type(module).__name__
            or not isinstance(weight, nn.Parameter)
            or not isinstance(eps, float)
        ):
            continue
        if (
            weight.dim() != 1
            or not launch.fits(weight.data)
            or "forward" in module.__dict__
            or module._forward_hooks
        ):
            continue
        x = 3 * torch.randn(8, len(weight), dtype=weight.dtype, device=weight.device)
        normed = module(x)
        kinds = [kind for kind in KINDS if torch.equal(rms_norm(x, weight, eps, kind), normed)]
        if kinds:
            norms.append((module, eps, kinds[0]))
    return norms


@contextmanager
def fused(norms: list[Norm]) -> Iterator[None]:
    """Run each of these modules as one kernel inside the context."""
    try:
        for module, eps, kind in norms:
            kernel = partial(launch.rms_norm, weight=module.weight, eps=eps, kind=kind)  # type: ignore[arg-type]
            module.forward = kernel  # type: ignore[method-assign]
        yield
    finally:
        for module, *_ in norms:
            module.__dict__.pop("forward", None)
