"""CaP: a prompt that is read only to see what it attends to (paper, section 3.3.1, Eq. 2)."""

from __future__ import annotations

import torch
from torch import Tensor

PRESETS = {
    "general": "Summarize the important information in the text above.",
    "general-1": "Write down the key points of the text above, with the names, numbers and dates that matter.",
    "general-2": "What is the text above about? Explain it to somebody who has not read it.",
    "unrelated": "Write a short poem about the sea on a windy day.",
}
"""Prompts by the kinds of the paper's Table 2. Two more kinds have no fixed words: `question` (the question itself) and `plain`
(no instruction: the newest tokens of the text, read once more)."""

KINDS = (*PRESETS, "question", "plain")


def causal_softmax(queries: Tensor, keys: Tensor, scaling: float, softcap: float | None = None, sinks: Tensor | None = None) -> Tensor:
    """Attention of the last T positions over all N, [B, H, T, N] float32, exactly as the model would compute it.

    queries [B, H, T, D] and keys [B, K, N, D] are rotated; the T rows are the last T of the N entries. softcap: the model's tanh cap on
    the scores. sinks [H]: the model's learnt extra logit per head, which takes its share and is dropped.
    """
    grouped = queries.float().unflatten(1, (keys.shape[1], -1))  # [B, K, H/K, T, D]
    scores = torch.einsum("bkgtd,bknd->bkgtn", grouped, keys.float()).flatten(1, 2) * scaling
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    rows, entries = scores.shape[-2:]
    visible = torch.ones(rows, entries, dtype=torch.bool, device=scores.device).tril(entries - rows)
    scores = scores.masked_fill(~visible, -torch.inf)
    if sinks is not None:
        extra = sinks.float().view(1, -1, 1, 1).expand(*scores.shape[:2], rows, 1)
        return torch.cat((scores, extra), dim=-1).softmax(dim=-1)[..., :-1]
    return scores.softmax(dim=-1)


def representativeness(attention: Tensor) -> Tensor:
    """Eq. 2: what each entry receives from the catalyst, [B, H, P].

    attention: the catalyst's rows [B, H, |P|, P + |P|]; its own columns are left out, its rows are summed.
    """
    catalyst = attention.shape[-2]
    return attention[..., :-catalyst].sum(dim=-2)
