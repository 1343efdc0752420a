"""The needle test: a fact in a long text, and a question about it (paper, section 4.3)."""

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
from infinipot.eval.teacher_forcing import (
    force,
    head_tokens,
    kept_share,
    open_session,
    question_ids,
)
from infinipot.session import Session
from infinipot.text.tokens import fragment

NAME = "needle"
KEY = (
    "model",
    "dtype",
    "method",
    "question",
    "options",
    "haystack",
    "kind",
    "system",
    "length",
    "depth",
    "trial",
    "seed",
)


def found(key: str, answer: str) -> bool:
    """Whether the answer has the key as a whole word. Commas inside a number are ignored."""
    text = re.sub(r"(?<=\d),(?=\d)", "", answer)
    return re.search(rf"(?<![\w]){re.escape(key)}(?![\w])", text, re.IGNORECASE) is not None


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One haystack, read once by one method, with a question for each needle.

    Every question meets the same pot. length: tokens of the text. depths: places of the needles,
    0 .. 1; several for kind `multi`, otherwise one. The text depends on everything except the
    method, so all methods read the same texts.
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
        return (
            f"{self.method.label} · {self.length:,} tokens, depth {depths}, trial {self.trial + 1}"
        )

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
        return [
            {**shared, "depth": depth, "trial": self.trial, "seed": self.seed}
            for depth in self.depths
        ]

    def hidden(self) -> tuple[list[Needle], random.Random]:
        """The needles, and the random numbers for the text around them."""
        place = Path(self.haystack).name  # the same texts wherever the folder is
        chance = random.Random(
            f"{self.seed} {place} {self.kind} {self.length} {self.depths} {self.trial}"
        )
        return needles(self.kind, len(self.depths), chance), chance

    def run(self, replica: Replica) -> list[Record]:
        hidden, chance = self.hidden()
        statements = [needle.statement for needle in hidden]
        depths = list(zip(self.depths, statements, strict=True))
        stack = hide(replica, self.haystack, self.length, depths, chance)
        session = open_session(replica, self.method.config, system=self.system)
        question = " ".join(needle.question for needle in hidden)
        session.append(stack.ids, question=question if self.method.aware else None)
        return [
            {**key, **self._outcome(replica, session, needle, span)}
            for key, needle, span in zip(self.keys(), hidden, stack.spans, strict=True)
        ]

    def _outcome(
        self, replica: Replica, session: Session, needle: Needle, span: tuple[int, int]
    ) -> dict[str, Any]:
        answer = session.ask(needle.question, max_tokens=self.max_tokens)
        prompt = question_ids(replica, needle.question, needle.prefix, self.system)
        forced = force(session, prompt, fragment(replica.tokenizer, " " + needle.key))
        before = head_tokens(replica, self.system)
        return {
            "key": needle.key,
            "answer": answer,
            "right": found(needle.key, answer),
            "forced": all(forced.first),
            "loss": round(forced.loss, 4),
            "kept": kept_share(session, before + span[0], before + span[1]),
            "tokens_read": session.stats.tokens_read,
            "distillations": session.stats.distillations,
            "peak_entries": session.stats.peak_entries,
        }


def plan(
    model: Model,
    methods: Iterable[Method],
    *,
    kind: str,
    lengths: list[int],
    depths: list[float],
    trials: int,
    **more: Any,
) -> list[Reading]:
    """Every text for every method, short texts first.

    All methods read a text before the next text, so partial results are comparable. more: other
    fields of `Reading`.
    """
    places: list[tuple[float, ...]] = [(depth,) for depth in sorted(depths)]
    if kind == "multi":
        places = [tuple(sorted(depths))]
    return [
        Reading(
            model=model,
            method=method,
            kind=kind,
            length=length,
            depths=place,
            trial=trial,
            **more,
        )
        for length in sorted(lengths)
        for trial in range(trials)
        for place in places
        for method in methods
    ]
