"""Forward passes that read into pots, and reading as a series of them."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from infinipot.cache.pot import Pot
from infinipot.engine.cuda_graphs import graph_cache
from infinipot.engine.observe import ByLayer, CatalystLook, Seen, Suffix, watching
from infinipot.model.runner import ModelRunner

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Pass:
    """A forward pass that reads ids [1, T] into a pot, which must have room. suffix: the catalyst
    behind them, which is removed again."""

    pot: Pot
    ids: Tensor
    suffix: Suffix | None = None


Passes = Generator[Pass, ByLayer | None, T]
"""Reading that asks for one pass after the other (`joint`). It gets what was seen of each suffix."""


def read(
    runner: ModelRunner,
    pots: Sequence[Pot],
    ids: Tensor,
    counts: Sequence[int],
    suffix: Suffix | None = None,
) -> tuple[Tensor, ByLayer | None]:
    """Read ids [1, N], the next `counts[b]` of them into pot b, and a suffix that is removed again.
    Returns hidden states [1, N, hidden], and what was seen of the suffix."""
    look = None
    if suffix is not None:
        look = suffix.look
        ids = torch.cat((ids, suffix.ids), dim=1)
    scores: ByLayer = {}
    output = recorded(runner, pots, ids, counts, look)
    if output is not None:
        hidden, scores = output
    elif look is not None:
        hidden = runner.read(ids, pots, watching(scores, look, look.alone))
    elif len(pots) == 1:
        hidden = runner.read(ids, pots)
    else:
        hidden = runner.read(ids, pots, None, counts)
    if suffix is None:
        return hidden, None
    count = suffix.ids.shape[1]
    pots[0].advance(-count)
    entries = pots[0].length
    return hidden[:, :-count], Seen({number: x[..., :entries] for number, x in scores.items()})


def recorded(
    runner: ModelRunner,
    pots: Sequence[Pot],
    ids: Tensor,
    counts: Sequence[int],
    look: CatalystLook | None,
) -> tuple[Tensor, ByLayer] | None:
    """The same by a recording: texts of several pots as rows of a step, others as chunks. None, and
    nothing is read, if there is none."""
    graphs = graph_cache(runner)
    if len(pots) == 1 and (ids.shape[1] > 1 or look is not None):
        return graphs.chunk(pots[0], ids, look, watched=True)
    if look is not None:
        return None
    step = graphs.step(pots, counts, ids.view(-1, 1), watched=True)
    return step and (step[0].transpose(0, 1), {})
