"""Hidden states for policies that ask for them: what attention modules get, noted while they run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn


@contextmanager
def noted(
    modules: Mapping[int, nn.Module], pots: Sequence[Any], counts: Sequence[int]
) -> Iterator[None]:
    """Inside, each pot notes the hidden states of its own tokens in the row, if its layers ask for
    them.

    modules: the attention modules by the number of their layer. counts: the tokens of each pot.
    """
    hooks = []
    for number, module in modules.items():
        layers = [pot.layers[number] for pot in pots]
        if any(layer.attention_stats and layer.attention_stats.hidden_rows for layer in layers):
            hook = partial(_note, layers, list(counts))
            hooks.append(module.register_forward_pre_hook(hook, with_kwargs=True))
    try:
        yield
    finally:
        for handle in hooks:
            handle.remove()


def _note(
    layers: list[Any],
    counts: list[int],
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> None:
    states: Tensor | None = kwargs.get("hidden_states", next(iter(args), None))
    if states is None:
        raise TypeError(
            f"{type(module).__name__} gets no `hidden_states`, which the policy asks for: "
            "choose a policy that does without them"
        )
    for layer, own in zip(layers, states.split(counts, dim=1), strict=True):
        layer.note_hidden(own)
