"""Find out how a model rotates its keys, by asking the model: two forward passes over four tokens,
no table of families.

Attention answers zeros, so hidden states are the same in both passes at every layer. The first pass
puts all tokens at position 0, the second spreads them; the keys of the second must be those of the
first, rotated by what the rotary modules returned.
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
    """Remembers each layer's keys and each call of a rotary module; attention returns zeros."""

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
                f"{type(module).__name__} adds a position bias to its scores, which positions by slot cannot follow: no pot"
            )
        self.keys[module.layer_idx] = key.detach().clone()  # type: ignore[index]
        return query.new_zeros(query.shape[0], query.shape[2], query.shape[1], value.shape[-1])

    def rotary(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        self.calls.append((module, args, kwargs))


def table_of(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Table:
    """The cos and sin a rotary module returns for any positions, as wide as it states them, in
    float32.

    Some kinds of rotary embedding change their frequencies as they are called and remember the
    longest text, so a fresh copy is asked every time, after a text of one token has made it forget
    whatever the model read before. The copy goes where it is asked to, so it loses the hook by
    which a model spread over several devices would send what it is given elsewhere.
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
        # the first, where time, height and width are told apart: in a text they are equal
        rows = len(positions)
        return cos.float().reshape(-1, rows, cos.shape[-1])[0], sin.float().reshape(
            -1, rows, sin.shape[-1]
        )[0]

    return table


def half_table(table: Table) -> Table:
    """Cut a table that states every frequency twice to [N, d/2]: side by side, or one half after
    the other."""
    sample = table(torch.arange(8))[0]
    width = sample.shape[-1] // 2
    one_after_other = torch.equal(sample[:, :width], sample[:, width:])
    if one_after_other:
        pick = slice(0, width)
    else:
        pick = slice(0, None, 2)

    def half(positions: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = table(positions)
        return cos[:, pick], sin[:, pick]

    return half


def candidates(probe: Probe) -> list[Rotation]:
    """Every way the keys might have been rotated: each rotary call, its table whole or halved, in
    each style."""
    tables = [table_of(*call) for call in probe.calls]
    return [
        Rotation(style=style, table=table)
        for whole in tables
        for table in (half_table(whole), whole)
        for style in STYLES
    ]


def error(rotation: Rotation, at_zero: Tensor, spread: Tensor) -> float:
    """Largest difference, relative to the largest key, between the spread keys [B, K, 4, D] and the
    keys at 0 rotated anew."""
    cos, sin = rotation.table(torch.tensor(POSITIONS, device=spread.device))
    d = 2 * cos.shape[-1]
    if d > spread.shape[-1]:
        return float("inf")
    # folded into the table by some kinds, e.g. yarn
    scale = (cos[0] ** 2 + sin[0] ** 2).sqrt().mean()
    unscaled = torch.cat((at_zero[..., :d] / scale, at_zero[..., d:]), dim=-1)
    return float(
        (rotate(unscaled, cos, sin, rotation.style) - spread).abs().max() / spread.abs().max()
    )


@torch.no_grad()
def rotations(model: PreTrainedModel, attends: list[bool]) -> list[Rotation | None]:
    """Each layer's rotation, None for a layer without RoPE or, as `attends` says, without
    attention. Refuses models whose positions cannot be renumbered."""
    name = type(model).__name__
    ids = (
        torch.arange(1, 1 + len(POSITIONS), device=model.device)[None]
        % model.config.get_text_config().vocab_size
    )
    passes = []
    for positions in ((0,) * len(POSITIONS), POSITIONS):
        probe = Probe()
        # some attention code cannot do without a mask; it is refused below
        with at_work(model, probe), suppress(TypeError, AttributeError):
            model.base_model(
                input_ids=ids,
                position_ids=torch.tensor([positions], device=model.device),
                use_cache=False,
            )
        passes.append(probe)
    first, second = passes
    attending = {number for number, attention in enumerate(attends) if attention}
    shared = sorted(set(second.keys) - attending)
    if shared:
        raise ValueError(
            f"layers {shared} of {name} attend to the entries of other layers, which may keep others: no pot"
        )
    missing = sorted(attending - set(second.keys))
    if missing:
        raise ValueError(
            f"{name} runs its own attention in layers {missing}, out of reach of transformers' attention interface: no pot"
        )
    if not second.calls and all(attends):  # else order may come from the layers that carry a state
        raise ValueError(
            f"{name} has no rotary embedding (learned positions or ALiBi), so survivors cannot be given new positions: no pot"
        )
    ways = candidates(second)
    if not all(way.table(torch.zeros(1, dtype=torch.long))[0].any() for way in ways):
        raise ValueError(f"{name}'s rotary embedding gives sine before cosine: no pot")
    result: list[Rotation | None] = []
    for number, attention in enumerate(attends):
        at_zero, spread = (
            keys[number].float() if attention else torch.empty(0)
            for keys in (first.keys, second.keys)
        )
        if torch.allclose(at_zero, spread, atol=1e-6):  # or nothing to compare
            result.append(None)
            continue
        errors = [error(way, at_zero, spread) for way in ways] or [float("inf")]
        if min(errors) > TOLERANCE[first.keys[number].dtype]:
            raise ValueError(
                f"layer {number} of {name} does something to its keys after rotary embedding (a norm, or latent attention), so survivors "
                "cannot be given new positions: no pot"
            )
        result.append(ways[errors.index(min(errors))])
    return result
