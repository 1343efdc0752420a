"""Layers with a recurrent state (state-space models, linear attention, short convolutions). Their
memory is fixed without a pot.

The pot does not change such a layer. It restores the state at a rollback, and copies and saves it. A
layer may have both a state and attention (Falcon-H1): then the pot stores its entries.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from infinipot.cache.layer import PotLayer
from infinipot.cache.rope import Rotation
from infinipot.cache.sliding import WindowLayer
from infinipot.compat import LinearAttentionLayer

TENSORS = ("conv_states", "recurrent_states")
FIELDS = (
    *TENSORS,
    "is_conv_states_initialized",
    "is_recurrent_states_initialized",
    "has_previous_state",
    "conv_kernel_size",
)
"""Fields of the layer of transformers, each a dict by the state's number."""


def clone_fields(fields: dict[str, Any]) -> dict[str, dict[int, Any]]:
    """A copy of the states, into whose tensors models write."""
    copies: dict[str, Any] = {}
    with torch.inference_mode(False):  # the pot may be used outside inference mode later
        for name in FIELDS:
            copies[name] = dict(fields[name])
            for number, x in fields[name].items():
                if isinstance(x, Tensor):
                    copies[name][number] = x.clone()
    return copies


class NoEntries:
    """A layer without attention: it has no entries."""

    window = 0
    is_initialized = is_sliding = is_compileable = is_croppable = supports_early_init = False
    length = peak = position = width = 0

    def note_peak(self, peak: int) -> None:
        pass

    def mark(self) -> Any:
        return None

    def rollback(self, mark: Any) -> None:
        pass

    def copy(self) -> Any:
        return copy.copy(self)

    def state(self) -> dict[str, Tensor]:
        return {}

    def restore(
        self, state: dict[str, Tensor], position: int, peak: int, dtype: torch.dtype
    ) -> None:
        pass

    def entry_bytes(self) -> int:
        return 0


class StateMixin:
    """Adds the state of the layer of transformers, which models change in place."""

    def __init__(self, states: int, *args: Any) -> None:
        super().__init__(*args)
        self.has_previous_state: dict[int, bool]
        LinearAttentionLayer.__init__(self, number_of_states=states)

    def lazy_initialization(self, *entries: Tensor, **states: Any) -> None:
        if entries:
            super().lazy_initialization(*entries)  # type: ignore[misc]
        else:
            with torch.inference_mode(False):
                LinearAttentionLayer.lazy_initialization(self, **states)

    def mark(self) -> Any:
        return clone_fields(vars(self)), super().mark()  # type: ignore[misc]

    def rollback(self, mark: Any) -> None:
        states, entries = mark
        vars(self).update(clone_fields(states))
        super().rollback(entries)  # type: ignore[misc]

    def copy(self, *args: Any) -> Any:
        twin = super().copy(*args)  # type: ignore[misc]
        vars(twin).update(clone_fields(vars(self)))
        return twin

    def state(self) -> dict[str, Tensor]:
        carried = {
            f"{name}.{n}": x
            for name in TENSORS
            for n, x in getattr(self, name).items()
            if x is not None
        }
        return {**super().state(), **carried}  # type: ignore[misc]

    def restore(
        self, state: dict[str, Tensor], position: int, peak: int, dtype: torch.dtype
    ) -> None:
        super().restore(state, position, peak, dtype)  # type: ignore[misc]
        for name in TENSORS:
            for n in getattr(self, name):
                if (tensor := state.get(f"{name}.{n}")) is not None:
                    self.lazy_initialization(**{name: tensor, "state_idx": n})
                    getattr(self, name)[n].copy_(tensor)
                    self.has_previous_state[n] |= name == "conv_states"

    def entry_bytes(self) -> int:
        states = [x for name in TENSORS for x in getattr(self, name).values() if x is not None]
        return int(super().entry_bytes()) + sum(x.nbytes for x in states)  # type: ignore[misc]


class StateLayer(StateMixin, NoEntries, LinearAttentionLayer):
    """A state without attention."""


class StatePotLayer(StateMixin, PotLayer, LinearAttentionLayer):
    """A state and full attention. The pot bounds the entries."""


class StateWindowLayer(StateMixin, WindowLayer, LinearAttentionLayer):
    """A state and a sliding window."""


def new_layer(
    window: int | None, states: int, rotation: Rotation | None, size: int | None, *how: Any
) -> Any:
    """An empty layer. window: None for full attention, 0 for no attention. states: number of states.
    how: further arguments of PotLayer."""
    if window is None:
        if states:
            return StatePotLayer(states, size, rotation, *how)
        return PotLayer(size, rotation, *how)
    if window == 0:
        if states:
            return StateLayer(states)
        return NoEntries()
    if states:
        return StateWindowLayer(states, window, rotation)
    return WindowLayer(window, rotation)
