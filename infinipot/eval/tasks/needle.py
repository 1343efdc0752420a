"""The needle test: a fact in a long text, and the question for it (paper, section 4.3)."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infinipot.eval.methods import Method
from infinipot.eval.results import Record
from infinipot.eval.runner import Model, Replica
from infinipot.eval.tasks.haystack import Needle, hide, needles
from infinipot.eval.teacher_forcing import force, head_tokens, kept_share, open_session, question_ids
from infinipot.text.tokens import fragment

NAME = "needle"
KEY = ("model", "dtype", "method", "question", "options", "haystack", "kind", "system", "length", "depth", "trial", "seed")


def found(key: str, answer: str) -> bool:
    """Whether the answer holds the key, whole and by itself; commas inside a number are allowed."""
    said = re.sub(r"(?<=\d),(?=\d)", "", answer)
    return re.search(rf"(?<![\w]){re.escape(key)}(?![\w])", said, re.IGNORECASE) is not None


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One haystack, read once by one method; each of its needles is asked for, and the pot is the same for every question.

    length: tokens of the text. depths: where its needles stand, 0 .. 1: one, or several for kind `multi`. The text depends on all but the
    method, so methods are compared on the same texts.
    """

    model: Model
    method: Method
    haystack: str
    kind: str
    length: int
    depths: tuple[float, ...]
    trial: int
    seed: int = 0
    max_tokens: int = 32
    system: str | None = None

    @property
    def title(self) -> str:
        depths = ", ".join(f"{depth:g}" for depth in self.depths)
        return f"{self.method.label} · {self.length:,} tokens, depth {depths}, trial {self.trial + 1}"

    def keys(self) -> list[Record]:
        shared = {
            **self.model.about,
            "method": self.method.label,
            "question": self.method.question,
            "options": self.method.options,
            "haystack": self.haystack.rstrip("/").rsplit("/", 1)[-1],
            "kind": self.kind,
            "system": self.system,
            "length": self.length,
        }
        return [{**shared, "depth": depth, "trial": self.trial, "seed": self.seed} for depth in self.depths]

    def hidden(self) -> tuple[list[Needle], random.Random]:
        place = Path(self.haystack).name  # wherever the folder lies
        chance = random.Random(f"{self.seed} {place} {self.kind} {self.length} {self.depths} {self.trial}")
        return needles(self.kind, len(self.depths), chance), chance

    def run(self, replica: Replica) -> list[Record]:
        hidden, chance = self.hidden()
        placed = [(depth, needle.statement) for depth, needle in zip(self.depths, hidden, strict=True)]
        stack = hide(replica, self.haystack, self.length, placed, chance)
        session = open_session(replica, self.method.config, system=self.system)
        asked = " ".join(needle.question for needle in hidden)
        session.append(stack.ids, question=asked if self.method.aware else None)
        before = head_tokens(replica, self.system)
        records = []
        for key, needle, (start, stop) in zip(self.keys(), hidden, stack.spans, strict=True):
            answer = session.ask(needle.question, max_tokens=self.max_tokens)
            prompt = question_ids(replica, needle.question, needle.prefix, self.system)
            forced = force(session, prompt, fragment(replica.tokenizer, " " + needle.key))
            unread = self.method.policy.cuts
            outcome: dict[str, Any] = {
                "key": needle.key,
                "answer": answer,
                "right": found(needle.key, answer),
                "forced": all(forced.first),
                "loss": round(forced.loss, 4),
                "kept": None if unread else round(kept_share(session, before + start, before + stop), 4),
                "tokens_read": session.stats.tokens_read,
                "distillations": session.stats.distillations,
                "peak_entries": session.stats.peak_entries,
            }
            records.append({**key, **outcome})
        return records


def plan(
    model: Model, methods: Iterable[Method], *, haystack: str, kind: str, lengths: list[int], depths: list[float], trials: int, **more: Any
) -> list[Reading]:
    """Every haystack for every method: short ones first, all methods on one before the next, so that what is done by then can be compared."""
    places = [tuple(sorted(depths))] if kind == "multi" else [(depth,) for depth in sorted(depths)]
    return [
        Reading(model=model, method=method, haystack=haystack, kind=kind, length=length, depths=place, trial=trial, **more)
        for length in sorted(lengths)
        for trial in range(trials)
        for place in places
        for method in methods
    ]
