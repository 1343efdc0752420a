"""A model as the pot's host: its trunk reads tokens into a pot, its head predicts from hidden states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import MoeModelOutputWithPast

from infinipot import compat
from infinipot.attention import at_work, attention, identity, visible
from infinipot.catalyst import causal_softmax
from infinipot.novelty import BLOCK, novelty
from infinipot.pot import Pot
from infinipot.probe import rotations

Observer = Callable[[int, Tensor], None]
"""Gets a bounded layer's number and the attention of the rows just read over all entries, [B, H, T, P] float32."""


class _Reading:
    """One forward pass over a pot: raw keys go in, queries turn by slot."""

    def __init__(self, pot: Pot, observe: Observer | None) -> None:
        self.pot, self.observe = pot, observe
        self.masks: dict[tuple[int, int, int | None, torch.device], Tensor | None] = {}

    def attend(self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, scaling: float, options: dict[str, Any]) -> Tensor:
        number: int = module.layer_idx  # type: ignore[assignment]
        layer = self.pot.layers[number]
        query = layer.rotate_queries(query)
        if self.observe is not None and layer.window is None:
            self.observe(number, causal_softmax(query, key, scaling, options.get("softcap"), options.get("s_aux")))
        shape = (query.shape[-2], key.shape[-2], layer.window, query.device)
        if shape not in self.masks:
            self.masks[shape] = visible(*shape, query.dtype)
        return attention(module, query, key, value, scaling, self.masks[shape], options)

    def rotary(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        return identity(output)


class _Stub(nn.Module):
    """Stands in for the trunk, so that the model's own forward turns given hidden states into logits."""

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
        return MoeModelOutputWithPast(last_hidden_state=self.hidden)


class _Columns(nn.Module):
    """An output layer that computes the logits of a range of ids only."""

    def __init__(self, output: nn.Linear, columns: slice) -> None:
        super().__init__()
        self._weight = (output.weight[columns], None if output.bias is None else output.bias[columns])  # in a tuple: not parameters

    def forward(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, *self._weight)


class Host:
    """What the engine needs of a model, found out once: how layers are bounded and rotated. The model itself is never changed.

    Refuses, in words, what cannot be bounded or renumbered.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        compat.check_version()
        if model.config.is_encoder_decoder:
            raise ValueError(f"{type(model).__name__} is an encoder-decoder; a pot needs a decoder-only language model")
        self.model = model
        self.cache_argument = compat.cache_argument(model)
        self.windows = compat.layer_windows(model)
        if all(window is not None for window in self.windows):
            self.windows = [None] * len(self.windows)  # nothing but windows (Mistral v0.1): the pot takes their place, deliberately
        training = model.training
        model.eval()
        self.rotations = rotations(model, len(self.windows))
        model.train(training)
        self.output: Any = model.get_output_embeddings()
        self.output_place = next((m._modules, n) for m in model.modules() for n, child in m._modules.items() if child is self.output)
        self.vocabulary: int = self.output.weight.shape[0]

    @property
    def device(self) -> torch.device:
        return self.model.get_input_embeddings().weight.device

    def new_pot(self, size: int | None, reset: bool = True) -> Pot:
        return Pot(self.windows, self.rotations, size, reset)

    @torch.no_grad()
    def read(self, ids: Tensor, pot: Pot, observe: Observer | None = None) -> Tensor:
        """Run ids [B, T] through the trunk, behind the entries of the pot, which takes theirs. Returns hidden states [B, T, hidden]."""
        positions = torch.arange(pot.length, pot.length + ids.shape[1], device=ids.device)[None]
        with at_work(self.model, _Reading(pot, observe)):
            output = self.model.base_model(input_ids=ids, position_ids=positions, use_cache=True, **{self.cache_argument: pot})
        return output.last_hidden_state

    @torch.no_grad()
    def head(self, hidden: Tensor, columns: slice | None = None) -> Tensor:
        """Hidden states [B, T, hidden] -> logits [B, T, V], with the model's own scaling and soft-cap; of the ids in `columns` only, if given.

        The model's own forward does it, its trunk (and its output layer, for columns) exchanged for stand-ins while it runs.
        """
        model, ids = self.model, torch.zeros(hidden.shape[:2], dtype=torch.long, device=hidden.device)
        trunk, output = model.base_model, self.output
        swaps: list[tuple[dict[str, Any], str, nn.Module, nn.Module]] = [(model._modules, model.base_model_prefix, trunk, _Stub(trunk, hidden))]
        if columns is not None and columns != slice(0, self.vocabulary):
            swaps.append((self.output_place[0], self.output_place[1], output, _Columns(output, columns)))
        for modules, name, _, stand_in in swaps:
            modules[name] = stand_in
        try:
            return model(input_ids=ids, use_cache=False).logits
        finally:
            for modules, name, own, _ in swaps:
                modules[name] = own

    def novelty(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """NuC of targets [B, T], each predicted by its row of hidden [B, T, hidden]: nats, float32."""
        return novelty(self.head, hidden, targets, self.vocabulary, BLOCK if type(self.output) is nn.Linear else self.vocabulary)
