"""Weights in groups for transformers: quantised while a model is loaded, and loaded again as they
were saved."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.core_model_loading import ConversionOps
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from infinipot.checks import known
from infinipot.model.groups import KINDS, GroupedWeight, attach, can_hold, weights_in_groups
from infinipot.model.in_file import Place, WeightInFile, stays_in_file
from infinipot.model.rounding import BITS, BLOCK_GROUPS, CPU, GROUP, form_for, quantise
from infinipot.model.stored import StoredTensor

METHOD = "infinipot"
WEIGHTS = ("auto", *KINDS)
WEIGHT = ".weight"


@register_quantization_config(METHOD)
class GroupsConfig(QuantizationConfigMixin):
    """The entry `quantization_config` of a model's config.

    weights: int8 or int4. modules: the forms of weights by name, of a model that is saved; 8 and 4
    stand for int8 and int4.
    """

    rounded_on = CPU
    """Where weights are rounded, and stay. Not saved."""

    def __init__(
        self, weights: str = "int8", modules: Mapping[str, str | int] | None = None, **others: Any
    ) -> None:
        known("weights", weights, KINDS)
        size = others.get("group_size", GROUP)
        forms = {
            name: f"int{form}" if isinstance(form, int) else form
            for name, form in (modules or {}).items()
        }
        if size != GROUP or not BITS.keys() >= set(forms.values()):
            raise ValueError(
                f"its quantization_config names groups of {size} and the forms "
                f"{sorted(set(forms.values()))}; known are groups of {GROUP} and {', '.join(BITS)}"
            )
        self.quant_method = METHOD  # type: ignore[assignment]
        self.weights = weights
        self.modules = forms
        self.group_size = GROUP


def kind_of(weights: str) -> str:
    """int8 or int4; auto stands for int8."""
    known("weights", weights, WEIGHTS)
    if weights == "auto":
        return "int8"
    return weights


def form_of(module: nn.Module, weights: str) -> str:
    """The form of a module's weight. An embedding has eight bits, with the output layer that is tied
    to it: a model is most sensitive there, and looking up a few rows costs nothing."""
    if isinstance(module, nn.Embedding):
        return "int8"
    return form_for(weights, module.weight.shape[1])  # type: ignore[union-attr,index,arg-type]


def ties(model: PreTrainedModel, name: str) -> list[str]:
    """The names of the weights that are tied to this one. The model forgets that they are: what is
    in groups is shared by hand."""
    pairs = [pair for pair in model.all_tied_weights_keys.items() if name in pair]
    for target, _ in pairs:
        del model.all_tied_weights_keys[target]
    return [other for pair in pairs for other in pair if other != name]


def share(model: PreTrainedModel, name: str, weight: GroupedWeight) -> list[str]:
    """Give the weight to all modules that are tied to `name`, unless they have their own. Returns the
    names of their weights."""
    names = ties(model, name)
    for other in names:
        module = model.get_submodule(other.removesuffix(WEIGHT))
        own = module.weight
        if isinstance(own, GroupedWeight) and not same(own, weight):
            continue
        attach(module, weight)
    return names


def same(a: GroupedWeight, b: GroupedWeight) -> bool:
    return a.form == b.form and all(
        torch.equal(x, y) for x, y in zip(a.buffers(), b.buffers(), strict=True)
    )


class Quantise(ConversionOps):
    """Puts a weight of the checkpoint into its module, in groups."""

    def __init__(self, hf_quantizer: GroupsQuantizer) -> None:
        self.hf_quantizer = hf_quantizer

    def convert(
        self, input_dict: dict[str, Any], model: Any = None, full_layer_name: str = "", **more: Any
    ) -> dict[str, Any]:
        value = next(iter(input_dict.values()))
        value = value[0] if isinstance(value, list) else value
        module = model.get_submodule(full_layer_name.removesuffix(WEIGHT))
        missing = more["missing_keys"]
        missing.discard(full_layer_name)
        if tuple(value.shape) != tuple(module.weight.shape):
            shapes = (full_layer_name, value.shape, module.weight.shape)
            self.hf_quantizer.mismatched.add(shapes)
            return {}
        form = form_of(module, self.hf_quantizer.quantization_config.weights)
        device = self.hf_quantizer.quantization_config.rounded_on
        if isinstance(value, StoredTensor) and stays_in_file(
            model, full_layer_name, module, device
        ):
            weight: GroupedWeight = left_in_file(value, form)
        else:
            weight = in_groups(value, form, device)
        attach(module, weight)
        missing.difference_update(share(model, full_layer_name, weight))
        return {}


def left_in_file(value: StoredTensor, form: str) -> WeightInFile:
    """A tensor in a file whose rows are read when they are looked up."""
    outputs, width = value.shape
    return WeightInFile(
        Place(value.path, value.start, width * value.dtype.itemsize),
        (outputs, width),
        form,
        lambda content: quantise(torch.from_numpy(content).view(value.dtype), form),
    )


def in_groups(value: Any, form: str, device: torch.device) -> GroupedWeight:
    """A tensor, or one in a file, in groups on a device."""
    if not isinstance(value, StoredTensor):
        return GroupedWeight.of(value.to(device), form)
    outputs, width = value.shape
    return GroupedWeight.by_rows(
        (outputs, width),
        form,
        device,
        lambda rows: quantise(value.rows(rows.start, rows.stop).to(device), form),
    )


@register_quantizer(METHOD)
class GroupsQuantizer(HfQuantizer):
    """transformers calls it while it loads a model."""

    quantization_config: GroupsConfig

    def __init__(self, quantization_config: GroupsConfig, **more: Any) -> None:
        super().__init__(quantization_config, **more)
        self.mismatched: set[tuple[str, torch.Size, torch.Size]] = set()
        self.empty: list[tuple[str, nn.Module]] = []
        """Modules that get the weight of the module with this name."""

    def param_needs_quantization(self, model: Any, param_name: str, **more: Any) -> bool:
        """Whether a parameter of the skeleton becomes a weight in groups."""
        if self.pre_quantized or not param_name.endswith(WEIGHT):
            return False
        module = model.get_submodule(param_name.removesuffix(WEIGHT))
        return can_hold(module) and isinstance(module.weight, nn.Parameter)

    def get_quantize_ops(self) -> ConversionOps:
        return Quantise(self)

    def _process_model_before_weight_loading(self, model: Any, **more: Any) -> Any:
        if self.pre_quantized:
            forms = self.quantization_config.modules
            for name, form in forms.items():
                make_room(model, name, form)
            for target, source in list(model.all_tied_weights_keys.items()):
                if target.removesuffix(WEIGHT) in forms:  # it has its own
                    del model.all_tied_weights_keys[target]
                elif source.removesuffix(WEIGHT) in forms:
                    del model.all_tied_weights_keys[target]
                    module = model.get_submodule(target.removesuffix(WEIGHT))
                    leave_empty(module)
                    self.empty.append((source.removesuffix(WEIGHT), module))
        return model

    def _process_model_after_weight_loading(self, model: Any, **more: Any) -> Any:
        for name, module in self.empty:
            attach(module, model.get_submodule(name).weight)
        for weight in weights_in_groups(model).values():
            weight.suit_device()
        model.config.quantization_config = GroupsConfig(
            self.quantization_config.weights, forms_by_module(model)
        )
        return model.requires_grad_(False)

    def is_serializable(self) -> bool:
        return True

    @property
    def is_trainable(self) -> bool:
        return False


def make_room(model: PreTrainedModel, name: str, form: str) -> None:
    """Replace a module's weight by an empty one in groups, to be read."""
    try:
        module = model.get_submodule(name)
    except AttributeError:
        raise ValueError(f"its quantization_config names {name}, which the model has not") from None
    if not can_hold(module):
        raise ValueError(
            f"its quantization_config names {name}, which is a {type(module).__name__}"
        )
    shape = tuple(module.weight.shape)
    if form == "q4_k" and form_for("int4", shape[1]) != form:
        raise ValueError(
            f"its quantization_config names {name} as q4_k, whose rows have {shape[1]} weights: known "
            f"are multiples of {BLOCK_GROUPS * GROUP}"
        )
    attach(module, GroupedWeight.empty(shape, form, module.weight.device))


