"""What a model and its pots will take in memory, reckoned from its config: no weights are loaded."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from infinipot.bench.shapes import SHAPES, shape_config
from infinipot.config import PotConfig
from infinipot.model.gguf_config import config_of
from infinipot.model.gguf_file import read_file
from infinipot.model.groups import KINDS, GroupedWeight, can_hold, in_blocks_on
from infinipot.model.load import found
from infinipot.model.quantizer import form_of
from infinipot.model.runner import ModelRunner
from infinipot.server.memory import (
    activation_bytes,
    most_unpacked,
    pot_bytes,
    unscored_bytes,
)

PROGRAM_BYTES = 450 << 20
"""What Python, torch and transformers take before a model is loaded, about."""
NARROW = 8
"""Width of the trial model, times its heads."""
VOCABULARY = 512
MOST_TRIED = 1 << 30
"""Most weights of a trial model."""


@dataclass(frozen=True)
class Sizes:
    """Bytes. weights: by kind. pots: a session by the size of its pot. activations: of one chunk.
    unpacked: what weights in groups take more on a GPU while they are unpacked."""

    weights: dict[str, int]
    pots: dict[int, int]
    activations: int
    unpacked: int

    def sessions(self, kind: str, pot_size: int, memory: int) -> int:
        """How many sessions have room beside the weights; 0 if not even one has."""
        room = memory - PROGRAM_BYTES - self.weights[kind] - self.activations
        if kind in KINDS:
            room -= self.unpacked
        return max(0, room // self.pots[pot_size])


def config_from(model: str) -> Any:
    """The config of a model by name, or of a shape that `bench` knows. Raises OSError or ValueError
    as `load` does."""
    if model in SHAPES:
        return shape_config(model)
    source = found(model)
    if isinstance(source, Path) and source.is_file():
        return config_of(read_file(source))[0]
    return AutoConfig.from_pretrained(source, trust_remote_code=False)


def skeleton(config: Any, dtype: torch.dtype) -> PreTrainedModel:
    """The model of a config without its weights, and not quantised."""
    plain = copy.deepcopy(config)
    if getattr(plain, "quantization_config", None) is not None:
        del plain.quantization_config
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(plain, dtype=dtype)
    model.tie_weights()
    return model


def grouped_shapes(model: PreTrainedModel) -> set[tuple[int, int]]:
    """The shapes of the weights that can be in groups."""
    return {
        (module.weight.shape[0], module.weight.shape[1])
        for module in model.modules()
        if can_hold(module)
    }


def weight_bytes(
    model: PreTrainedModel, dtype: torch.dtype, device: torch.device
) -> dict[str, int]:
    """Bytes of a skeleton's weights on a device by kind: in dtype, in int8, in int4."""
    total = dict.fromkeys((str(dtype).removeprefix("torch."), "int8", "int4"), 0)
    seen: set[nn.Parameter] = set()
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            if parameter in seen:
                continue
            seen.add(parameter)
            for kind in total:
                grouped = kind.startswith("int") and parameter.dim() == 2 and can_hold(module)
                form = form_of(module, kind) if grouped else ""
                total[kind] += grouped_bytes(parameter, form, device) if form else parameter.nbytes
    return total


def grouped_bytes(weight: nn.Parameter, form: str, device: torch.device) -> int:
    """Bytes of a weight in groups on a device: its numbers, scales and least values."""
    if form == "q4_k" and not in_blocks_on(device):
        form = "int4"
    outputs, width = weight.shape
    return GroupedWeight.empty((outputs, width), form, torch.device("meta")).nbytes


def narrow(config: Any, dtype: torch.dtype, hidden_too: bool = True) -> PreTrainedModel:
    """A random model with the layers and heads of a config, but narrow: its pots are as large.

    hidden_too: also its hidden states, for models whose heads and states do not depend on them.
    """
    plain = copy.deepcopy(config)
    if getattr(plain, "quantization_config", None) is not None:
        del plain.quantization_config
    text = plain.get_text_config()
    heads = text.num_attention_heads
    values = {"intermediate_size": NARROW * heads, "vocab_size": VOCABULARY}
    if hidden_too:
        values |= {"head_dim": head_width(text), "hidden_size": NARROW * heads}
    if hasattr(text, "moe_intermediate_size"):
        values["moe_intermediate_size"] = NARROW * heads
    for name, value in values.items():
        setattr(text, name, value)
    for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
        setattr(text, name, None)
    with torch.device("meta"):
        count = AutoModelForCausalLM.from_config(plain, dtype=dtype).num_parameters()
    if count > MOST_TRIED:
        raise ValueError(
            f"what a pot of {type(config).__name__} takes cannot be reckoned without its weights: load it, "
            "and `infinipot serve` says how many sessions fit"
        )
    made: PreTrainedModel = AutoModelForCausalLM.from_config(plain, dtype=dtype)
    return made.eval()


def head_width(text: Any) -> int:
    width: int = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return width


def has_heads(model: PreTrainedModel, width: int) -> bool:
    """Whether attention of the model has heads of this width."""
    found = {
        getattr(module, name, None)
        for module in model.modules()
        for name in ("head_dim", "head_size")
    }
    return width in found


def trial(
    config: Any, pot: PotConfig, dtype: torch.dtype, pot_sizes: Sequence[int]
) -> tuple[ModelRunner, dict[int, int]]:
    """A small model whose pots are as large as those of the config, and their bytes."""
    model = narrow(config, dtype)
    if has_heads(model, head_width(config.get_text_config())):
        try:
            return pots_of(model, pot, pot_sizes)
        except ValueError:
            pass  # its states have the width of what it no longer is
    return pots_of(narrow(config, dtype, hidden_too=False), pot, pot_sizes)


def pots_of(
    model: PreTrainedModel, pot: PotConfig, pot_sizes: Sequence[int]
) -> tuple[ModelRunner, dict[int, int]]:
    runner = ModelRunner(model)
    return runner, {size: pot_bytes(runner, pot.replace(pot_size=size)) for size in pot_sizes}


def sizes_of(
    config: Any,
    pot: PotConfig,
    dtype: torch.dtype,
    pot_sizes: Sequence[int],
    device: torch.device,
) -> Sizes:
    """What the model takes on a device, with pots of these sizes. Raises ValueError for a model that
    cannot read into a pot."""
    runner, pots = trial(config, pot, dtype, pot_sizes)
    own: Any = runner.model.config
    # what depends on the width is reckoned with the model's own
    text = config.get_text_config()
    narrow_text = own.get_text_config()
    for name in ("hidden_size", "intermediate_size"):
        setattr(narrow_text, name, getattr(text, name, None))
    runner.vocabulary = text.vocab_size
    for size in pot_sizes:
        pots[size] += unscored_bytes(runner, pot.replace(pot_size=size))
    model = skeleton(config, dtype)
    unpacked = most_unpacked(grouped_shapes(model), dtype, device)
    return Sizes(weight_bytes(model, dtype, device), pots, activation_bytes(runner, pot), unpacked)
