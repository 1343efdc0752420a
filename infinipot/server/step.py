"""The next token of every answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from infinipot.engine.decode import InvalidLogits, advance, next_tokens
from infinipot.engine.generation import Generation

StepResult = int | Exception | None
"""A token id; the exception, if the answer failed; None if the answer has ended."""


@contextmanager
def spare_core(device: torch.device) -> Iterator[None]:
    """On a CPU, torch leaves one core to the threads that send.

    A step gains little from the last core, and all other cores wait when that one is busy.
    """
    cores = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(max(1, cores - 1))
    try:
        yield
    finally:
        torch.set_num_threads(cores)


def step(generations: Sequence[Generation]) -> list[StepResult]:
    """One token for each answer, in one forward pass.

    If that pass fails, each answer is tried alone, so that one failure does not affect the others.
    """
    results = _next_tokens(generations)
    going_on = [
        generation
        for generation, token in zip(generations, results, strict=True)
        if isinstance(token, int) and generation.reads
    ]
    failures = _advance(going_on)
    return [
        failures.get(id(generation), result)
        for generation, result in zip(generations, results, strict=True)
    ]


def _advance(generations: Sequence[Generation]) -> dict[int, Exception]:
    """Read the new tokens. Returns what failed, by the generation's id."""
    try:
        advance(generations)
    except Exception as problem:
        if len(generations) == 1:
            return {id(generations[0]): problem}
        failures: dict[int, Exception] = {}
        for generation in generations:
            failures |= _advance([generation])
        return failures
    return {}


def _next_tokens(generations: Sequence[Generation]) -> list[StepResult]:
    try:
        tokens = next_tokens(generations)
    except Exception as problem:
        if len(generations) == 1:
            return [problem]
        return [_next_tokens([generation])[0] for generation in generations]
    results: list[StepResult] = []
    for generation, token in zip(generations, tokens, strict=True):
        if isinstance(token, InvalidLogits):
            results.append(token)
        else:
            results.append(generation.accept(token))
    return results