def leave_empty(module: Any) -> None:
    """Take away a weight that is tied to one in groups. It comes back when that one is read."""
    del module._parameters["weight"]
    module.weight = None
    module._is_hf_initialized = True


def forms_by_module(model: PreTrainedModel) -> dict[str, str]:
    return {
        name.removesuffix(WEIGHT): weight.form for name, weight in weights_in_groups(model).items()
    }


def quantise_model(
    model: PreTrainedModel,
    weights: str,
    make: Callable[[Tensor, str], GroupedWeight] = GroupedWeight.of,
) -> None:
    """Put the weights of a model in memory into groups, one after the other. weights: int8, int4, or
    auto, which is int8. make: gives the groups of a weight in a form."""
    weights = kind_of(weights)
    owners: dict[nn.Parameter, list[nn.Module]] = {}
    for module in model.modules():
        if can_hold(module) and isinstance(module.weight, nn.Parameter):
            owners.setdefault(module.weight, []).append(module)
    while owners:
        plain, modules = owners.popitem()
        form = max((form_of(module, weights) for module in modules), key=BITS.__getitem__)
        weight = make(plain.detach(), form)
        for module in modules:
            attach(module, weight)
    model.all_tied_weights_keys.clear()
    model.config.quantization_config = GroupsConfig(weights, forms_by_module(model))
    model.requires_grad_(False)
