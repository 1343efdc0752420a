"""What a model predicts from hidden states: logits, and novelty."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from infinipot.model.attention import IN_USE, at_work
from infinipot.model.forward import PotForward
from infinipot.model.groups import GroupedLinear
from infinipot.model.head import OutputColumns, OutputShards, TrunkStandIn
from infinipot.model.shards import Shards
from infinipot.parallel.followers import Followers
from infinipot.parallel.ranks import on_all_ranks
from infinipot.scoring.novelty import BLOCK, novelty


class ModelOutput:
    """A model's own head, for hidden states that the trunk has made before."""

    model: PreTrainedModel
    shards: Shards
    followers: Followers | None
    vocabulary: int

    def find_output(self) -> None:
        """Find the output layer, and its parent's `_modules` with its name there."""
        self.output: Any = self.model.get_output_embeddings()
        self.output_place: tuple[Any, str] = ({}, "")
        for module in self.model.modules():
            for name, child in module._modules.items():
                if child is self.output and not self.output_place[1]:
                    self.output_place = (module._modules, name)

    @on_all_ranks
    @torch.no_grad()
    def head(self, hidden: Tensor, columns: slice | None = None) -> Tensor:
        """Hidden states [B, T, hidden] -> logits [B, T, V], with the model's own scaling and
        soft-cap. columns: compute only the logits of these ids, of those that this process has.

        Runs the model's own forward, with stand-ins for its trunk and, for columns, its output layer.
        """
        ids = torch.zeros(hidden.shape[:2], dtype=torch.long, device=hidden.device)
        with at_work(self.model, PotForward(None, None, {}, {})), self._stand_ins(hidden, columns):
            return self.model(input_ids=ids, use_cache=False, return_dict=True).logits

    @contextmanager
    def _stand_ins(self, hidden: Tensor, columns: slice | None) -> Iterator[None]:
        """Replace the trunk and the output layer inside the context. No other thread may use the
        model."""
        model = self.model
        trunk = model.base_model
        swaps: list[tuple[Any, str, nn.Module, nn.Module]] = [
            (model._modules, model.base_model_prefix, trunk, TrunkStandIn(trunk, hidden))
        ]
        if columns is None and self.splits_output:
            swaps.append((*self.output_place, self.output, OutputShards(self.output)))
        elif columns is not None and columns != slice(0, self.vocabulary):
            swaps.append((*self.output_place, self.output, OutputColumns(self.output, columns)))
        try:
            for modules, name, _, stand_in in swaps:
                modules[name] = stand_in
            yield
        finally:
            for modules, name, own, _ in swaps:
                modules[name] = own

    @property
    def splits_output(self) -> bool:
        """Whether this process has a part of the output layer's ids."""
        weight = getattr(self.output, "weight", None)
        return type(self.output) is nn.Linear and hasattr(weight, "device_mesh")

    @on_all_ranks
    def novelty(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """NuC of targets [B, T] from hidden states [B, T, hidden] that predict them: nats, float32."""
        with IN_USE:  # no other thread's stand-ins are in the model now
            # the output layer was resized or wrapped
            if self.model.get_output_embeddings() is not self.output:
                self.find_output()
                self.vocabulary = self.head(hidden[:, :1]).shape[-1]
        block = BLOCK.get(hidden.device.type, self.vocabulary)
        if self.splits_output:
            count = self.vocabulary // self.shards.count
            targets = targets - self.shards.rank * count
            return novelty(self.head, hidden, targets, count, block, self.shards.parts)
        if not self._has_plain_output():
            block = self.vocabulary
        return novelty(self.head, hidden, targets, self.vocabulary, block)

    def _has_plain_output(self) -> bool:
        """Whether columns of the output layer can be computed: a linear layer, not sharded, without
        hooks."""
        plain = type(self.output) is nn.Linear and type(self.output.weight) is nn.Parameter
        linear = plain or type(self.output) is GroupedLinear
        return linear and bool(self.output_place[1]) and not self.output._forward_hooks
