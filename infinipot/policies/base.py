"""Policies: they decide which entries of a full pot survive."""

from __future__ import annotations

import dataclasses
import inspect
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from infinipot.scoring.selection import choose, pool

if TYPE_CHECKING:
    from typing_extensions import Self

QUESTION = (None, "question")
"""Kinds of catalyst for a known question. None: not decided yet."""


@dataclass(frozen=True, kw_only=True)
class Observation:
    """One layer of a full pot. `P` is the number of entries without the pinned ones.

    keys, values     [B, K, P, D]  keys before rotary embedding
    rotated          [B, K, P, D]  keys as attention reads them, computed when asked for
    index            [B, K, P]     place of the token in the text, int64
    novelty          [B, K, P]     NuC in nats, float32
    catalyst         [B, K, P]     CaP representativeness: attention from all rows of the catalyst, summed
    received         [B, K, P]     attention from all tokens read since the entry, summed
    newest           [B, K, P]     attention from the newest `window` tokens, summed
    queries          [B, H, W, D]  queries of the newest W tokens before rotary embedding, W at most `window` of
                                   the policy, H query heads; newest last
    hidden_states    [B, W, hidden]  what the layer's attention module got for the newest W tokens, behind
                                   its norm; W at most `window`
    module                         the layer's attention module, with its projections (transformers)
    replay           [B, K, P]     maximum attention from any row, while the text is read again
    sentences        [F]           number of the sentence of each token since the last distillation, int64
    past             [B, K, S]     scores of the first S entries at the last distillation; None if not stored
    sinks, recent                  number of first and of last entries that must stay
    window                         number of tokens in `newest`
    pool, pool_mode                smoothing of scores along the slots
    position                       position of the next token
    budget                         number of entries to keep
    rotate_to(x, positions)        x [B, heads, N, D] with the rotary embedding of positions [N]
    mean_of_ranks(x)               mean of x over the processes that share out the heads (tensor parallelism)

    Attention is float32, reduced to KV heads. Fields that are not in `Policy.needs` are None.
    """

    keys: Tensor
    values: Tensor
    rotate: Callable[[], Tensor]
    index: Tensor
    novelty: Tensor | None = None
    catalyst: Tensor | None = None
    received: Tensor | None = None
    newest: Tensor | None = None
    queries: Tensor | None = None
    hidden_states: Tensor | None = None
    module: nn.Module | None = None
    replay: Tensor | None = None
    sentences: Tensor | None = None
    past: Tensor | None = None
    sinks: int = 0
    recent: int = 0
    window: int = 0
    pool: int = 0
    pool_mode: str = "avg"
    position: int = 0
    budget: int = 0
    rotate_to: Callable[[Tensor, Tensor], Tensor] = field(default=lambda x, positions: x)
    mean_of_ranks: Callable[[Tensor], Tensor] = field(default=lambda x: x)

    @property
    def rotated(self) -> Tensor:
        return self.rotate()

    def require(self, name: str) -> Tensor:
        """An observation that the policy names in `needs`. Raises TypeError if it does not."""
        value: Tensor | None = getattr(self, name)
        if value is None:
            raise TypeError(f"{name} was not observed: a policy must name it in `needs`")
        return value

    def given(self, name: str) -> Tensor:
        """The old name of `require`."""
        warnings.warn(
            "Observation.given is called require now; the old name goes with the next release",
            DeprecationWarning,
            stacklevel=2,
        )
        return self.require(name)


class UnknownOption(TypeError, ValueError):
    """An option that a policy does not have."""

    def __init__(self, policy: type[Policy], option: str) -> None:
        self.policy = policy
        self.option = option
        options = ", ".join(policy.options()) or "none"
        super().__init__(
            f"policy {policy.name!r} has no option {option!r} (its options: {options}): "
            "leave it out, or choose a policy that has it"
        )

    def __reduce__(self) -> tuple[type[UnknownOption], tuple[type[Policy], str]]:
        return UnknownOption, (self.policy, self.option)


