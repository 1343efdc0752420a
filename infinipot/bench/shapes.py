"""Models of a known shape with random weights. Speed and memory do not depend on the weights."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from accelerate import dispatch_model, infer_auto_device_map, init_empty_weights
from accelerate.utils import get_balanced_memory, set_module_tensor_to_device
from torch import nn
from torch.distributed.tensor import DTensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.distributed import DistributedConfig

from infinipot.checks import known
from infinipot.model.groups import GroupedWeight
from infinipot.model.quantizer import quantise_model
from infinipot.model.rounding import quantise, slices
from infinipot.model.shards import served

_WIDTHS = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
)
SHAPES: dict[str, tuple[str, tuple[int, ...], float, bool]] = {
    "llama-8b-shape": ("llama", (4096, 14336, 32, 32, 8, 128_256), 500_000.0, False),
    "llama-8b-qwen-shape": ("llama", (4096, 14336, 32, 32, 8, 151_936), 500_000.0, False),
    "llama-70b-shape": ("llama", (8192, 28672, 80, 64, 8, 128_256), 500_000.0, False),
    "qwen2.5-0.5b-shape": ("qwen2", (896, 4864, 24, 14, 2, 151_936), 1_000_000.0, True),
    "qwen2.5-1.5b-shape": ("qwen2", (1536, 8960, 28, 12, 2, 151_936), 1_000_000.0, True),
    "smollm2-135m-shape": ("llama", (576, 1536, 30, 9, 3, 49_152), 100_000.0, True),
    "tiny-shape": ("llama", (64, 128, 2, 4, 2, 1000), 10_000.0, True),
}
"""Name -> architecture, widths in the order of _WIDTHS, base of the rotary frequencies, and whether
input and output embeddings are shared."""


DEVIATION = 0.02
"""Of the random weights."""


def shape_config(name: str) -> Any:
    known("shape", name, SHAPES)
    kind, widths, theta, tied = SHAPES[name]
    return AutoConfig.for_model(
        kind,
        **dict(zip(_WIDTHS, widths, strict=True)),
        max_position_embeddings=131_072,
        rope_parameters={"rope_type": "default", "rope_theta": theta},
        tie_word_embeddings=tied,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )


def shaped(
    name: str,
    *,
    device: torch.device,
    dtype: torch.dtype = torch.bfloat16,
    spread: bool = False,
    weights: str | None = None,
) -> PreTrainedModel:
    """A model of this shape with random weights, in eval mode.

    Every weight is created on its own device and in its own type, so there is never a larger copy.
    spread: distribute the layers evenly over all GPUs. weights: int8, int4 or auto makes them in
    groups; not together with spread.
    """
    if weights and spread:
        raise ValueError(
            f"weights={weights!r} is for a model on one device: leave it out, or spread"
        )
    with init_empty_weights(include_buffers=False):
        model = AutoModelForCausalLM.from_config(shape_config(name), dtype=dtype)
    if weights:
        random = torch.Generator(device).manual_seed(0)
        model.tie_weights()
        quantise_model(model, weights, partial(_in_groups, device, random))
    places: dict[str, Any] = {"": device}
    if spread:
        places = _even_places(model, dtype)
    generators: dict[torch.device, torch.Generator] = {}
    for label, weight in list(model.named_parameters()):
        place = _place(label, places)
        random = generators.setdefault(place, torch.Generator(place).manual_seed(0))
        value = _weight(label, weight, place, dtype, random)
        set_module_tensor_to_device(model, label, place, value=value)
    if not weights:  # groups are shared already
        model.tie_weights()
    if spread:
        model = dispatch_model(model, places)
    else:
        model = model.to(device)
    return model.eval()


def _even_places(model: PreTrainedModel, dtype: torch.dtype) -> dict[str, Any]:
    """The device of each module, for layers that are distributed evenly."""
    whole = list(model._no_split_modules)
    room = get_balanced_memory(model, no_split_module_classes=whole, dtype=dtype)
    places: dict[str, Any] = infer_auto_device_map(
        model, max_memory=room, no_split_module_classes=whole, dtype=dtype
    )
    return places


def shaped_shards(name: str, dtype: torch.dtype) -> PreTrainedModel:
    """This rank's part of a model of this shape with random weights (tensor parallelism)."""
    with init_empty_weights(include_buffers=False):
        model = AutoModelForCausalLM.from_config(shape_config(name), dtype=dtype)
    kind = type(model)
    how, _, mesh = kind.prepare_distribute_model(DistributedConfig(tp_plan="auto"))
    model = kind.maybe_distribute_model(model, how, mesh)
    place = torch.device("cpu")
    if torch.cuda.is_available():
        place = torch.device("cuda", torch.cuda.current_device())
    whole = torch.Generator(place).manual_seed(0)
    part = torch.Generator(place).manual_seed(1 + dist.get_rank())
    for label, weight in list(model.named_parameters()):
        value: torch.Tensor
        if isinstance(weight, DTensor):
            own = _weight(label, weight.to_local(), place, dtype, part)
            value = DTensor.from_local(own, weight.device_mesh, weight.placements, run_check=False)
        else:
            value = _weight(label, weight, place, dtype, whole)
        module, _, word = label.rpartition(".")
        model.get_submodule(module)._parameters[word] = nn.Parameter(value, requires_grad=False)
    model.tie_weights()
    return served(model.to(place))


def _place(label: str, places: dict[str, Any]) -> torch.device:
    """The device of a weight: that of its module, or of a module around it ("" is the model)."""
    for module, device in places.items():
        if module in ("", label) or label.startswith(f"{module}."):
            return torch.device(device)
    raise KeyError(label)


def _in_groups(
    device: torch.device, random: torch.Generator, like: torch.Tensor, form: str
) -> GroupedWeight:
    """A weight of this shape, quantised a few rows at a time."""
    outputs, width = like.shape
    weight = GroupedWeight.empty((outputs, width), form, device)
    for rows in slices(outputs, width, device):
        part = torch.empty(rows.stop - rows.start, width, device=device)
        weight.put(rows.start, quantise(part.normal_(0.0, DEVIATION, generator=random), form))
    return weight


def _weight(
    label: str, like: torch.Tensor, place: torch.device, dtype: torch.dtype, random: torch.Generator
) -> torch.Tensor:
    """A normal distribution, as at the start of training. Norms are 1, biases are 0."""
    value = torch.empty(like.shape, dtype=dtype, device=place)
    if value.dim() == 1:
        return value.fill_(0.0 if label.endswith("bias") else 1.0)
    return value.normal_(0.0, DEVIATION, generator=random)
