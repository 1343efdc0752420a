"""By what a pot file knows the model and the tokenizer that filled the pot."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from infinipot.pot_file.header import PotFileError

VOLATILE = {
    "transformers_version",
    "_name_or_path",
    "dtype",
    "torch_dtype",
    "use_cache",
    "attn_implementation",
    "_attn_implementation",
    "distributed_config",
}
"""Fields of a model's config that do not identify the model."""
SAMPLES = 64
"""How many numbers of each weight are compared, about."""


def _plain(weight: Tensor) -> Tensor:
    """A weight as an ordinary tensor, also if it is quantised or split over devices."""
    weight = weight.detach()
    if type(weight) is Tensor:
        return weight
    if hasattr(weight, "full_tensor"):
        return weight.full_tensor()
    return weight.dequantize()


def model_identity(model: PreTrainedModel, on_all_ranks: bool = False) -> dict[str, str]:
    """Class, name, dtype, state of the adapters, and hashes of the config and of the weights. They do
    not depend on how a model is shared out. on_all_ranks: all ranks call this together."""
    shared_out = any(hasattr(weight, "device_mesh") for weight in model.parameters())
    if shared_out and not on_all_ranks:
        raise PotFileError(
            "this process has only its heads' part of a pot (tensor parallel): "
            "save and load pots with a model in one process"
        )
    config = {key: value for key, value in model.config.to_dict().items() if key not in VOLATILE}
    config_text = json.dumps(config, sort_keys=True, default=str)
    return {
        "class": type(model).__name__,
        "name": Path(str(model.config._name_or_path)).name,
        "dtype": str(model.dtype).removeprefix("torch."),
        "config_sha256": hashlib.sha256(config_text.encode()).hexdigest(),
        "weights_sha256": first_numbers(model),
        "samples_sha256": samples(model),
        "adapters": adapters(model),
    }


def first_numbers(model: PreTrainedModel) -> str:
    """A hash of the first numbers of eight weights, by which all pot files know their model."""
    digest = hashlib.sha256()
    weights = sorted(model.named_parameters())
    for name, weight in weights[:: max(1, len(weights) // 8)]:
        # bfloat16: float32 and bfloat16 copies have the same hash
        sample = _plain(weight).flatten()[:256].to(device="cpu", dtype=torch.bfloat16)
        digest.update(name.encode() + sample.view(torch.int16).numpy().tobytes())
    return digest.hexdigest()


def samples(model: PreTrainedModel) -> str:
    """A hash of some numbers of every weight, spread over all of it."""
    digest = hashlib.sha256()
    parts = []
    for name, weight in weights_of(model):
        numbers = _plain(weight).flatten()
        digest.update(f"{name} {tuple(weight.shape)}".encode())
        # float64 holds the numbers of all types exactly
        parts.append(numbers[:: max(1, len(numbers) // SAMPLES)].cpu().double())
    digest.update(torch.cat(parts).numpy().tobytes())
    return digest.hexdigest()


def weights_of(model: PreTrainedModel) -> list[tuple[str, Tensor]]:
    """All parameters, and the buffers that are saved with them."""
    buffers = [
        (f"{prefix}.{name}", buffer)
        for prefix, module in model.named_modules()
        for name, buffer in module._buffers.items()
        if buffer is not None and name not in module._non_persistent_buffers_set
    ]
    return [*model.named_parameters(), *buffers]


def adapters(model: PreTrainedModel) -> str:
    """The adapters in use (PEFT): their names, and a hash of the state of each layer. Empty without
    adapters."""
    states = []
    names: set[str] = set()
    for place, module in model.named_modules():
        active = getattr(module, "active_adapters", None)
        if isinstance(active, str):
            active = [active]
        # a model's own `active_adapters` is a method
        if not isinstance(active, list | tuple):
            continue
        disabled = bool(getattr(module, "disable_adapters", False))
        merged = getattr(module, "merged_adapters", None)
        scaling = getattr(module, "scaling", None)
        states.append(f"{place} {active} {disabled} {merged} {scaling}")
        names |= set() if disabled else set(active)
    if not states:
        return ""
    digest = hashlib.sha256("\n".join(states).encode()).hexdigest()
    return f"{', '.join(sorted(names)) or 'none'} {digest}"


def tokenizer_identity(tokenizer: PreTrainedTokenizerBase | None) -> str | None:
    """A hash of the vocabulary and the chat template; None without a tokenizer."""
    if tokenizer is None:
        return None
    parts = [sorted(tokenizer.get_vocab().items()), tokenizer.chat_template]
    return hashlib.sha256(json.dumps(parts, ensure_ascii=False).encode()).hexdigest()
