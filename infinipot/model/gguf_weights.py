"""The weights of a GGUF file, in the order and under the names that transformers gives them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from gguf import MODEL_ARCH_NAMES, get_tensor_name_map
from torch import Tensor, nn
from transformers import PreTrainedModel

from infinipot.model.folder import AGAIN, listed
from infinipot.model.gguf_architectures import Architecture
from infinipot.model.gguf_config import FACTORS
from infinipot.model.gguf_file import GGUFFile

EXPERTS = "mlp.experts."


def fill(model: nn.Module, file: GGUFFile, architecture: Architecture) -> None:
    """Copy the weights of a file into a model. Raises ValueError if some are missing, left over, or
    of another shape."""

    def copy(name: str, own: str, target: Tensor) -> None:
        values = torch.from_numpy(arranged(file.array(name), name, model, architecture))
        target.copy_(values.reshape(target.shape))

    fill_each(model, file, copy)


def adopt(model: PreTrainedModel, tensors: dict[str, Tensor]) -> bool:
    """Make these tensors the parameters of a model. False, and nothing is done, if they do not fit."""
    own = dict(model.named_parameters())
    if own.keys() != tensors.keys():
        return False
    for name, tensor in tensors.items():
        if (tensor.shape, tensor.dtype) != (own[name].shape, own[name].dtype):
            return False
    model.load_state_dict(tensors, strict=False, assign=True)  # tied ones are not among them
    model.tie_weights()
    return True


def fill_each(model: nn.Module, file: GGUFFile, put: Callable[[str, str, Tensor], None]) -> None:
    """Call `put` for each tensor of the file: its name, the name of the model's weight, and that
    weight, or the part of it. Raises ValueError as `fill` does."""
    targets = targets_of(model, file)
    shapes = []
    left = []
    for name, entry in file.tensors.items():
        if name in FACTORS or name.endswith(".attn_rot_embd.weight"):
            continue
        if name not in targets:
            left.append(name)
            continue
        own, target = targets.pop(name)
        # llama.cpp leaves out dimensions of one
        if [n for n in entry.shape if n != 1] != [n for n in target.shape if n != 1]:
            shapes.append(f"{name} is {list(entry.shape)} instead of {list(target.shape)}")
            continue
        put(name, own, target)
    faults = [
        f"{what}: {listed(sorted(names))}"
        for what, names in (
            ("weights are missing", list(targets)),
            ("weights are left over", left),
            ("wrong shapes", shapes),
        )
        if names
    ]
    if faults:
        raise ValueError(
            f"{file.path}: the tensors do not fit the metadata: {'; '.join(faults)}. The file is "
            f"damaged, or of a kind that is not known here. {AGAIN}"
        )


def targets_of(model: nn.Module, file: GGUFFile) -> dict[str, tuple[str, Tensor]]:
    """Names in a GGUF file -> the names of the model's weights, and the weights or parts of them."""
    kind = next(k for k, name in MODEL_ARCH_NAMES.items() if name == file.architecture)
    names = get_tensor_name_map(kind, model.config.num_hidden_layers)  # type: ignore[union-attr, arg-type]
    targets: dict[str, tuple[str, Tensor]] = {}
    for own, parameter in model.named_parameters():
        weight = parameter.detach()
        layer, experts, part = own.partition(EXPERTS)
        if experts and part == "gate_up_proj":
            block = f"blk.{layer.split('.')[-2]}"
            gate, up = weight.chunk(2, dim=1)
            targets[f"{block}.ffn_gate_exps.weight"] = (own, gate)
            targets[f"{block}.ffn_up_exps.weight"] = (own, up)
        elif experts and part == "down_proj":
            targets[f"blk.{layer.split('.')[-2]}.ffn_down_exps.weight"] = (own, weight)
        else:
            name = names.get_name(own, try_suffixes=(".weight", ".bias"))
            targets[name or f"({own})"] = (own, weight)
    return targets


def arranged(
    values: np.ndarray, name: str, model: nn.Module, architecture: Architecture
) -> np.ndarray:
    """A tensor of the file as transformers has it."""
    if architecture.shifted_norms and name.endswith("norm.weight"):
        return values - 1
    if not architecture.permuted or (".attn_q." not in name and ".attn_k." not in name):
        return values
    config = model.config
    heads = int(config.num_attention_heads)  # type: ignore[union-attr, arg-type]
    if ".attn_k." in name:
        heads = int(config.num_key_value_heads)  # type: ignore[union-attr, arg-type]
    pairs = values.reshape(heads, -1, 2, *values.shape[1:])
    return pairs.swapaxes(1, 2).reshape(values.shape)
