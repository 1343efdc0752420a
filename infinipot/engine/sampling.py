"""From logits to the next token."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import LogitsProcessorList, PreTrainedModel, PreTrainedTokenizerBase
from transformers.generation import logits_process as warpers

from infinipot.config import Sampling


class Sampler:
    """Picks the next token as `sampling` says: the likeliest at temperature 0, else by chance,
    repeatably where a seed is given."""

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
        self.random.manual_seed(self.random.seed() if sampling.seed is None else sampling.seed)

    def __call__(self, logits: Tensor) -> int:
        """logits [1, V] -> a token id."""
        if self.greedy:
            return int(logits.argmax(dim=-1))
        scores = self.warp(
            torch.zeros(1, 0, dtype=torch.long, device=logits.device), logits.float()
        )
        return int(torch.multinomial(scores.softmax(dim=-1).cpu(), 1, generator=self.random))


def end_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None) -> set[int]:
    """Every id that ends an answer, by the model's generation config, its config and its tokenizer."""
    ends: set[int] = set()
    named = (
        model.generation_config.eos_token_id if model.generation_config else None,
        model.config.eos_token_id,
    )
    for value in (*named, tokenizer.eos_token_id if tokenizer else None):
        ends |= (
            set(value) if isinstance(value, (list, tuple)) else set() if value is None else {value}
        )
    return ends
