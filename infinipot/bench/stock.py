"""Measurements of the same model without a pot: one forward pass over the whole text, then decoding
with a growing cache."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from infinipot.bench.measure import clock, peak
from infinipot.bench.reading import PROMPT, pace
from infinipot.compat import cache_argument
from infinipot.machine import out_of_memory

NUMBERS = (
    "prefill_tps",
    "first_token_s",
    "decode_tps",
    "batch_tps",
    "kv_bytes",
    "batch_peak_bytes",
    "died",
)


@torch.no_grad()
def forward(model: PreTrainedModel, ids: Tensor, cache: Any = None) -> tuple[Tensor, Any]:
    """ids [B, T] -> the most likely next tokens [B, 1], and the cache."""
    if cache is None:
        options = {}
    else:
        options = {cache_argument(model): cache}
    output = model(input_ids=ids, use_cache=True, logits_to_keep=1, **options)
    return output.logits[:, -1:].argmax(dim=-1), output.past_key_values


def answer(model: PreTrainedModel, cache: Any, rows: int, tokens: int) -> float:
    """Tokens per second of `rows` answers, decoded together, with the same prompts as in a pot."""
    device = model.get_input_embeddings().weight.device
    prompts = torch.tensor([[1 + number] * PROMPT for number in range(rows)], device=device)
    token, cache = forward(model, prompts, cache)
    times = [clock()]
    for _ in range(tokens - 1):
        token, cache = forward(model, token, cache)
        token.tolist()  # an application shows each token
        times.append(clock())
    return pace(times, rows)


def read(model: PreTrainedModel, ids: Tensor, row: dict[str, Any]) -> Any:
    """The cache after one forward pass. Writes speed, time and size of the cache into `row`."""
    start = clock()
    token, cache = forward(model, ids)
    read_s = clock() - start
    token.tolist()
    row |= {"prefill_tps": ids.shape[1] / read_s, "first_token_s": clock() - start}
    row["kv_bytes"] = sum(x.nbytes for layer in cache.layers for x in (layer.keys, layer.values))
    return cache


def measured(model: PreTrainedModel, ids: list[int], batch: int, tokens: int) -> dict[str, Any]:
    """One row of the table, as `reading.measured`.

    If memory runs out, `died` names the step, and the row has the numbers of the steps before it.
    """
    row: dict[str, Any] = dict.fromkeys(NUMBERS)
    text = torch.tensor([ids], device=model.get_input_embeddings().weight.device)
    cache: Any = None
    with peak(text.device) as most, surviving(row, "reading"):
        cache = read(model, text, row)
        row["decode_tps"] = answer(model, cache, 1, tokens)
    row |= {"peak_bytes": most.bytes, "grew_bytes": most.grew}
    if batch > 1 and not row["died"]:
        with peak(text.device) as most, surviving(row, f"answering {batch} together"):
            cache.batch_repeat_interleave(batch)
            row["batch_tps"] = answer(model, cache, batch, tokens)
        row["batch_peak_bytes"] = most.bytes
    return row


@contextmanager
def surviving(row: dict[str, Any], what: str) -> Iterator[None]:
    """Write an out-of-memory error of the block into `row`, and continue."""
    try:
        yield
    except (RuntimeError, MemoryError) as problem:
        if not out_of_memory(problem):
            raise
        row["died"] = f"out of memory while {what}"
