"""Stand-ins that let a model's own forward compute logits from hidden states."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_outputs import MoeModelOutputWithPast

from infinipot.model.groups import GroupedWeight
from infinipot.parallel.collectives import group_of, parts_of


class HeadInput(MoeModelOutputWithPast):
    """The output of a trunk. Every other field that a head reads is None."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return None


class TrunkStandIn(nn.Module):
    """Replaces the trunk: its forward returns the hidden states it was made with."""

    def __init__(self, trunk: nn.Module, hidden: Tensor) -> None:
        super().__init__()
        self._trunk = (trunk,)  # in a tuple: not a submodule
        self.hidden = hidden

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self._trunk[0], name)

    def forward(self, *args: Any, **kwargs: Any) -> MoeModelOutputWithPast:
        return HeadInput(last_hidden_state=self.hidden)


def part_of(weight: Any) -> Any:
    """What this process has of a weight that is shared out (tensor parallelism); others as they
    are."""
    if hasattr(weight, "device_mesh"):
        return weight.to_local()
    return weight


class OutputColumns(nn.Module):
    """An output layer that computes the logits of a range of ids only: of those that this process
    has."""

    def __init__(self, output: nn.Linear, columns: slice) -> None:
        super().__init__()
        bias: Tensor | None = None
        if output.bias is not None:
            bias = part_of(output.bias)[columns]
        self._bias = (bias,)  # in a tuple: not a parameter
        self._output = (part_of(output.weight), columns)

    def forward(self, hidden: Tensor) -> Tensor:
        weight, columns = self._output
        x = hidden.to(weight.device)
        if isinstance(weight, GroupedWeight):
            return weight.linear(x, *self._bias, rows=columns).to(hidden.device)
        return F.linear(x, weight[columns], *self._bias).to(hidden.device)


class OutputShards(OutputColumns):
    """An output layer that is shared out, with the logits of all ids."""

    def __init__(self, output: nn.Linear) -> None:
        super().__init__(output, slice(None))
        self._group = group_of(output.weight)

    def forward(self, hidden: Tensor) -> Tensor:
        return torch.cat(parts_of(super().forward(hidden), self._group), dim=-1)
