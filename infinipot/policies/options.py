"""Options that several policies share, and checks of their values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from infinipot.catalysts import KINDS, REMOVED
from infinipot.checks import known, whole_number, within
from infinipot.policies.base import Policy
from infinipot.scoring.selection import POOLINGS, REDUCTIONS


def check_name(option: str, value: Any, names: Any, optional: bool = False) -> None:
    if value is None and optional:
        return
    if not isinstance(value, str):
        raise TypeError(f"{option}={value!r} is not allowed: it must be a name")
    known(option, value, names)


def check_prompt(option: str, value: Any, names: Any = None) -> None:
    """None, a text of several words, or one of `names`; any text if there are no names."""
    if value is None:
        return
    if not isinstance(value, str):
        raise TypeError(f"{option}={value!r} is not allowed: it must be a name or a text")
    if value in REMOVED:
        raise ValueError(
            f"{option}={value!r} is gone: use 'general', or give the prompt itself, as a text"
        )
    if names is not None and value.isascii() and " " not in value:
        known(option, value, names)


def check_share(option: str, value: Any, more: str = "") -> None:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise TypeError(
            f"{option}={value!r} is not allowed: it must be a number between 0 and 1{more}"
        )
    within(option, value, 0, 1)


@dataclass(frozen=True, kw_only=True)
class Ends(Policy):
    """Options of policies that always keep the first and the newest entries."""

    sinks: int = 0
    """First entries after the pinned ones that always stay, counted in distill_to."""
    recent: int | None = None
    """Newest entries that always stay, counted in distill_to. None: by the policy and the size."""

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number("sinks", self.sinks, 0)
        if self.recent is not None:
            whole_number("recent", self.recent, 0)


@dataclass(frozen=True, kw_only=True)
class Scored(Ends):
    """Options of policies that give entries a score."""

    pool: int | None = None
    """Slots over which scores are smoothed: an odd number; 0 does not smooth. None: by the policy,
    the size and the catalyst."""
    pool_mode: str | None = None
    """`avg` or `max` of the slots around an entry; `trailing`: the average of it and those before.
    None: as for pool."""
    shared_heads: bool = False
    """Whether all heads of a layer keep the same entries, by the mean of their scores."""
    score_memory: float | str = 0.0
    """How much of its earlier score an entry keeps (0 to 1). `once`: an entry is scored
    only at its first distillation, by a catalyst that does not see older survivors."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pool is not None:
            whole_number("pool", self.pool, 0)
            if self.pool and self.pool % 2 == 0:
                raise ValueError(
                    f"pool={self.pool} is not allowed: the window must be odd, "
                    f"to have a middle where it is centred; try {self.pool + 1}"
                )
        check_name("pool_mode", self.pool_mode, POOLINGS, optional=True)
        if not isinstance(self.shared_heads, bool):
            raise TypeError(
                f"shared_heads={self.shared_heads!r} is not allowed: it must be True or False"
            )
        if self.score_memory != "once":
            check_share("score_memory", self.score_memory, ", or 'once'")
        elif not {"catalyst", "hidden_states"} & self.needs() or "replay" in self.needs():
            raise ValueError(
                "score_memory='once' goes by the catalyst's attention: use policy 'infinipot' with "
                "novelty below 1"
            )


@dataclass(frozen=True, kw_only=True)
class Attended(Scored):
    """Options of policies that score by attention."""

    gqa: str = "mean"
    """How the scores of the query heads that share a KV head become one: mean, max or sum."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_name("gqa", self.gqa, REDUCTIONS)


@dataclass(frozen=True, kw_only=True)
class Prompting(Policy):
    """Options of policies that read a prompt, the catalyst, to see what it attends to."""

    catalyst: str | None = None
    """`question`, `general`, `facts`, `unrelated`, `repeat`, `plain`, or a prompt of your own (a
    text of several words). None: the policy's own, else the question where one is known. Without
    one `infinipot` leaves the choice to `outliers`, unless another of its options for scores is
    set; then, and in other policies, it is `general`."""
    answer_prefix: str | None = None
    """The first words of an answer, placed after the catalyst. The model then attends to what would
    come next. None: the catalyst's own, if any."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_prompt("catalyst", self.catalyst, KINDS)
        check_prompt("answer_prefix", self.answer_prefix)


@dataclass(frozen=True, kw_only=True)
class Prompted(Prompting, Scored):
    """Options of policies that score by the attention of the catalyst."""
