"""The next token of every answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from infinipot.engine.decode import Generation, advance, predict

Said = int | Exception | None
"""A token id; the problem, if the answer failed; None if it has ended."""


@contextmanager
def a_core_less(device: torch.device) -> Iterator[None]:
    """Inside, torch leaves one of its CPU cores to those who send what is said. A single token gains next to nothing from the last core,
    and all others wait for it wherever it has something else to do."""
    cores = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(max(1, cores - 1))
    try:
        yield
    finally:
        torch.set_num_threads(cores)


def step(turns: Sequence[Generation]) -> list[Said]:
    """One token for each answer, all in one forward pass. If that fails, each has a pass of its own: what befalls one is no other's concern."""
    said = _said(turns)
    reading = [turn for turn, token in zip(turns, said, strict=True) if isinstance(token, int) and turn.reads]
    try:
        advance(reading)
    except Exception as problem:
        if len(reading) == 1:
            return [problem if turn is reading[0] else token for turn, token in zip(turns, said, strict=True)]
        failed: dict[int, Exception] = {}
        for turn in reading:
            try:
                advance([turn])
            except Exception as own:
                failed[id(turn)] = own
        return [failed.get(id(turn), token) for turn, token in zip(turns, said, strict=True)]
    return said


def _said(turns: Sequence[Generation]) -> list[Said]:
    try:
        rows = predict(turns).split(1)
    except Exception as problem:
        if len(turns) == 1:
            return [problem]
        return [_said([turn])[0] for turn in turns]
    said: list[Said] = []
    for turn, logits in zip(turns, rows, strict=True):
        try:
            said.append(turn.next(logits))
        except Exception as problem:
            said.append(problem)
    return said
