"""What an answer's own tokens, and its rules, change in the logits of its next token.

The host knows all tokens of an answer when it asks for the next one, so nothing here waits for the
device: new tokens and masks are on their way to it like the ids that the model reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from infinipot.machine import on_device
from infinipot.sampling import Sampling


class Constraint(Protocol):
    """Which tokens may come next, by a grammar."""

    problem: str | None
    """What went wrong inside; the answer then ends."""

    def accept(self, token: int) -> None:
        """The answer goes on with this token."""

    def fill(self, mask: Tensor) -> None:
        """Set the bits of the allowed tokens in mask [ceil(V / 32)] int32, on the CPU."""


class AnswerTokens:
    """The tokens of one answer, as far as they change its logits."""

    def __init__(self, sampling: Sampling, constraint: Constraint | None = None) -> None:
        self.sampling = sampling
        self.constraint = constraint
        self.count = 0
        self.ends: tuple[int, ...] = ()
        """The tokens that end the answer."""
        self.counted = bool(sampling.presence_penalty or sampling.frequency_penalty)
        self.repeated = sampling.repetition_penalty != 1
        self._prompt: list[int] = []
        self._new: list[int] = []
        """Tokens that are not in `_counts` yet."""
        self._counts: Tensor | None = None
        """[2, V] float32: how often a token stands in the answer, and in the question."""

    @property
    def matters(self) -> bool:
        """Whether it may change logits at all."""
        rules = self.sampling.min_tokens or self.sampling.logit_bias or self.constraint is not None
        return bool(self.counted or self.repeated or rules)

    def begin(self, prompt: Sequence[int], ends: set[int]) -> None:
        """The answer begins. prompt: the ids of its question."""
        self._prompt = list(prompt)
        self.ends = tuple(sorted(ends))
        self._new = []
        self._counts = None
        self.count = 0

    def accept(self, token: int) -> None:
        """The answer goes on with this token."""
        self.count += 1
        if self.counted or self.repeated:
            self._new.append(token)
        if self.constraint is not None:
            self.constraint.accept(token)

    def end(self) -> None:
        """The answer has ended: what it held is free."""
        self._counts = None
        self.constraint = None

    @property
    def held(self) -> bool:
        """Whether no token may end the answer yet."""
        return self.count < self.sampling.min_tokens and bool(self.ends)

    def counts(self, like: Tensor) -> Tensor:
        """[2, V] float32 on the device of `like` [B, V]."""
        if self._counts is None:
            self._counts = like.new_zeros(2, like.shape[-1], dtype=torch.float32)
            self._add(1, self._prompt)
        self._add(0, self._new)
        self._new = []
        return self._counts

    def _add(self, row: int, tokens: Sequence[int]) -> None:
        assert self._counts is not None
        if tokens:
            ids = on_device(tokens, self._counts.device)
            ones = torch.ones(len(tokens), device=self._counts.device)
            self._counts[row].index_add_(0, ids, ones)


class Penalties:
    """Penalties, biases and rules of a batch. Rows without any stay as they are."""

    def __init__(self, answers: Sequence[AnswerTokens], device: torch.device) -> None:
        self.device = device
        numbered = list(enumerate(answers))
        self.ruled = [(row, one) for row, one in numbered if one.constraint is not None]
        self.held = [(row, one) for row, one in numbered if one.sampling.min_tokens]
        self.counted = [(row, one) for row, one in numbered if one.counted or one.repeated]
        options = [one.sampling for _, one in self.counted]
        self.rows = on_device([row for row, _ in self.counted], device)
        self.repetition = self._column([one.repetition_penalty for one in options])
        self.presence = self._column([one.presence_penalty for one in options])
        self.frequency = self._column([one.frequency_penalty for one in options])
        biased = [
            (row, token, value) for row, one in numbered for token, value in one.sampling.logit_bias
        ]
        self.bias: tuple[Tensor, Tensor, Tensor] | None = None
        if biased:
            rows, tokens, values = zip(*biased, strict=True)
            amounts = torch.tensor(values, dtype=torch.float32, device=device)
            self.bias = (on_device(rows, device), on_device(tokens, device), amounts)

    def _column(self, values: Sequence[float]) -> Tensor:
        """[R, 1] float32"""
        return torch.tensor(values, dtype=torch.float32, device=self.device)[:, None]

    def __call__(self, logits: Tensor) -> Tensor:
        """logits [B, V] float32 -> [B, V]; the argument stays as it is."""
        if self.bias is not None:
            rows, tokens, values = self.bias
            logits = logits.index_put((rows, tokens), values, accumulate=True)
        if self.counted:
            some = self._penalised(logits.index_select(0, self.rows))
            logits = logits.index_copy(0, self.rows, some)
        logits = self._hold(logits)
        if self.ruled:
            logits = self._rule(logits)
        return logits

    def _penalised(self, logits: Tensor) -> Tensor:
        """logits [R, V] of the rows with penalties -> [R, V]"""
        counts = torch.stack([one.counts(logits) for _, one in self.counted])
        answer = counts[:, 0]
        seen = (counts.sum(dim=1) > 0) & (self.repetition != 1)
        scaled = torch.where(logits > 0, logits / self.repetition, logits * self.repetition)
        logits = torch.where(seen, scaled, logits)
        return logits - self.frequency * answer - self.presence * (answer > 0)

    def _hold(self, logits: Tensor) -> Tensor:
        """Without the ends of answers that may not end yet."""
        ends = [(row, end) for row, one in self.held if one.held for end in one.ends]
        if not ends:
            return logits
        rows, tokens = on_device(ends, self.device).unbind(dim=1)
        return logits.index_put((rows, tokens), logits.new_full((), -torch.inf))

    def _rule(self, logits: Tensor) -> Tensor:
        """Without the tokens that a grammar does not allow."""
        words = -(-logits.shape[-1] // 32)
        pinned = self.device.type == "cuda"
        masks = torch.full((len(logits), words), -1, dtype=torch.int32, pin_memory=pinned)
        for row, one in self.ruled:
            if one.constraint is not None:
                one.constraint.fill(masks[row])
        bits = torch.arange(32, dtype=torch.int32, device=self.device)
        masks = masks.to(self.device, non_blocking=True)
        allowed = (masks[:, :, None] >> bits) & 1
        return logits.masked_fill(allowed.flatten(1)[:, : logits.shape[-1]] == 0, -torch.inf)
