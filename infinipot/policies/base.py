"""What a policy is: its options, and by them which entries of a full pot survive."""

from __future__ import annotations

import dataclasses
import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from infinipot.scoring.selection import choose, pool

if TYPE_CHECKING:
    from typing_extensions import Self

QUESTION = (None, "question")
"""The kinds of catalyst that know the question: the question itself; None, where nothing has been
settled yet."""


@dataclass(frozen=True, kw_only=True)
class Observation:
    """One layer of a full pot, as a policy sees it. `P` counts the entries that may be distilled;
    pinned ones are not among them.

    keys, values     [B, K, P, D]  keys before rotary embedding
    rotated          [B, K, P, D]  keys as attention reads them
    index            [B, K, P]     place of each entry's token in the text, int64
    novelty          [B, K, P]     NuC in nats, float32
    catalyst         [B, K, P]     CaP representativeness: attention received from the catalyst's rows together
    received         [B, K, P]     attention received from all tokens of the text since the entry was read, together
    newest           [B, K, P]     attention received from the newest `window` tokens of the text together
    replay           [B, K, P]     most attention received from any one row while the text is read once more behind the catalyst
    past             [B, K, S]     the scores with which the S first entries survived last time; None unless scores are remembered
    sinks, recent                  how many of the first and of the last entries must stay
    window                         how many newest tokens `newest` speaks of
    pool, pool_mode                how scores are smoothed along the slots

    Attention is float32, reduced to KV heads. What a policy does not need (`Policy.needs`) is None.
    """

    keys: Tensor
    values: Tensor
    rotated: Tensor
    index: Tensor
    novelty: Tensor | None = None
    catalyst: Tensor | None = None
    received: Tensor | None = None
    newest: Tensor | None = None
    replay: Tensor | None = None
    past: Tensor | None = None
    sinks: int = 0
    recent: int = 0
    window: int = 0
    pool: int = 0
    pool_mode: str = "avg"

    def given(self, name: str) -> Tensor:
        """What a policy needs and has therefore been given."""
        found: Tensor | None = getattr(self, name)
        if found is None:
            raise TypeError(f"{name} was not observed: a policy must name it in `needs`")
        return found


class UnknownOption(TypeError, ValueError):
    """An option that a policy does not have."""

    def __init__(self, policy: type[Policy], option: str) -> None:
        self.policy = policy
        self.option = option
        options = ", ".join(policy.options()) or "none"
        super().__init__(
            f"policy {policy.name!r} has no option {option!r} (its options: {options}): leave it out, or choose a policy that has it"
        )

    def __reduce__(self) -> tuple[type[UnknownOption], tuple[type[Policy], str]]:
        return UnknownOption, (self.policy, self.option)


def fixed(value: Any) -> Any:
    """The value of an option for policies that do not have it: no field, so it cannot be set."""
    return value


@dataclass(frozen=True, kw_only=True)
class Policy:
    """How survivors are chosen. Options are the fields of the dataclass, each with a default and a
    line of text below it.

    To write one, here or anywhere else: a frozen, keyword-only dataclass with `score`, on top of
    this class or of one from `policies.options`, whose options it then has, too.
    `PotConfig(policy=MyPolicy(alpha=0.3))` uses it.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    paper: ClassVar[str] = ""
    bounded: ClassVar[bool] = True
    """Whether the pot is bounded and distilled; else everything stays."""
    cuts: ClassVar[bool] = False
    """Whether the middle of the text is cut out unread (truncate)."""
    grouped: ClassVar[bool] = False
    """Whether distant positions are shared by groups of entries (SelfExtend)."""

    sinks = fixed(0)
    recent = fixed(None)
    window = fixed(0)
    pool = fixed(None)
    pool_mode = fixed(None)
    gqa = fixed("mean")
    shared_heads = fixed(False)
    score_memory = fixed(0.0)
    novelty = fixed(0.0)
    catalyst = fixed(None)
    answer_prefix = fixed(None)
    contrast = fixed(None)

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if "name" not in cls.__dict__:
            cls.name = cls.__name__
        if "summary" not in cls.__dict__:
            cls.summary = (cls.__doc__ or cls.__name__).strip().splitlines()[0].rstrip(".")

    def __new__(cls, *args: Any, **options: Any) -> Self:
        parameters = inspect.signature(cls.__init__).parameters
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            for option in options:
                if option not in parameters:
                    raise UnknownOption(cls, option)
        return super().__new__(cls)

    @classmethod
    def options(cls) -> list[str]:
        """The names of its options."""
        return [field.name for field in dataclasses.fields(cls)]

    @property
    def values(self) -> dict[str, Any]:
        """Its options, by name."""
        return {name: getattr(self, name) for name in self.options()}

    def __post_init__(self) -> None:
        """Refuse impossible values. Whoever overrides this calls `super().__post_init__()`."""

    # ---------------------------------------------------------------- what the plan asks

    def needs(self) -> frozenset[str]:
        """Which of {"novelty", "catalyst", "received", "newest", "replay"} must be observed."""
        return frozenset()

    def default_recent(self, budget: int) -> int:
        """How many newest entries stay where `recent` is None, of a layer that keeps `budget`
        entries."""
        return 0

    def default_smoothing(self, budget: int, asked: bool) -> tuple[int, str]:
        """`pool` and `pool_mode` where they are None. asked: whether the question is known before
        the first distillation."""
        return 0, "avg"

    def newest_kept(self, budget: int) -> int:
        """How many newest entries of a layer stay."""
        if self.recent is None:
            return self.default_recent(budget)
        return int(self.recent)

    def smoothing(self, budget: int, catalyst: str | None) -> tuple[int, str]:
        """`pool` and `pool_mode` of a layer. catalyst: the kind in force. One that is set is not
        joined by the other of a wide window."""
        unset = self.pool is None and self.pool_mode is None
        width, mode = self.default_smoothing(budget, unset and catalyst in QUESTION)
        return (
            width if self.pool is None else self.pool,
            mode if self.pool_mode is None else self.pool_mode,
        )

    # ---------------------------------------------------------------- choosing

    def score(self, seen: Observation) -> Tensor | None:
        """How much each entry deserves to stay, [B, K, P]; None if novelty alone decides."""
        raise TypeError(f"policy {self.name!r} never distils")

    def judge(self, seen: Observation) -> Tensor | None:
        """The score with what the options say about heads and the past."""
        scores = self.score(seen)
        if scores is None:
            return None
        if self.shared_heads:
            scores = scores.mean(dim=1, keepdim=True).expand_as(scores)
        if seen.past is None:
            if self.score_memory != "once":
                return scores
            return pool(scores, seen.pool, seen.pool_mode)
        old = scores[..., : seen.past.shape[-1]]
        new = scores[..., seen.past.shape[-1] :]
        # smoothed among what is new: its neighbours will not be the same again
        if self.score_memory == "once":
            return torch.cat((seen.past, pool(new, seen.pool, seen.pool_mode)), dim=-1)
        return torch.cat((torch.maximum(old, self.score_memory * seen.past), new), dim=-1)

    def choose(self, seen: Observation, scores: Tensor | None, budget: int) -> Tensor:
        """Indices [B, K, budget] of the entries that stay, ascending, sinks and recent ones among
        them."""
        if scores is None or self.score_memory == "once":
            smooth = scores
        else:
            smooth = pool(scores, seen.pool, seen.pool_mode)
        return choose(
            budget,
            novelty=seen.novelty,
            scores=smooth,
            share=self.novelty,
            sinks=seen.sinks,
            recent=seen.recent,
        )
