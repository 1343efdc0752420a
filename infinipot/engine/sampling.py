"""From logits to the next token, for many answers at once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from infinipot.engine.penalties import AnswerTokens, Constraint, Penalties
from infinipot.sampling import Sampling

COLDEST = 1e-5
"""Below this temperature the likeliest token is taken, as at 0."""
HOTTEST = 1e30
"""From this temperature on all tokens are equally likely."""
DRAWS = 64
"""Random numbers made at a time."""
BLOCK = 256
"""Tokens whose probabilities are added up first: no running sum over the whole vocabulary."""
BELOW_ONE = 1 - 2**-53


class Sampler:
    """Picks the next token: the likeliest at a temperature near 0, else at random. A seed makes the choice
    repeatable: alone and in a batch, on every device. One answer at a time."""

    def __init__(self, sampling: Sampling, constraint: Constraint | None = None) -> None:
        self.sampling = sampling
        self.answer = AnswerTokens(sampling, constraint)
        self.greedy = sampling.temperature < COLDEST
        self._numbers = _uniform(sampling.seed)

    def __call__(self, logits: Tensor) -> int:
        """logits [1, V] -> a token id."""
        return int(sample([self], logits.float()))

    def draw(self) -> float:
        """The next random number, at least 0 and below 1."""
        return next(self._numbers)


class PickedTokens:
    """Tokens of several answers, [B] int64, on their way from the device. Whoever asks for one waits
    until they are there."""

    def __init__(self, tokens: Tensor) -> None:
        self._arrival: torch.cuda.Event | None = None
        self._tokens: list[int] | None = None
        self._copy = tokens
        if tokens.is_cuda:
            self._copy = torch.empty(tokens.shape, dtype=tokens.dtype, pin_memory=True)
            self._copy.copy_(tokens, non_blocking=True)
            with torch.cuda.device(tokens.device):
                self._arrival = torch.cuda.Event()
                self._arrival.record()

    def __getitem__(self, row: int) -> int:
        if self._tokens is None:
            if self._arrival is not None:
                self._arrival.synchronize()
            self._tokens = self._copy.tolist()
        return self._tokens[row]


def _uniform(seed: int | None) -> Iterator[float]:
    """Random numbers, made on the CPU: the same ones for every device."""
    random = torch.Generator()
    random.seed()
    if seed is not None:
        random.manual_seed(seed)
    while True:
        yield from torch.rand(DRAWS, dtype=torch.float64, generator=random).tolist()


def sample(samplers: Sequence[Sampler], logits: Tensor) -> Tensor:
    """Pick the next token of each row: logits [B, V] float32 -> ids [B] int64 on the same device.

    Row b gets the token that samplers[b] would pick alone. The host never waits for the device.
    """
    return _batch(tuple(samplers), logits.device).sample(logits)


class SamplerBatch:
    """Picks tokens for several answers. It holds their settings as tensors."""

    def __init__(self, samplers: Sequence[Sampler], device: torch.device) -> None:
        self.device = device
        self.warm = [sampler for sampler in samplers if not sampler.greedy]
        """Those that pick at random."""
        self.mixed = 0 < len(self.warm) < len(samplers)
        """Whether some rows are greedy and some are not."""
        self.rows = torch.tensor(
            [row for row, one in enumerate(samplers) if not one.greedy],
            dtype=torch.long,
            device=device,
        )
        self.penalties: Penalties | None = None
        if any(sampler.answer.matters for sampler in samplers):
            self.penalties = Penalties([sampler.answer for sampler in samplers], device)
        options = [sampler.sampling for sampler in self.warm]
        self.temperature = self._column([min(one.temperature, HOTTEST) for one in options]).float()
        self.min_p = self._column([one.min_p for one in options])
        self.filters: list[Filter] = []
        self._add_filter(
            functools.partial(keep_top_k, most=max((one.top_k for one in options), default=0)),
            {row: one.top_k for row, one in enumerate(options) if one.top_k},
        )
        self._add_filter(
            keep_top_p, {row: one.top_p for row, one in enumerate(options) if one.top_p < 1}
        )

    def sample(self, logits: Tensor) -> Tensor:
        """logits [B, V] float32 -> ids [B] int64."""
        if self.penalties is not None:
            logits = self.penalties(logits)
        if not self.warm:
            return logits.argmax(dim=-1)
        if not self.mixed:
            return self._sample_warm(logits)
        picked = self._sample_warm(logits.index_select(0, self.rows))
        return logits.argmax(dim=-1).index_copy(0, self.rows, picked)

    def _sample_warm(self, logits: Tensor) -> Tensor:
        """The rows at random: logits [R, V] -> ids [R]."""
        numbers = torch.tensor(
            [sampler.draw() for sampler in self.warm],
            dtype=torch.float64,
            pin_memory=self.device.type == "cuda",
        )
        return choose(self.weigh(logits), numbers.to(self.device, non_blocking=True))

    def weigh(self, logits: Tensor) -> Tensor:
        """What the tokens' probabilities are proportional to, for the rows at random: logits [R, V]
        -> [R, V], 0 for tokens that are filtered out."""
        scores = logits / self.temperature
        for limit in self.filters:
            scores = limit(scores)
        weights = (scores - scores.amax(dim=-1, keepdim=True)).exp()
        return weights.masked_fill(weights < self.min_p, 0)

    def _add_filter(
        self, keep: Callable[[Tensor, Tensor], Tensor], limits: dict[int, float]
    ) -> None:
        """limits: by row; rows that are left out are not filtered."""
        if limits:
            rows = None
            if len(limits) < len(self.warm):
                rows = torch.tensor([*limits], device=self.device)
            self.filters.append(Filter(keep, rows, self._column([*limits.values()])))

    def _column(self, values: Sequence[float]) -> Tensor:
        """[R, 1] float64"""
        return torch.tensor(values, dtype=torch.float64, device=self.device)[:, None]


_batch = functools.lru_cache(maxsize=256)(SamplerBatch)
"""Answers go on together for many steps, so their batch is kept."""


@dataclass(frozen=True)
class Filter:
    """Removes unlikely tokens of some rows."""

    keep: Callable[[Tensor, Tensor], Tensor]
    """scores [R, V], limits [R, 1] -> scores, with -inf for what is removed."""
    rows: Tensor | None
    """[R]; None: all rows."""
    limits: Tensor

    def __call__(self, scores: Tensor) -> Tensor:
        """scores [B, V] -> [B, V]"""
        if self.rows is None:
            return self.keep(scores, self.limits)
        some = self.keep(scores.index_select(0, self.rows), self.limits)
        return scores.index_copy(0, self.rows, some)


def keep_top_k(scores: Tensor, top_k: Tensor, most: int) -> Tensor:
    """Keep the top_k [R, 1] best tokens of each row, and those equal to the last one. most: the
    largest of top_k."""
    size = scores.shape[-1]
    best = scores.topk(min(most, size), dim=-1).values
    least = best.gather(-1, (top_k.long() - 1).clamp(max=size - 1))
    return scores.masked_fill(scores < least, -torch.inf)


def keep_top_p(scores: Tensor, top_p: Tensor) -> Tensor:
    """Keep the fewest tokens of each row that have a probability of top_p [R, 1] together."""
    ordered, ids = scores.sort(dim=-1)
    below = ordered.softmax(dim=-1).cumsum(dim=-1, dtype=torch.float64)
    remove = below <= 1 - top_p
    remove[:, -1] = False
    return scores.masked_fill(remove.scatter(-1, ids, remove), -torch.inf)


def choose(weights: Tensor, numbers: Tensor) -> Tensor:
    """Pick by weight: weights [B, V] of at least 0, numbers [B] float64 in [0, 1) -> ids [B].

    The id at which the running sum of the weights, in the order of ids, exceeds that part of the
    sum. Its weight is never 0, unless all are.
    """
    blocks = F.pad(weights, (0, -weights.shape[-1] % BLOCK)).unflatten(-1, (-1, BLOCK))
    sums = blocks.sum(dim=-1, dtype=torch.float64)
    block, rest = _exceed(sums, numbers[:, None])
    inside = blocks.gather(1, block[:, :, None].expand(-1, -1, BLOCK))[:, 0]
    place, _ = _exceed(inside.double(), rest)
    return (block * BLOCK + place)[:, 0]


def _exceed(weights: Tensor, parts: Tensor) -> tuple[Tensor, Tensor]:
    """Where the running sum of weights [B, N] exceeds parts [B, 1] of the sum: indices [B, 1], and
    which part [B, 1] of the weight there was needed."""
    sums = weights.cumsum(dim=-1).masked_fill(weights == 0, -1)  # such places are never chosen
    aims = parts * sums.amax(dim=-1, keepdim=True)
    index = (sums > aims).to(torch.uint8).argmax(dim=-1, keepdim=True)
    weight = weights.gather(-1, index)
    before = sums.gather(-1, index) - weight
    return index, ((aims - before) / weight).clamp(0, BELOW_ONE)


def end_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None) -> set[int]:
    """All ids that end an answer, from the model's generation config, its config and its tokenizer."""
    ends: set[int] = set()
    for source in (model.generation_config, model.config, tokenizer):
        value = getattr(source, "eos_token_id", None)
        if isinstance(value, (list, tuple)):
            ends |= set(value)
        elif value is not None:
            ends.add(value)
    return ends
