"""Every option and its default, in one place. Unknown names and impossible values are refused when they are given."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

from infinipot.catalyst import KINDS
from infinipot.policies import POLICIES
from infinipot.selection import POOLINGS, REDUCTIONS


def known(what: str, value: str, allowed: Iterable[str]) -> None:
    """Refuse a name that is not among those allowed, with the nearest one."""
    names = list(allowed)
    if value in names:
        return
    near = difflib.get_close_matches(value, names, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ValueError(f"unknown {what} {value!r}; {hint}(known: {', '.join(names)})")


def within(what: str, value: float, low: float, high: float | None = None) -> None:
    if not (value >= low and (high is None or value <= high)):
        allowed = f"at least {low}" if high is None else f"between {low} and {high}"
        raise ValueError(f"{what}={value} is not allowed: it must be {allowed}")


@dataclass(frozen=True, kw_only=True)
class PotConfig:
    """The pot and how it is distilled. Sizes are entries (tokens) per layer and KV head."""

    pot_size: int = 2048
    """|M|: never more entries than this, whatever they are: survivors, the chunk being read, the catalyst, the answer."""
    distill_to: int | None = None
    """|C|: entries that survive a distillation, beside the pinned ones. None: half the pot."""
    policy: str = "infinipot"
    novelty: float = 0.5
    """Share of the surviving slots that go to novelty (NuC): 0 is CaP alone, 1 is NuC alone."""
    catalyst: str | None = None
    """`question`, `general`, `general-1`, `general-2`, `unrelated`, `plain`, or a prompt of your own (a text of several words). None: the
    question where one is known, else `general`."""
    sinks: int | None = None
    """First entries after the pinned ones that always stay, counted in distill_to. None: the policy's own default."""
    recent: int = 0
    """Newest entries that always stay, counted in distill_to."""
    pool: int = 0
    """Width of the window, in slots, over which scores are smoothed: an odd number; 0 leaves them alone."""
    pool_kind: str = "avg"
    gqa: str = "mean"
    """How the scores of the query heads that share a KV head become one."""
    context_reset: bool = True
    """CR-RoPE: positions start again at 0 after a distillation. False lets them grow for ever (the paper's ablation)."""
    chunk_tokens: int = 512
    """Most tokens in one forward pass while reading. Results do not depend on it, memory for activations does."""

    def __post_init__(self) -> None:
        known("policy", self.policy, POLICIES)
        known("pool_kind", self.pool_kind, POOLINGS)
        known("gqa", self.gqa, REDUCTIONS)
        for name in ("pot_size", "recent", "pool", "chunk_tokens", *(n for n in ("distill_to", "sinks") if getattr(self, n) is not None)):
            if not isinstance(getattr(self, name), int) or isinstance(getattr(self, name), bool):
                raise TypeError(f"{name}={getattr(self, name)!r} is not allowed: it must be a whole number of tokens")
        within("pot_size", self.pot_size, 2)
        within("novelty", self.novelty, 0, 1)
        within("recent", self.recent, 0)
        within("pool", self.pool, 0)
        within("chunk_tokens", self.chunk_tokens, 1)
        within("sinks", self.kept_sinks, 0)
        if self.pool and self.pool % 2 == 0:
            raise ValueError(f"pool={self.pool} is not allowed: the window must be odd, to have a middle; try {self.pool + 1}")
        if not isinstance(self.context_reset, bool):
            raise TypeError(f"context_reset={self.context_reset!r} is not allowed: it must be True or False")
        if self.catalyst == "plain" and self.pot_size < 64:
            raise ValueError(f"pot_size={self.pot_size} is not allowed with catalyst='plain': the newest 32 tokens need a pot of at least 64")
        if self.catalyst is not None and self.catalyst.isascii() and " " not in self.catalyst:
            known("catalyst", self.catalyst, KINDS)
        if POLICIES[self.policy].reads == "pot":
            within("distill_to", self.survivors, 1, self.pot_size - 1)
            if self.kept_sinks + self.recent > self.survivors:
                raise ValueError(
                    f"sinks={self.kept_sinks} + recent={self.recent} do not fit in distill_to={self.survivors}: keep fewer, or distil to more"
                )

    @property
    def survivors(self) -> int:
        """|C| with its default filled in."""
        return self.pot_size // 2 if self.distill_to is None else self.distill_to

    @property
    def kept_sinks(self) -> int:
        """Sinks with the policy's default filled in."""
        return POLICIES[self.policy].sinks if self.sinks is None else self.sinks


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How an answer is generated. The defaults are greedy decoding."""

    max_tokens: int = 256
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    """Texts that end the answer; they are not part of it."""

    def __post_init__(self) -> None:
        if not isinstance(self.max_tokens, int) or isinstance(self.max_tokens, bool):
            raise TypeError(f"max_tokens={self.max_tokens!r} is not allowed: it must be a whole number")
        within("max_tokens", self.max_tokens, 1)
        within("temperature", self.temperature, 0)
        within("top_k", self.top_k, 0)
        within("top_p", self.top_p, 0, 1)
        within("min_p", self.min_p, 0, 1)
        if isinstance(self.stop, str):
            raise TypeError(f"stop={self.stop!r} is not allowed: it must be a tuple of texts, e.g. ({self.stop!r},)")
        if any(not text for text in self.stop):
            raise ValueError("stop holds an empty text, which would end every answer at once")
