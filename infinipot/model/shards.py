"""A model that is shared out over processes by transformers' own plan (tensor parallelism): each has
some heads of every layer, and a part of every large weight."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.distributed import DistributedConfig

from infinipot.model.head import part_of
from infinipot.model.pretrained import load_pretrained
from infinipot.parallel.collectives import group_of, parts_of


class Shards:
    """What this process has of a model. In one process all functions return what they get."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.count = 1
        self.rank = 0
        self.group: dist.ProcessGroup | None = None
        shared = [weight for weight in model.parameters() if hasattr(weight, "device_mesh")]
        if shared:
            self.group = group_of(shared[0])
            self.count = dist.get_world_size(self.group)
            self.rank = dist.get_rank(self.group)

    def parts(self, x: Tensor) -> list[Tensor]:
        """The tensors of all ranks, of one shape."""
        if self.group is None:
            return [x]
        return parts_of(x, self.group)

    def whole(self, x: Tensor, dim: int) -> Tensor:
        """The tensors of all ranks, one after the other along a dimension."""
        if self.count == 1:
            return x
        return torch.cat(self.parts(x), dim=dim)

    def own(self, x: Tensor, dim: int) -> Tensor:
        """This rank's part of a tensor that has those of all ranks along a dimension."""
        if self.count == 1:
            return x
        return x.chunk(self.count, dim=dim)[self.rank].contiguous()

    def mean(self, x: Tensor) -> Tensor:
        """The mean over all ranks, of tensors of one shape."""
        if self.count == 1:
            return x
        return torch.stack(self.parts(x)).mean(dim=0)


def load_shards(source: Path | str, dtype: torch.dtype) -> PreTrainedModel:
    """This rank's part of a model. source: a folder or a Hub id."""
    model, _ = load_pretrained(source, dtype, distributed_config=DistributedConfig(tp_plan="auto"))
    return served(model)


def served(model: PreTrainedModel) -> PreTrainedModel:
    """The model in eval mode, with an embedding whose lookup can be recorded."""
    table: Any = model.get_input_embeddings()
    if hasattr(table.weight, "device_mesh"):
        table.forward = ShardedLookup(table)
    return model.eval()


class ShardedLookup:
    """The forward of an embedding [V, hidden] of which each rank has some rows: tied to an output
    layer that is shared out."""

    def __init__(self, table: nn.Embedding) -> None:
        self.table = (table,)  # in a tuple: not a part of the module
        self.group = group_of(table.weight)
        self.scale = getattr(table, "embed_scale", None)

    def __call__(self, ids: Tensor) -> Tensor:
        """ids [B, T] -> [B, T, hidden]."""
        weight = part_of(self.table[0].weight)
        place = ids - dist.get_rank(self.group) * len(weight)
        inside = (place >= 0) & (place < len(weight))
        rows = F.embedding(place.clamp(0, len(weight) - 1), weight)
        rows = rows.masked_fill(~inside[..., None], 0)
        dist.all_reduce(rows, group=self.group)
        if self.scale is None:
            return rows
        return rows * self.scale.to(rows.dtype)
