"""Texts on which no decision of the reference is so near that rounding could turn it."""

from __future__ import annotations

import pytest
import reference as reference_module
from helpers import CATALYST, random_ids
from reference import Reference

ROUNDING = 5e-6
"""Relative distance under which two scores may change places between one order of float32 additions and another."""


class Watched:
    """The reference's `select`, noting how near its decisions were: the least distance between a kept and a dropped score, exact ties
    (which go by slot on both sides) left out."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.nearest, self.original = float("inf"), reference_module.select
        monkeypatch.setattr(reference_module, "select", self)

    def __call__(self, novelties, scores, pinned, distill_to, sinks, recent, novelty):
        kept = self.original(novelties, scores, pinned, distill_to, sinks, recent, novelty)
        count = len(scores)
        open_slots = [slot for slot in range(pinned + sinks, count - recent)]
        novel = sorted(open_slots, key=lambda slot: (-novelties[slot], slot))[
            : int(novelty * (distill_to - sinks - recent) + 0.5)
        ]
        for values, chosen in (
            (novelties, novel),
            (scores, [slot for slot in kept if slot in open_slots and slot not in novel]),
        ):
            dropped = [
                float(values[slot])
                for slot in open_slots
                if slot not in chosen and slot not in novel
            ]
            least, largest = (
                min((float(values[slot]) for slot in chosen), default=None),
                max((abs(float(v)) for v in values), default=0),
            )
            if least is not None and dropped and largest and least != max(dropped):
                self.nearest = min(self.nearest, abs(least - max(dropped)) / largest)
        return kept


def clear_text(
    monkeypatch: pytest.MonkeyPatch,
    model,
    kind: type[Reference] = Reference,
    *,
    length: int,
    rounding: float = ROUNDING,
    **options,
) -> tuple[list[int], Reference]:
    """A text on which no decision of the reference is nearer than rounding, and the reference that read it."""
    for seed in range(5, 15):
        with monkeypatch.context() as patch:
            watched = Watched(patch)
            reference = kind(model, catalyst=CATALYST, **options)
            ids = random_ids(length, seed=seed)
            reference.read(ids)
        if watched.nearest > rounding:
            return ids, reference
    raise AssertionError("ten texts in a row with a near tie: that is no chance")
