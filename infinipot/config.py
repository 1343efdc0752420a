"""Every option and its default, in one place. Unknown names and impossible values are refused when they are given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from infinipot.cache.storage import QUANTISED
from infinipot.catalysts import KINDS, PRESETS
from infinipot.checks import known, within
from infinipot.policies import POLICIES
from infinipot.scoring.selection import POOLINGS, REDUCTIONS, apportion

RECIPES: dict[str, dict[str, Any]] = {
    "paper": {"novelty": 0.5, "pool": 0, "recent": 0},
    "facts": {"catalyst": "facts", "contrast": "unrelated", "persist": "once", "pool": 21, "pool_kind": "avg"},
}
"""Presets: options as the paper has them, where our defaults are others; and those that keep single facts of which nobody knows yet that they
will be asked for (docs/results.md says why)."""
NAMES = ("pool_kind", "pot_dtype", "catalyst", "begun", "contrast")
"""Options that are a name, or a text, or None."""
FREE = 1024
"""So much of a large pot is free after a distillation by default: less would distil too often, more would keep less than it could."""
PYRAMID = 20
"""How much less than the mean the top layer keeps under `pyramid` (PyramidKV's beta)."""


@dataclass(frozen=True, kw_only=True)
class PotConfig:
    """The pot and how it is distilled. Sizes are entries (tokens) per layer and KV head. None: the policy's own default."""

    pot_size: int = 2048
    """|M|: never more entries than this, whatever they are: survivors, the chunk being read, the catalyst, the answer."""
    distill_to: int | str | None = None
    """|C|: entries that survive a distillation, beside the pinned ones. None: half the pot; of one above 2,048 all but 1,024, at most three
    quarters. `auto`: in each layer as few as hold `coverage` of what the catalyst attends to, between an eighth and a half of the pot."""
    coverage: float = 0.9
    """With distill_to `auto`: the share of the catalyst's attention that survivors hold."""
    policy: str = "infinipot"
    novelty: float = 0.25
    """Share of the surviving slots that go to novelty (NuC): 0 is CaP alone, 1 is NuC alone."""
    catalyst: str | None = None
    """`question`, `general`, `general-1`, `general-2`, `facts`, `unrelated`, `repeat`, `plain`, or a prompt of your own (a text of several
    words). None: the policy's own, else the question where one is known, else `general`."""
    begun: str | None = None
    """First words of an answer, read behind the catalyst, so that it looks for what follows them. None: the catalyst's own, if any."""
    contrast: str | None = None
    """A second catalyst (not `question` or `plain`) by whose attention that of the first is divided, so that what any prompt looks at counts
    for little: `unrelated` is made for it."""
    sinks: int | None = None
    """First entries after the pinned ones that always stay, counted in distill_to."""
    recent: int | None = None
    """Newest entries that always stay, counted in distill_to."""
    window: int | None = None
    """How many newest tokens' attention counts (policies snapkv and tova)."""
    pool: int | None = None
    """Width of the window, in slots, over which scores are smoothed: an odd number; 0 leaves them alone."""
    pool_kind: str | None = None
    """`avg` or `max` over the slots around an entry; `trailing`: the average of it and those before."""
    gqa: str = "mean"
    """How the scores of the query heads that share a KV head become one."""
    shared_heads: bool | None = None
    """Whether all heads of a layer keep the same entries, by the mean of their scores."""
    persist: float | str | None = None
    """How much of the score with which it survived an entry keeps: 0 forgets it, 1 lets it keep the largest it ever had. `once`: it is judged
    once, while it is new, by a catalyst that sees no survivors, so that scores do not depend on what else is in the pot."""
    layer_budget: str | tuple[float, ...] = "uniform"
    """How |C| is shared out over layers at the same memory in all: `uniform`, `pyramid` (lower layers keep more, as in PyramidKV, arXiv
    2406.02069), or a weight for each bounded layer. A layer's |M| differs from the pot's by as much as its |C| does."""
    pot_dtype: str | None = None
    """How entries are stored: `int8` or `fp8`, with a scale for each vector; None: in the model's own type."""
    prefill: str = "bounded"
    """`bounded`: the pot never holds more than pot_size. `whole`: all is read without a bound and distilled once, before the answer, as the
    methods it is compared with were published."""
    context_reset: bool = True
    """CR-RoPE: positions start again at 0 after a distillation. False lets them grow for ever (the paper's ablation)."""
    group: int = 8
    """Policy self_extend: how many distant entries share a position."""
    neighbours: int = 1024
    """Policy self_extend: how many newest entries have positions of their own."""
    chunk_tokens: int | None = None
    """Most tokens in one forward pass while reading. Results do not depend on it, memory for activations does. None: 512, on a GPU 2048."""

    def __post_init__(self) -> None:
        if isinstance(self.layer_budget, list):
            object.__setattr__(self, "layer_budget", tuple(self.layer_budget))
        self._check_names()
        self._check_numbers()
        if self.pot_dtype is not None and not self.context_reset:
            raise ValueError("pot_dtype needs context_reset: entries in eight bits are turned by slot whenever they are read")
        if self.catalyst == "plain" and self.pot_size < 64:
            raise ValueError(f"pot_size={self.pot_size} is not allowed with catalyst='plain': the newest 32 tokens need a pot of at least 64")
        policy = POLICIES[self.policy]()
        needs = policy.needs(self.novelty)
        for name, value in (("distill_to", "auto"), ("persist", "once"), ("contrast", self.contrast or "")):
            if getattr(self, name) == value and ("catalyst" not in needs or "replay" in needs or policy.share(self.novelty) >= 1):
                raise ValueError(f"{name}={value!r} goes by the catalyst's attention: use policy 'infinipot' with novelty below 1")
        if self.contrast is not None and (self.distill_to == "auto" or self.catalyst == "plain"):
            raise ValueError(f"contrast={self.contrast!r} divides by a second prompt: not with catalyst='plain' or distill_to='auto'")
        if self.persist == "once" and self.distill_to == "auto":
            raise ValueError("persist='once' needs scores that can be compared later: not with distill_to='auto'")
        if POLICIES[self.policy].reads == "pot":
            within("distill_to", self.survivors, 1, self.pot_size - 1)
            if self.own("sinks") + self.own("recent") > self.least_survivors:
                raise ValueError(
                    f"sinks={self.own('sinks')} + recent={self.own('recent')} do not fit in distill_to={self.least_survivors}: keep fewer, or "
                    "distil to more"
                )

    def _check_names(self) -> None:
        for name in ("policy", "gqa", "prefill", *NAMES):
            value = getattr(self, name)
            if not isinstance(value, str) and not (value is None and name in NAMES):
                raise TypeError(f"{name}={value!r} is not allowed: it must be a name" + " or a text" * (name in NAMES[2:]))
        if not isinstance(self.layer_budget, (str, tuple)):
            raise TypeError(f"layer_budget={self.layer_budget!r} is not allowed: give 'uniform', 'pyramid', or a weight above 0 for each layer")
        named = {"policy": POLICIES, "gqa": REDUCTIONS, "prefill": ("bounded", "whole"), "pool_kind": POOLINGS, "pot_dtype": QUANTISED}
        for name, allowed in {**named, "distill_to": ("auto",), "layer_budget": ("uniform", "pyramid")}.items():
            if isinstance(getattr(self, name), str):
                known(name, getattr(self, name), allowed)
        for name, kinds in (("catalyst", KINDS), ("contrast", tuple(PRESETS))):
            value = getattr(self, name)
            if value is not None and value.isascii() and " " not in value:
                known(name, value, kinds)
        for name in ("context_reset", "shared_heads"):
            if getattr(self, name) not in (True, False, None) or (name == "context_reset" and self.context_reset is None):
                raise TypeError(f"{name}={getattr(self, name)!r} is not allowed: it must be True or False")

    def _check_numbers(self) -> None:
        ones = ("window", "group", "neighbours", "chunk_tokens", "distill_to")
        least = {"pot_size": 2, "sinks": 0, "recent": 0, "pool": 0, **dict.fromkeys(ones, 1)}
        for name, low in least.items():
            value = getattr(self, name)
            if value is None or (name == "distill_to" and value == "auto"):
                continue
            if not isinstance(value, int) or isinstance(value, bool):
                raise TypeError(f"{name}={value!r} is not allowed: it must be a whole number of tokens")
            within(name, value, low)
        for name in ("novelty", "coverage", "persist"):
            value = getattr(self, name)
            if name == "persist" and value in (None, "once"):
                continue
            if not isinstance(value, (int, float)) or isinstance(value, bool):
                raise TypeError(f"{name}={value!r} is not allowed: it must be a number between 0 and 1" + ", or 'once'" * (name == "persist"))
            within(name, value, 0, 1)
        if self.pool and self.pool % 2 == 0:
            raise ValueError(
                f"pool={self.pool} is not allowed: the window must be odd, to have a middle where it is centred; try {self.pool + 1}"
            )
        weights = self.layer_budget
        if not isinstance(weights, str) and not (weights and all(isinstance(w, (int, float)) and 0 < w < float("inf") for w in weights)):
            raise ValueError(f"layer_budget={weights} is not allowed: give 'uniform', 'pyramid', or a weight above 0 for each layer")

    @property
    def chunk(self) -> int:
        return self.chunk_tokens or 512

    @property
    def survivors(self) -> int:
        """|C|, the most with `auto`."""
        most = self.pot_size // 2 if self.distill_to == "auto" else min(self.pot_size - FREE, 3 * self.pot_size // 4)
        return self.distill_to if isinstance(self.distill_to, int) else max(self.pot_size // 2, most)

    @property
    def least_survivors(self) -> int:
        """The fewest entries a distillation leaves, before layers share them out."""
        return max(1, self.pot_size // 8) if self.distill_to == "auto" else self.survivors

    def own(self, name: str, budget: int | None = None) -> Any:
        """An option; where it is None, its default for this policy and these sizes. budget: |C| of the layer it is for, where they differ."""
        value, policy, budget = getattr(self, name), POLICIES[self.policy](), self.least_survivors if budget is None else budget
        if value is not None:
            return value
        if name == "recent":
            return policy.recent(budget, self.own("window"))
        alone = self.pool is None and self.pool_kind is None  # one that is given is not joined by the other of the wide window
        pool, kind = policy.smoothing(budget, alone and self.catalyst in (None, "question"))
        sized = {"pool": pool, "pool_kind": kind, "distill_to": self.survivors}
        return sized[name] if name in sized else getattr(policy, name, None)

    def budgets(self, layers: int) -> list[int]:
        """|C| of each of the bounded layers: `layers` times `survivors` in all."""
        if self.layer_budget == "uniform" or (POLICIES[self.policy].reads != "pot" and self.layer_budget == "pyramid"):
            return [self.survivors] * layers
        weights: Sequence[Any] = self.layer_budget
        if self.layer_budget == "pyramid":  # evenly down to the top layer's twentieth of the mean
            top = 1 / PYRAMID
            weights = [2 - top - (2 - 2 * top) * n / max(1, layers - 1) for n in range(layers)]
        if len(weights) != layers:
            raise ValueError(f"layer_budget has {len(weights)} weights, but the model has {layers} layers that a pot bounds: give as many")
        shares = apportion(layers * self.survivors, [float(weight) for weight in weights])
        least = min(shares)
        sinks, recent = self.own("sinks"), self.own("recent", least)
        if least < max(1, sinks + recent):
            raise ValueError(
                f"layer_budget leaves a layer {least} entries, fewer than sinks={sinks} + recent={recent}, and at least 1: distil to more, "
                "weigh layers more evenly, or give a smaller recent"
            )
        return shares


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
        for name, low, high in (("max_tokens", 1, None), ("temperature", 0, None), ("top_k", 0, None), ("top_p", 0, 1), ("min_p", 0, 1)):
            within(name, getattr(self, name), low, high)
        if isinstance(self.stop, str):
            raise TypeError(f"stop={self.stop!r} is not allowed: it must be a tuple of texts, e.g. ({self.stop!r},)")
        if any(not text for text in self.stop):
            raise ValueError("stop holds an empty text, which would end every answer at once")
