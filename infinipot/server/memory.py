"""How many sessions the memory has room for."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from infinipot.cache.layer import PotLayer
from infinipot.cache.pot import Pot
from infinipot.cache.sliding import WindowLayer
from infinipot.config import PotConfig
from infinipot.engine.distill import MOST_UNSCORED
from infinipot.engine.plan import Plan, chunk_tokens, layout_of
from infinipot.model.groups import block_rows, weights_in_groups
from infinipot.model.rounding import GROUP
from infinipot.model.runner import ModelRunner
from infinipot.scoring.novelty import BLOCK

LEAST = 2
"""A conversation's pot and the copy in which it goes on."""
MOST = 256
FRACTIONS = {"cuda": 0.9}
OTHER_FRACTION = 0.5
"""On a CPU other programs need memory, too."""
SLOTS = 64
"""Slots of a trial pot. Another one has twice as many."""
TOKENS = 2
"""Tokens that a trial pot reads."""
CGROUP = Path("/sys/fs/cgroup")


def sessions_that_fit(runner: ModelRunner, config: PotConfig, fraction: float | None = None) -> int:
    """How many pots of this config fit into the free memory, from LEAST to MOST.

    fraction: the part of the free memory that they may take; None: by the kind of device. One
    chunk's activations are left free, and what unpacked weights take.
    """
    if fraction is None:
        fraction = FRACTIONS.get(runner.device.type, OTHER_FRACTION)
    room = fraction * free_bytes(runner.devices) - activation_bytes(runner, config)
    room -= unpacked_bytes(runner)
    session = pot_bytes(runner, config) + unscored_bytes(runner, config)
    return min(MOST, max(LEAST, int(room // session)))


def unscored_bytes(runner: ModelRunner, config: PotConfig) -> int:
    """Bytes of the hidden states that wait for their NuC, at most."""
    if "novelty" not in config.policy.needs():
        return 0
    text: Any = runner.model.config.get_text_config()
    tokens = min(config.pot_size, MOST_UNSCORED)
    return int(tokens * text.hidden_size * runner.model.dtype.itemsize)


def free_bytes(devices: list[torch.device]) -> int:
    """Bytes of memory that the model's devices have left, with what torch keeps for reuse."""
    gpus = {device for device in devices if device.type == "cuda"}
    if not gpus:
        return _free_ram()
    free = 0
    for device in gpus:
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        free += torch.cuda.mem_get_info(device)[0] + unused
    return free


def _free_ram() -> int:
    """Bytes that the machine has left, or the container if that is less."""
    try:
        import psutil

        free = int(psutil.virtual_memory().available)
    except ModuleNotFoundError:
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    try:
        most = int((CGROUP / "memory.max").read_text())
        return min(free, most - int((CGROUP / "memory.current").read_text()))
    except (OSError, ValueError):  # no container, or one without a limit
        return free


def activation_bytes(runner: ModelRunner, config: PotConfig) -> int:
    """An estimate of what a forward pass over one chunk needs: eight vectors of the hidden size and
    three of the MLP's for each token, and one block of logits in float32, twice."""
    kind = runner.device.type
    tokens = chunk_tokens(config, runner)
    text: Any = runner.model.config.get_text_config()
    inner = getattr(text, "intermediate_size", None) or 4 * text.hidden_size
    elements = 8 * text.hidden_size + 3 * inner
    columns = min(runner.vocabulary, BLOCK.get(kind, runner.vocabulary))
    return int(tokens * (elements * runner.model.dtype.itemsize + 2 * 4 * columns))


def unpacked_bytes(runner: ModelRunner) -> int:
    """Bytes for the unpacked weights of one layer, of weights in groups on a GPU."""
    shapes = [(one.shape[0], one.shape[1]) for one in weights_in_groups(runner.model).values()]
    return most_unpacked(shapes, runner.model.dtype, runner.device)


def most_unpacked(
    shapes: Iterable[tuple[int, int]], dtype: torch.dtype, device: torch.device
) -> int:
    """Bytes that weights [N, K] of these shapes take on a GPU when they are unpacked, one after the
    other: twice, since recordings have memory of their own."""
    if device.type != "cuda":
        return 0
    rounded = [(outputs, -(-width // GROUP) * GROUP) for outputs, width in shapes]
    sizes = [min(rows, block_rows(width, device)) * width for rows, width in rounded]
    return 2 * max(sizes, default=0) * dtype.itemsize


def pot_bytes(runner: ModelRunner, config: PotConfig) -> int:
    """Bytes of a full pot after a distillation, as `Pot.entry_bytes` counts them.

    Two small trial pots show what a slot takes. A pot without a bound counts as one of pot_size.
    """
    plan = Plan.of(config, runner.windows.count(None))
    layout = layout_of(config, plan)
    plans = iter(plan.layers)
    total = 0
    trials = [_trial(runner, replace(layout, size=size, sizes=None)) for size in (SLOTS, 2 * SLOTS)]
    for layer, other in zip(*(pot.layers for pot in trials), strict=True):
        total += layer.entry_bytes()
        if isinstance(layer, PotLayer):
            own = next(plans)
            size = own.size or config.pot_size
            total += (other.entry_bytes() - layer.entry_bytes()) * (size - SLOTS) // SLOTS
            total += _records_bytes(layer, plan, size, own.budget)
        elif isinstance(layer, WindowLayer) and layer.length:
            token = sum(x.nbytes for x in (layer.keys, layer.values, layer.rotated)) // TOKENS
            total += token * (layer.window - 1 - TOKENS)
    return int(total)


def _trial(runner: ModelRunner, layout: Any) -> Pot:
    pot = runner.new_pot(layout)
    runner.read(torch.ones(1, TOKENS, dtype=torch.long, device=runner.device), [pot])
    return pot


def _records_bytes(layer: PotLayer, plan: Plan, size: int, budget: int) -> int:
    """Bytes of what a full layer stores about survivors and attention, less what it has stored."""
    total = 0
    if plan.policy.bounded:
        # place in the text int32, novelty float32, and the last score float32 if it is stored
        total += budget * layer.keys.shape[1] * (8 + 4 * plan.remembers)
    if layer.attention_stats is not None:
        stats = layer.attention_stats
        tokens = {"received": size, "queries": stats.rows, "hidden_states": stats.hidden_rows}
        for name, x in stats.state().items():
            rows = x.shape[-1 if name == "received" else -2]
            total += x.nbytes // rows * min(tokens[name], size) - x.nbytes
    return total
