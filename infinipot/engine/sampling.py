"""From logits to the next token."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import LogitsProcessorList, PreTrainedModel, PreTrainedTokenizerBase
from transformers.generation import logits_process as warpers

from infinipot.config import Sampling


class Sampler:
    """Picks the next token: the likeliest at temperature 0, else at random. A seed makes the choice
    repeatable."""

    def __init__(self, sampling: Sampling) -> None:
        self.greedy = sampling.temperature == 0
        self.warp = LogitsProcessorList()
        if not self.greedy:
            self.warp.append(warpers.TemperatureLogitsWarper(float(sampling.temperature)))
            if sampling.top_k:
                self.warp.append(warpers.TopKLogitsWarper(sampling.top_k))
            if sampling.top_p < 1:
                self.warp.append(warpers.TopPLogitsWarper(sampling.top_p))
            if sampling.min_p > 0:
                self.warp.append(warpers.MinPLogitsWarper(sampling.min_p))
        self.random = torch.Generator()  # on the CPU: the same choices on every device
        self.random.seed()
        if sampling.seed is not None:
            self.random.manual_seed(sampling.seed)

    def __call__(self, logits: Tensor) -> int:
        """logits [1, V] -> a token id."""
        if self.greedy:
            return int(logits.argmax(dim=-1))
        ids = torch.zeros(1, 0, dtype=torch.long, device=logits.device)
        scores = self.warp(ids, logits.float())
        return int(torch.multinomial(scores.softmax(dim=-1).cpu(), 1, generator=self.random))


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
