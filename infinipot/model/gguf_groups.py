"""The weights of a GGUF file in groups of whole numbers: as the file has them where its blocks are
such groups, else rounded."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType, dequantize
from torch import Tensor, nn
from transformers import PreTrainedModel

from infinipot.model.gguf_architectures import Architecture
from infinipot.model.gguf_file import GGUFFile
from infinipot.model.gguf_weights import arranged, fill_each
from infinipot.model.groups import GroupedWeight, attach, can_hold
from infinipot.model.in_file import Place, WeightInFile, stays_in_file
from infinipot.model.quantizer import WEIGHT, GroupsConfig, form_of, forms_by_module, kind_of, share
from infinipot.model.rounding import CPU, GROUP, HEADER, Groups, quantise

Kind = GGMLQuantizationType
FOUR_BITS = {Kind.Q4_0: "int4", Kind.Q4_1: "int4", Kind.Q4_K: "q4_k"}
"""Types that stay in four bits, whatever is asked for, and their form."""
HALF = 2
"""Bytes of a float16."""


def fill_groups(
    model: PreTrainedModel,
    file: GGUFFile,
    architecture: Architecture,
    weights: str,
    device: torch.device,
) -> None:
    """Read a file into a model whose parameters are on the device meta. Matrices become weights in
    groups; what else there is becomes a parameter. Raises ValueError as `fill` does.

    weights: int8 or int4, or auto: in four bits where the file has four, else in eight. device: of
    the groups.
    """
    kind = kind_of(weights)
    for name, parameter in list(model.named_parameters()):
        module = model.get_submodule(name.rpartition(".")[0])
        if not (name.endswith(WEIGHT) and can_hold(module)):
            value = nn.Parameter(torch.empty_like(parameter, device="cpu"), requires_grad=False)
            setattr(module, name.rpartition(".")[2], value)

    def put(name: str, own: str, target: Tensor) -> None:
        if not target.is_meta:
            values = torch.from_numpy(arranged(file.array(name), name, model, architecture))
            target.copy_(values.reshape(target.shape))
            return
        module = model.get_submodule(own.removesuffix(WEIGHT))
        form = FOUR_BITS.get(file.tensors[name].kind) or form_of(module, kind)
        if stays_in_file(model, own, module, device):
            weight: GroupedWeight = left_in_file(file, name, form)
        else:
            weight = in_groups(file, name, form, device)
        reorder(weight, name, model, architecture)
        attach(module, weight)
        share(model, own, weight)

    fill_each(model, file, put)
    config: Any = model.config
    config.quantization_config = GroupsConfig(kind, forms_by_module(model))
    model.requires_grad_(False)


def left_in_file(file: GGUFFile, name: str, form: str) -> WeightInFile:
    """A matrix of the file whose rows are read when they are looked up."""
    entry = file.tensors[name]
    outputs, width = entry.shape
    place = Place(file.path, file.start + entry.start, entry.size // outputs)
    return WeightInFile(
        place, (outputs, width), form, lambda content: converted(content, entry.kind, form, CPU)
    )


def in_groups(file: GGUFFile, name: str, form: str, device: torch.device) -> GroupedWeight:
    """A matrix of the file, a few rows at a time."""
    entry = file.tensors[name]
    outputs, width = entry.shape
    return GroupedWeight.by_rows(
        (outputs, width),
        form,
        device,
        lambda rows: converted(file.rows(name, rows.start, rows.stop), entry.kind, form, device),
    )


def converted(content: np.ndarray, kind: Kind, form: str, device: torch.device) -> Groups:
    """Rows [N, bytes] of a type as `GroupedWeight` holds them. device: where they are rounded."""
    if (kind, form) in KEPT:
        return KEPT[kind, form](content)
    numbers = dequantize(content, kind).astype(np.float32, copy=False)
    return quantise(torch.from_numpy(numbers).to(device), form)


def reorder(weight: GroupedWeight, name: str, model: nn.Module, architecture: Architecture) -> None:
    """Put the rows into the order of transformers."""
    places = np.arange(weight.shape[0])
    order = arranged(places, name, model, architecture)
    if order is not places:
        weight.put(0, weight.part(torch.from_numpy(np.ascontiguousarray(order))))


def blocks_of(content: np.ndarray, *sizes: int) -> list[Tensor]:
    """Rows [N, bytes] cut into blocks, and the blocks into parts of these sizes: [N, blocks, size]."""
    blocks = torch.from_numpy(content).unflatten(1, (-1, sum(sizes)))
    return [part.contiguous() for part in blocks.split(list(sizes), dim=-1)]


def halves(part: Tensor) -> Tensor:
    return part.view(torch.float16)[..., 0]


def q8_0(content: np.ndarray) -> tuple[Tensor, Tensor, None]:
    scale, numbers = blocks_of(content, HALF, GROUP)
    return numbers.view(torch.int8), halves(scale), None


def q5_0(content: np.ndarray) -> tuple[Tensor, Tensor, None]:
    scale, fifth, low = blocks_of(content, HALF, 4, GROUP // 2)
    numbers = torch.cat((low & 15, low >> 4), dim=-1)
    bit = torch.from_numpy(np.unpackbits(fifth.numpy(), axis=-1, bitorder="little"))
    return (numbers | bit << 4).view(torch.int8) - 16, halves(scale), None


def q4_0(content: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
    scale, numbers = blocks_of(content, HALF, GROUP // 2)
    return numbers, halves(scale), (halves(scale).float() * -8).half()


def q4_1(content: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
    scale, low, numbers = blocks_of(content, HALF, HALF, GROUP // 2)
    return numbers, halves(scale), halves(low)


def q4_k(content: np.ndarray) -> tuple[Tensor, Tensor, None]:
    header, packed = blocks_of(content, HEADER, 4 * GROUP)
    # 32 bytes hold a group in their lower bits and the next one in their upper bits
    pairs = packed.unflatten(-1, (4, 1, GROUP))
    numbers = torch.cat((pairs & 15, pairs >> 4), dim=-2).flatten(1, 3)
    return numbers[..., : GROUP // 2] | numbers[..., GROUP // 2 :] << 4, header, None


KEPT: dict[tuple[Kind, str], Any] = {
    (Kind.Q8_0, "int8"): q8_0,
    (Kind.Q5_0, "int8"): q5_0,
    (Kind.Q4_0, "int4"): q4_0,
    (Kind.Q4_1, "int4"): q4_1,
    (Kind.Q4_K, "q4_k"): q4_k,
}
"""Types whose numbers stay as they are in a form."""
