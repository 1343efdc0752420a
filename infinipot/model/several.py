"""Load a model over several GPUs: its heads shared out (tensor parallelism), or its layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import AutoConfig, PreTrainedModel, PreTrainedTokenizerBase

from infinipot.model.pretrained import load_pretrained, pretrained_tokenizer
from infinipot.parallel.followers import load_on_all_ranks


def check_several(
    source: Path | str, place: torch.device, weights: str | None, count: int, spread: bool
) -> None:
    """Raise ValueError for what is not possible over several GPUs.

    count: processes with tensor parallelism, 1 without. Others: as for `load`.
    """
    asked = f"tensor_parallel={count}"
    if spread:
        asked = "spread"
    if spread and count > 1:
        raise ValueError(
            f"tensor_parallel={count} shares out heads, and spread shares out layers: give one of them"
        )
    if isinstance(source, Path) and source.is_file():
        raise ValueError(
            f"{asked} is for folders and Hub ids, and {source} is a file: leave it out, or take the "
            "model that the file was made of"
        )
    if weights is not None:
        raise ValueError(
            f"weights={weights!r} is for a model on one device: leave it out, or {asked}"
        )
    if place.index is not None:
        raise ValueError(
            f"{asked} takes the first GPUs, not {place}: choose them with CUDA_VISIBLE_DEVICES"
        )
    if spread and place.type != "cuda":
        raise ValueError(f"spread shares layers out over GPUs, and the device is {place}")


def load_spread(
    source: Path | str, dtype: torch.dtype
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A model whose layers are shared out evenly over all GPUs."""
    model, tokenizer = load_pretrained(source, dtype, device_map="balanced")
    return model.eval(), tokenizer


def load_shared_out(
    source: Path | str, dtype: torch.dtype, count: int, place: torch.device
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A model over `count` processes, of which this one has the first part."""
    config = AutoConfig.from_pretrained(source, trust_remote_code=False)
    check_shareable(str(source), config, count, place)
    tokenizer = pretrained_tokenizer(source)
    loader = "infinipot.model.shards:load_shards"
    return load_on_all_ranks(loader, (source, dtype), count, place), tokenizer


def check_shareable(name: str, config: Any, count: int, place: torch.device) -> None:
    """Raise ValueError for a model whose heads cannot be shared out over so many processes, or for too
    few GPUs."""
    if dist.is_initialized():
        raise ValueError(
            "this process has a process group already (torchrun, or another model with tensor_parallel): "
            "leave tensor_parallel out, or delete the other model first"
        )
    gpus = torch.cuda.device_count()
    if place.type not in ("cuda", "cpu"):
        raise ValueError(f"tensor_parallel works on cuda and cpu, not on {place}")
    if place.type == "cuda" and count > gpus:
        raise ValueError(f"tensor_parallel={count} needs {count} GPUs, and torch finds {gpus} here")
    if not getattr(config, "base_model_tp_plan", None):
        raise ValueError(
            f"cannot share out {name}: transformers has no plan for models of the type "
            f"{config.model_type!r}. Leave tensor_parallel out, or give spread"
        )
    text = config.get_text_config()
    heads = text.num_attention_heads
    entries = getattr(text, "num_key_value_heads", None) or heads
    for what, number in (("KV heads", entries), ("query heads", heads), ("ids", text.vocab_size)):
        if number % count:
            raise ValueError(
                f"cannot share out {name} over {count} processes: it has {number} {what}. Give a "
                f"tensor_parallel that divides {number}, or spread"
            )
