"""A model that is shared out over processes by transformers' own plan (tensor parallelism): each has
some heads of every layer, and a part of every large weight."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoConfig, PreTrainedModel

from infinipot.model.head import part_of
from infinipot.parallel.collectives import parts_of


class Shards:
    """What this process has of a model. In one process all functions return what they get."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.count = 1
        self.rank = 0
        if is_shared_out(model):
            self.count = dist.get_world_size()
            self.rank = dist.get_rank()

    def parts(self, x: Tensor) -> list[Tensor]:
        """The tensors of all ranks, of one shape."""
        return parts_of(x)

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


def is_shared_out(model: nn.Module) -> bool:
    """Whether this process has only a part of the weights."""
    return any(hasattr(weight, "device_mesh") for weight in model.parameters())


def check_shareable(source: Path | str, count: int, device: torch.device) -> None:
    """Raise ValueError for a model that cannot be shared out over so many processes, or for too few
    GPUs. source: a folder or a Hub id."""
    if isinstance(source, Path) and source.is_file():
        raise ValueError(
            f"cannot share out {source} over {count} processes: that is for folders and Hub ids. "
            "Leave tensor_parallel out, or take the model that the file was made of"
        )
    config = AutoConfig.from_pretrained(source, trust_remote_code=False)
    check_config(str(source), config, count, device)


def check_config(name: str, config: Any, count: int, device: torch.device) -> None:
    """As `check_shareable`, for a model's config."""
    gpus = torch.cuda.device_count()
    if device.type not in ("cuda", "cpu"):
        raise ValueError(f"tensor_parallel works on cuda and cpu, not on {device.type}")
    if device.type == "cuda" and count > gpus:
        raise ValueError(f"tensor_parallel={count} needs {count} GPUs, and torch finds {gpus} here")
    if not getattr(config, "base_model_tp_plan", None):
        raise ValueError(
            f"cannot share out {name}: transformers has no plan for models of the type "
            f"{config.model_type!r}. Leave tensor_parallel out"
        )
    text = config.get_text_config()
    heads = text.num_attention_heads
    entries = getattr(text, "num_key_value_heads", None) or heads
    for what, number in (("KV heads", entries), ("query heads", heads), ("ids", text.vocab_size)):
        if number % count:
            raise ValueError(
                f"cannot share out {name} over {count} processes: it has {number} {what}. "
                f"Give a tensor_parallel that divides {entries}"
            )


def load_shards(source: Path | str, dtype: torch.dtype) -> PreTrainedModel:
    """This rank's part of a model. source: a folder or a Hub id."""
    from infinipot.model.pretrained import load_pretrained

    model, _ = load_pretrained(source, dtype, shared_out=True)
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
        self.scale = getattr(table, "embed_scale", None)

    def __call__(self, ids: Tensor) -> Tensor:
        """ids [B, T] -> [B, T, hidden]."""
        weight = part_of(self.table[0].weight)
        place = ids - dist.get_rank() * len(weight)
        inside = (place >= 0) & (place < len(weight))
        rows = F.embedding(place.clamp(0, len(weight) - 1), weight)
        rows = rows.masked_fill(~inside[..., None], 0)
        dist.all_reduce(rows)
        if self.scale is None:
            return rows
        return rows * self.scale.to(rows.dtype)
