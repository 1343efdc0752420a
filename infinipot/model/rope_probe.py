"""Find out how a model rotates its keys, from two forward passes over four tokens, for any model
family.

Attention returns zeros, so that hidden states are the same in both passes. The first pass puts all
tokens at position 0, the second spreads them. The keys of the second pass must equal those of the
first, rotated by the output of the rotary modules.
"""

from __future__ import annotations

import copy
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from accelerate.hooks import remove_hook_from_module
from torch import Tensor, nn
from transformers import PreTrainedModel

from infinipot.cache.rope import STYLES, Rotation, Table, rotate
from infinipot.model.attention import Worker, at_work

POSITIONS = (0, 1, 5, 17)
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}


@dataclass
class Probe(Worker):
    """Records the keys of each layer and the calls of rotary modules. Attention returns zeros."""

    keys: dict[int, Tensor] = field(default_factory=dict)
    calls: list[tuple[nn.Module, tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scaling: float,
        options: dict[str, Any],
    ) -> Tensor:
        if options.get("position_bias") is not None:
            raise ValueError(
                f"{type(module).__name__} adds a position bias to its scores, "
                "which positions by slot cannot follow: no pot"
            )
        self.keys[module.layer_idx] = key.detach().clone()  # type: ignore[index]
        return query.new_zeros(query.shape[0], query.shape[2], query.shape[1], value.shape[-1])

    def rotary(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        self.calls.append((module, args, kwargs))


def table_of(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Table:
    """The cos and sin that a rotary module returns for any positions, in its own width, float32.

    Some rotary modules change their frequencies with the longest text. So every call uses a new
    copy, and first resets it with a text of one token. The copy has no hooks, which would move the
    inputs of a model on several devices.
    """
    before = remove_hook_from_module(copy.deepcopy(module))

    def stand_in(value: Any, positions: Tensor) -> Any:
        if not isinstance(value, Tensor):
            return value
        if value.is_floating_point():
            return torch.empty(1, 1, 1, device=positions.device)
        return positions.expand(*value.shape[:-1], -1)

    @torch.no_grad()
    def table(positions: Tensor) -> tuple[Tensor, Tensor]:
        module = copy.deepcopy(before).to(positions.device)
        for places in (torch.zeros_like(positions[:1]), positions):
            output = module(
                *(stand_in(a, places) for a in args),
                **{k: stand_in(v, places) for k, v in kwargs.items()},
            )
        if isinstance(output, tuple):
            cos, sin = output[:2]
        else:
            cos = output.real
            sin = output.imag
        # the first of time, height and width, which are equal in a text
        rows = len(positions)
        cos, sin = (x.float().reshape(-1, rows, x.shape[-1])[0] for x in (cos, sin))
        return cos, sin

    return table


def half_table(table: Table) -> Table:
    """Reduce a table with every frequency twice to [N, d/2]: twice side by side, or as two halves."""
    sample = table(torch.arange(8))[0]
    width = sample.shape[-1] // 2
    pick = slice(0, None, 2)
    if torch.equal(sample[:, :width], sample[:, width:]):
        pick = slice(0, width)

    def half(positions: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = table(positions)
        return cos[:, pick], sin[:, pick]

    return half


def candidates(probe: Probe) -> list[Rotation]:
    """All possible rotations of the keys: of each rotary call the whole and the half table, in each
    style."""
    tables = [table_of(*call) for call in probe.calls]
    return [
        Rotation(style=style, table=table)
        for whole in tables
        for table in (half_table(whole), whole)
        for style in STYLES
    ]


@dataclass
class Rows:
    """What tables hold for POSITIONS. Each is asked once for each device: it copies a module."""

    known: dict[tuple[Table, torch.device], tuple[Tensor, Tensor]] = field(default_factory=dict)

    def of(self, table: Table, device: torch.device) -> tuple[Tensor, Tensor]:
        if (table, device) not in self.known:
            self.known[table, device] = table(torch.tensor(POSITIONS, device=device))
        return self.known[table, device]


def error(rotation: Rotation, rows: Rows, at_zero: Tensor, spread: Tensor) -> float:
    """Largest difference, relative to the largest key, between the spread keys [B, K, 4, D] and the
    keys at 0 rotated anew."""
    cos, sin = rows.of(rotation.table, spread.device)
    d = 2 * cos.shape[-1]
    if d > spread.shape[-1]:
        return float("inf")
    # some tables include a scale, e.g. yarn
    scale = (cos[0] ** 2 + sin[0] ** 2).sqrt().mean()
    unscaled = torch.cat((at_zero[..., :d] / scale, at_zero[..., d:]), dim=-1)
    difference = rotate(unscaled, cos, sin, rotation.style) - spread
    return float(difference.abs().max() / spread.abs().max())


@torch.no_grad()
def rotations(model: PreTrainedModel, attends: list[bool]) -> list[Rotation | None]:
    """The rotation of each layer; None for a layer without RoPE.

    attends: whether each layer has attention. Raises ValueError for models whose positions cannot be
    renumbered.
    """
    name = type(model).__name__
    first = _pass(model, (0,) * len(POSITIONS))
    second = _pass(model, POSITIONS)
    _check_layers(name, second, attends)
    ways = candidates(second)
    rows = Rows()
    if not all(rows.of(way.table, model.device)[0][0].any() for way in ways):
        raise ValueError(f"{name}'s rotary embedding gives sine before cosine: no pot")
    result: list[Rotation | None] = [None] * len(attends)
    for number, attention in enumerate(attends):
        if not attention:
            continue
        at_zero = first.keys[number].float()
        spread = second.keys[number].float()
        if torch.allclose(at_zero, spread, atol=1e-6):
            continue
        errors = [error(way, rows, at_zero, spread) for way in ways] or [float("inf")]
        if min(errors) > TOLERANCE[first.keys[number].dtype]:
            raise ValueError(
                f"layer {number} of {name} does something to its keys after rotary embedding "
                "(a norm, or latent attention), so survivors cannot be given new positions: no pot"
            )
        result[number] = ways[errors.index(min(errors))]
    return result


def _pass(model: PreTrainedModel, positions: tuple[int, ...]) -> Probe:
    """One forward pass over four tokens at these positions."""
    ids = torch.arange(1, 1 + len(positions), device=model.device)[None]
    ids = ids % model.config.get_text_config().vocab_size
    places = torch.tensor([positions], device=model.device)
    probe = Probe()
    # attention code that needs a mask fails here; `_check_layers` refuses it
    with at_work(model, probe), suppress(TypeError, AttributeError):
        model.base_model(input_ids=ids, position_ids=places, use_cache=False)
    return probe


def _check_layers(name: str, probe: Probe, attends: list[bool]) -> None:
    attending = {number for number, attention in enumerate(attends) if attention}
    shared = sorted(set(probe.keys) - attending)
    if shared:
        raise ValueError(
            f"layers {shared} of {name} attend to the entries of other layers, "
            "which may keep others: no pot"
        )
    missing = sorted(attending - set(probe.keys))
    if missing:
        raise ValueError(
            f"{name} runs its own attention in layers {missing}, "
            "out of reach of transformers' attention interface: no pot"
        )
    # models with state-space layers need no positions
    if not probe.calls and all(attends):
        raise ValueError(
            f"{name} has no rotary embedding (learned positions or ALiBi), "
            "so survivors cannot be given new positions: no pot"
        )