def fixed(value: Any) -> Any:
    """A constant instead of an option, for policies that do not have the option."""
    return value


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Chooses the survivors of a distillation. Its options are the fields of the dataclass, each with
    a default and a docstring.

    To write one: derive a frozen, keyword-only dataclass with `score` from this class, or from a
    class in `policies.options` to inherit options. `PotConfig(policy=MyPolicy(alpha=0.3))` uses it.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    paper: ClassVar[str] = ""
    bounded: ClassVar[bool] = True
    """The pot is bounded and distilled. False: all entries stay."""
    cuts: ClassVar[bool] = False
    """The middle of the text is never read (truncate)."""
    grouped: ClassVar[bool] = False
    """Groups of distant entries share a position (SelfExtend)."""

    stacks: ClassVar[bool] = False
    """`score` looks at no `keys` and `values`, so one call may see several layers of a plan: [L, K, P]
    instead of [B, K, P]. It may look at `rotated`. A class with a `score` of its own says so itself."""

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
        if "score" in cls.__dict__ and "stacks" not in cls.__dict__:
            cls.stacks = False
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
        """Names of the options."""
        return [field.name for field in dataclasses.fields(cls)]

    @property
    def chooses_by_layer(self) -> bool:
        """Whether `choose` is overridden, so that layers cannot be chosen together."""
        return type(self).choose is not Policy.choose

    @property
    def values(self) -> dict[str, Any]:
        """The options by name."""
        return {name: getattr(self, name) for name in self.options()}

    def __post_init__(self) -> None:
        """Raise for impossible values. Overrides call `super().__post_init__()`."""

    # ---------------------------------------------------------------- for the plan

    def for_catalyst(self, kind: str | None) -> Policy:
        """The policy that chooses with this kind of catalyst. It has the same `sinks` and `recent`."""
        return self

    def needs(self) -> frozenset[str]:
        """The fields of `Observation` to compute, of {"novelty", "catalyst", "received", "newest",
        "queries", "hidden_states", "module", "replay", "sentences"}."""
        return frozenset()

    def default_recent(self, budget: int) -> int:
        """`recent` for a layer of `budget` survivors, if the option is None."""
        return 0

    def default_smoothing(self, budget: int, asked: bool) -> tuple[int, str]:
        """`pool` and `pool_mode`, if the options are None. asked: the question is known before the
        first distillation."""
        return 0, "avg"

    def newest_kept(self, budget: int) -> int:
        """`recent` for a layer of `budget` survivors."""
        if self.recent is None:
            return self.default_recent(budget)
        return int(self.recent)

    def smoothing(self, budget: int, catalyst: str | None) -> tuple[int, str]:
        """`pool` and `pool_mode` of a layer of `budget` survivors. catalyst: the kind in force. If
        only one option is set, the other gets the default for an unknown question."""
        unset = self.pool is None and self.pool_mode is None
        width, mode = self.default_smoothing(budget, unset and catalyst in QUESTION)
        if self.pool is not None:
            width = self.pool
        if self.pool_mode is not None:
            mode = self.pool_mode
        return width, mode

    # ---------------------------------------------------------------- choosing

    def score(self, layer: Observation) -> Tensor | None:
        """A score of each entry, [B, K, P]: the highest stay. None: only novelty decides."""
        raise TypeError(f"policy {self.name!r} never distils")

    def judge(self, layer: Observation) -> Tensor | None:
        """The score after the options `shared_heads` and `score_memory`."""
        scores = self.score(layer)
        if scores is None:
            return None
        if self.shared_heads:
            mean = layer.mean_of_ranks(scores.mean(dim=1, keepdim=True))
            scores = mean.expand_as(scores)
        if layer.past is None:
            if self.score_memory != "once":
                return scores
            return pool(scores, layer.pool, layer.pool_mode)
        old = scores[..., : layer.past.shape[-1]]
        new = scores[..., layer.past.shape[-1] :]
        # smoothed now, as new entries will have other neighbours later
        if self.score_memory == "once":
            return torch.cat((layer.past, pool(new, layer.pool, layer.pool_mode)), dim=-1)
        return torch.cat((torch.maximum(old, self.score_memory * layer.past), new), dim=-1)

    def judge_layers(self, layers: Sequence[Observation]) -> Tensor | None:
        """The scores of L layers of one shape, [L, K, P]. Raises ValueError for scores of another
        shape."""
        judged = [self.judge(layer) for layer in layers]
        scores = [x for x in judged if x is not None]
        for x, layer in zip(scores, layers, strict=False):
            if x.shape != layer.index.shape:
                raise ValueError(
                    f"policy {self.name!r} gave scores of shape {tuple(x.shape)}: "
                    f"they must be [B, K, P] = {tuple(layer.index.shape)}"
                )
        if not scores:
            return None
        return torch.cat(scores)

    @property
    def smooths(self) -> bool:
        """Whether `choose` smooths the scores. They are smooth already if they are stored so."""
        return self.score_memory != "once"

    def choose(self, layer: Observation, scores: Tensor | None, budget: int) -> Tensor:
        """Indices [B, K, budget] of the entries that stay, ascending, with sinks and recent ones."""
        if scores is not None and self.smooths:
            scores = pool(scores, layer.pool, layer.pool_mode)
        return choose(
            budget,
            novelty=layer.novelty,
            scores=scores,
            share=self.novelty,
            sinks=layer.sinks,
            recent=layer.recent,
        )
