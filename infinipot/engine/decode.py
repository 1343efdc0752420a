"""Answering from a pot: one answer after another, or several together."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from typing import Any

import torch
from torch import Tensor

from infinipot.engine.distill import step, take
from infinipot.engine.generation import Generation
from infinipot.engine.joint import read_together
from infinipot.engine.reader import Reader
from infinipot.engine.sampling import PickedTokens, Sampler, sample
from infinipot.machine import on_device, out_of_memory


def predict(generations: Sequence[Generation]) -> Tensor:
    """Next-token logits [B, V] float32 of each generation."""
    pots = [generation.pot for generation in generations]
    known = [pot.predicted for pot in pots if pot.predicted is not None]
    if len(known) < len(pots):
        hidden = torch.cat([pot.hidden for pot in pots if pot.hidden is not None])
        logits = generations[0].runner.head(hidden)[:, -1].float()
        for row, pot in enumerate(pots):
            pot.note_logits((logits, row))
        return logits
    last = known[0][0]
    if len(last) == len(pots) and all(
        logits is last and row == place for place, (logits, row) in enumerate(known)
    ):
        return last  # of one step of just these pots
    return torch.cat([pot.logits for pot in pots if pot.logits is not None])


class InvalidLogits(ValueError):
    """Logits that are not numbers."""

    def __init__(self) -> None:
        super().__init__(
            "the model's logits are not numbers: its weights are damaged, or its dtype cannot hold "
            "its activations (load it in bfloat16 or float32)"
        )


def pick(generations: Sequence[Generation], logits: Tensor) -> list[int | InvalidLogits]:
    """The next token of each generation, from logits [B, V] float32: one operation on the device and
    one copy if all use a `Sampler`. A row of logits that are not numbers has an error instead."""
    picks = [generation.options.pick for generation in generations]
    samplers = [one for one in picks if isinstance(one, Sampler)]
    if len(samplers) < len(picks):
        invalid = (~logits.amax(dim=-1).isfinite()).tolist()
        rows = zip(picks, logits.split(1), invalid, strict=True)
        return [InvalidLogits() if wrong else int(one(row)) for one, row, wrong in rows]
    tokens = sampled(samplers, logits).tolist()
    return [InvalidLogits() if token < 0 else token for token in tokens]


def next_tokens(generations: Sequence[Generation]) -> list[int | InvalidLogits]:
    """The next token of each generation: those that `advance` has picked, and picks for the others."""
    others = [generation for generation in generations if generation.picked is None]
    picked: dict[int, int | InvalidLogits] = {}
    if others:
        for generation, token in zip(others, pick(others, predict(others)), strict=True):
            picked[id(generation)] = token
    for generation in generations:
        if generation.picked is not None:
            tokens, row = generation.picked
            generation.picked = None
            token = tokens[row]
            picked[id(generation)] = InvalidLogits() if token < 0 else token
    return [picked[id(generation)] for generation in generations]


def pick_ahead(generations: Sequence[Generation], logits: Tensor) -> None:
    """Pick the tokens after those just read, from logits [B, V] float32, before anybody asks for
    them: the device goes on while they are on their way. Only if all use a `Sampler`.

    Without memory for that they are picked when somebody asks: what has been read must not be read
    again, as after an error of `advance`.
    """
    picks = [generation.options.pick for generation in generations]
    samplers = [one for one in picks if isinstance(one, Sampler)]
    if len(samplers) < len(picks):
        return
    try:
        tokens = PickedTokens(sampled(samplers, logits))
    except (RuntimeError, MemoryError) as problem:
        if not out_of_memory(problem):
            raise
        return
    for row, generation in enumerate(generations):
        generation.picked = (tokens, row)


def sampled(samplers: Sequence[Sampler], logits: Tensor) -> Tensor:
    """The samplers' tokens, [B] int64 on the device; -1 for logits that are not numbers."""
    invalid = ~logits.amax(dim=-1).isfinite()
    return torch.where(invalid, -1, sample(samplers, logits))


def advance(generations: Sequence[Generation]) -> None:
    """Read the newest token of each generation into its own pot, in one forward pass, and pick the
    tokens after them. Full pots are distilled first."""
    if not generations:
        return
    for generation in generations:
        generation.make_room()
    runner = generations[0].runner
    pots = [generation.pot for generation in generations]
    ids = on_device([[generation.tokens[-1]] for generation in generations], runner.device)
    watched = any(generation.grows or not generation.fits for generation in generations)
    logits = step(runner, pots, ids, watched)
    if logits is None:
        take(runner, pots, ids.view(1, -1), counts=[1] * len(pots))
    else:
        pick_ahead(generations, logits)


def begin(generations: Sequence[Generation]) -> None:
    """Read the prompts of generations of one model. Raises the first exception of one."""
    if not generations:
        return
    passes = [generation.passes() for generation in generations]
    results = read_together(generations[0].runner, passes)
    problems = [problem for problem in results if problem is not None]
    if problems:
        raise problems.pop(0)


def together(
    generations: Sequence[Generation],
) -> Generator[list[tuple[int, int]], None, None]:
    """Run generations of one model in steps, one token of each at a time.

    Each step yields (number of the generation, token id) for those that are still running. They do
    not influence each other. A generation ends as soon as it is done; closing the iterator ends all.
    """
    live = dict(enumerate(generations))
    try:
        begin(generations)
        while live:
            tokens = []
            running = list(live.values())
            picked = next_tokens(running)
            for (number, generation), choice in zip([*live.items()], picked, strict=True):
                if isinstance(choice, InvalidLogits):
                    raise choice
                token = generation.accept(choice)
                if token is None:
                    live.pop(number).end()
                else:
                    tokens.append((number, token))
            advance([generations[number] for number, _ in tokens if generations[number].reads])
            yield tokens
            for number in [number for number, generation in live.items() if generation.complete]:
                live.pop(number).end()
    finally:
        for generation in live.values():
            generation.end()


def answer(
    reader: Reader,
    prompt: list[int],
    *,
    expected_progress: tuple[int, int] | None = None,
    **options: Any,
) -> Generator[int, None, None]:
    """Run one generation. Yields its token ids, without the id that ends it. Nothing happens before
    the first.

    options: the fields of `GenerationOptions`. expected_progress: `reader.progress` when the answer
    was requested. Raises RuntimeError if the reader has read on since.
    """
    reader.check_idle()
    if expected_progress is not None and expected_progress != reader.progress:
        raise RuntimeError("the session has read on since this answer was asked for: ask again")
    with closing(together([Generation(reader, prompt, **options)])) as steps:
        for step in steps:
            for _, token in step:
                yield token
