"""A model as the pot's host: its trunk reads tokens into a pot, its head predicts from hidden states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast

from infinipot import compat
from infinipot.attention import at_work, attention, identity
from infinipot.catalyst import causal_softmax
from infinipot.pot import Pot
from infinipot.probe import rotations

Observer = Callable[[int, Tensor], None]
"""Gets a bounded layer's number and the attention of the rows just read over all entries, [B, H, T, P] float32."""


class _Reading:
    """One forward pass over a pot: raw keys go in, queries turn by slot."""

    def __init__(self, pot: Pot, observe: Observer | None) -> None:
        self.pot, self.observe = pot, observe

    def attend(self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, scaling: float, options: dict[str, Any]) -> Tensor:
        number: int = module.layer_idx  # type: ignore[assignment]
        layer = self.pot.layers[number]
        query = layer.rotate_queries(query)
        if self.observe is not None and layer.window is None:
            self.observe(number, causal_softmax(query, key, scaling, options.get("softcap"), options.get("s_aux")))
        return attention(module, query, key, value, scaling, layer.window, options)

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

    def forward(self, *args: Any, **kwargs: Any) -> BaseModelOutputWithPast:
        return BaseModelOutputWithPast(last_hidden_state=self.hidden)


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
        self.vocabulary: int = model.get_output_embeddings().weight.shape[0]

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
    def head(self, hidden: Tensor) -> Tensor:
        """Hidden states [B, T, hidden] -> logits [B, T, V], with the model's own scaling and soft-cap."""
        model, name = self.model, self.model.base_model_prefix
        trunk = model._modules[name]
        model._modules[name] = _Stub(trunk, hidden)
        try:
            ids = torch.zeros(hidden.shape[:2], dtype=torch.long, device=hidden.device)
            return model(input_ids=ids, use_cache=False).logits
        finally:
            model._modules[name] = trunk
