"""What the ranks tell each other while they compute."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def group_of(weight: Any) -> dist.ProcessGroup:
    """The ranks among which a weight (DTensor) is shared out."""
    mesh = weight.device_mesh
    group: dist.ProcessGroup
    if mesh.ndim == 1:
        group = mesh.get_group()
    else:
        group = mesh.get_group("tp")
    return group


def parts_of(x: Tensor, group: dist.ProcessGroup) -> list[Tensor]:
    """The tensors of all ranks, of one shape. CUDA graphs can record it."""
    x = x.contiguous()
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, x, group=group)
    return parts
