"""Any `ScorerPress` of kvpress (https://github.com/NVIDIA/kvpress) as a policy in the bounded loop.

kvpress itself is imported only for a press that is given by its name. A press is any object with
the method `score` of kvpress's.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from infinipot.checks import known, whole_number
from infinipot.policies.base import Observation
from infinipot.policies.options import Scored
from infinipot.policies.registry import literals

ARGUMENTS = ("module", "hidden_states", "keys", "values", "attentions", "kwargs")
MOST = 1 << 30
"""A window that no pot exceeds."""


@dataclass(frozen=True, kw_only=True)
class Press(Scored):
    """Entries with the highest scores of a kvpress press."""

    paper = "the press's own"

    press: Any = field(default=None, hash=False)
    """An object with kvpress's method `score`, or the name of a class of kvpress as a text, with options
    or without: `SnapKVPress(window_size=32)`. Only a text can be saved in a pot file."""
    window: int = MOST
    """Of how many newest tokens the press sees hidden states: at most as many as there are entries."""

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number("window", self.window, 1)
        score = getattr(self.scorer, "score", None)
        if isinstance(self.press, type) or not callable(score):
            raise TypeError(
                f"press={self.press!r} is not allowed: it must be an object with kvpress's method "
                "`score`, such as KnormPress(); presses without it cannot choose in a pot"
            )
        if tuple(inspect.signature(score).parameters) != ARGUMENTS:
            raise TypeError(
                f"press={self.press!r} is not allowed: its `score` must take {', '.join(ARGUMENTS)}"
            )

    @cached_property
    def scorer(self) -> Any:
        """The press itself."""
        if isinstance(self.press, str):
            return named_press(self.press)
        return self.press

    def needs(self) -> frozenset[str]:
        return frozenset({"hidden_states", "module"})

    def score(self, seen: Observation) -> Tensor:
        """The press sees P entries as a text of P tokens, and the hidden states of its newest W
        tokens. Whatever it rotates to the positions 0 .. W-1 stands at P-W .. P-1."""
        entries = seen.index.shape[-1]
        states = seen.require("hidden_states")[:, -entries:]
        assert seen.module is not None
        places = torch.arange(entries, device=states.device)
        newest = places[: states.shape[1]]
        kwargs: dict[str, Any] = {
            "hidden_states": states,
            "position_ids": newest[None],
            "cache_position": newest,
        }
        rotary = Rotary(seen, entries - states.shape[1])
        if rotary.exact():
            kwargs["position_embeddings"] = rotary(states, newest[None])
        keys = seen.rotate_to(seen.keys, places)
        with lent(seen.module, rotary), kept_share(self.scorer, seen.budget, entries):
            try:
                scores: Tensor = self.scorer.score(
                    seen.module, states, keys, seen.values, None, kwargs
                )
            except Exception as problem:
                raise ValueError(
                    f"{type(self.scorer).__name__} cannot score {entries} entries with hidden states of "
                    f"{states.shape[1]} tokens and without attention weights "
                    f"({type(problem).__name__}: {problem}): choose another press, other options of "
                    "it, or larger sizes"
                ) from problem
        return scores.float()


def named_press(text: str) -> Any:
    """A press from the name of its class in kvpress, with options or without. Other modules are not
    imported: the text may come from a pot file."""
    name, bracket, arguments = text.partition("(")
    try:
        kvpress = importlib.import_module("kvpress")
    except ImportError as problem:
        raise ValueError(
            f"press={text!r} needs kvpress ({problem}): pip install kvpress, "
            "or give an object with its method `score`"
        ) from problem
    press_class = getattr(kvpress, name, None)
    if not name.endswith("Press") or not isinstance(press_class, type):
        names = [each for each in vars(kvpress) if each.endswith("Press")]
        known("press", name, names)
        raise ValueError(f"press={text!r} is not allowed: kvpress has no class {name!r}")
    options = {}
    if bracket:
        options = literals(f"({arguments}", text, "press")
    return press_class(**options)


class Rotary:
    """The rotary embedding of a layer, as transformers' modules give it: `(cos, sin)`."""

    def __init__(self, seen: Observation, before: int) -> None:
        """before: how many positions stand before the first one that a press knows."""
        self.seen = seen
        self.before = before
        self.size = seen.keys.shape[-1]

    def __call__(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin [1, N, D] in the type of x, of the positions [1, N]."""
        places = position_ids[0] + self.before
        half = self.size // 2
        ones = torch.zeros(1, 1, len(places), self.size, device=x.device)
        ones[..., :half] = 1
        turned = self.seen.rotate_to(ones, places)[:, 0]
        cos = turned[..., :half].repeat(1, 1, 2)
        sin = turned[..., half:].repeat(1, 1, 2)
        return cos.to(x.dtype), sin.to(x.dtype)

    def exact(self) -> bool:
        """Whether the layer rotates all dimensions in halves, as presses do."""
        x = torch.linspace(-1, 1, self.size, device=self.seen.keys.device).expand(1, 1, 1, -1)
        place = torch.tensor([3], device=x.device)
        cos, sin = self(x, place[None] - self.before)
        first, second = x.chunk(2, dim=-1)
        turned = x * cos + torch.cat((-second, first), dim=-1) * sin
        return torch.allclose(turned, self.seen.rotate_to(x.contiguous(), place), atol=1e-4)


@contextmanager
def lent(module: nn.Module, rotary: Rotary) -> Iterator[None]:
    """Inside, the attention module has an attribute `rotary_emb`, as kvpress gives it, if the layer
    rotates as presses expect."""
    own = "rotary_emb" in module.__dict__ or "rotary_emb" in module._modules
    lending = not own and rotary.exact()
    if lending:
        module.__dict__["rotary_emb"] = rotary
    try:
        yield
    finally:
        if lending:
            del module.__dict__["rotary_emb"]


@contextmanager
def kept_share(press: Any, budget: int, entries: int) -> Iterator[None]:
    """Inside, the press has the compression ratio with which it would keep `budget` entries."""
    if not hasattr(press, "compression_ratio"):
        yield
        return
    before = press.compression_ratio
    press.compression_ratio = max(0.0, 1 - (budget + 0.5) / entries)  # kvpress rounds down
    try:
        yield
    finally:
        press.compression_ratio = before
