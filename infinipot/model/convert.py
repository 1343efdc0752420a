"""A model with its weights in groups, written as a folder that loads in a second or two."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from infinipot.model.groups import weights_in_groups

SHARD_BYTES = 1 << 28
"""Most bytes of a file, but for single larger tensors: safetensors copies what it writes."""


def check_target(folder: Path) -> None:
    """Refuse a place where something stands already. An empty folder is replaced, so it cannot be the
    one in which this process is, or a link."""
    plain = folder.is_dir() and not folder.is_symlink() and folder.resolve() != Path.cwd()
    if folder.exists() and (not plain or any(folder.iterdir())):
        raise ValueError(
            f"{folder} exists already, and is left alone: give the name of a new folder"
        )


def save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> int:
    """Write a model whose weights are in groups. Returns the bytes of the weights. A folder that is
    there is complete. Raises ValueError or OSError."""
    check_target(folder)
    for weight in weights_in_groups(model).values():
        weight.into_memory()
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
    try:
        size = write_weights(model, work)
        config: Any = model.config
        config.architectures = [type(model).__name__]
        config.save_pretrained(work)
        model.generation_config.save_pretrained(work)  # type: ignore[union-attr]
        tokenizer.save_pretrained(work)
        work.chmod(0o755)
        if folder.exists():
            folder.rmdir()  # it is empty
        os.replace(work, folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return size


def write_weights(model: PreTrainedModel, folder: Path) -> int:
    """Write all weights, in files of limited size, with an index."""
    places: dict[str, str] = {}
    size = 0
    for number, tensors in enumerate(shards(model)):
        name = f"model-{number + 1:05}.safetensors"
        save_file(tensors, folder / name, metadata={"format": "pt"})
        places |= dict.fromkeys(tensors, name)
        size += sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": size}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))
    return size


def shards(model: PreTrainedModel) -> Iterator[dict[str, Tensor]]:
    """The weights, each once, in portions of at most SHARD_BYTES."""
    portion: dict[str, Tensor] = {}
    for name, tensor in stored(model):
        if portion and sum(x.nbytes for x in portion.values()) + tensor.nbytes > SHARD_BYTES:
            yield portion
            portion = {}
        portion[name] = tensor.detach().cpu().contiguous()
    if portion:
        yield portion


def stored(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """The parameters and the buffers that belong to a saved model; shared ones once."""
    yield from model.named_parameters()
    for prefix, module in model.named_modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                yield f"{prefix}.{name}", buffer
