"""Several natural facts in a long text, asked for one after another from one pot."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infinipot.eval import charts, grouped, report
from infinipot.eval.methods import Method
from infinipot.eval.results import Record
from infinipot.eval.runner import Model, Replica
from infinipot.eval.tables import tokens
from infinipot.eval.tasks.documents import seconds_since
from infinipot.eval.tasks.fact_templates import Fact, Template, chosen_for, facts
from infinipot.eval.tasks.haystack import hide
from infinipot.eval.teacher_forcing import head_tokens, kept_share, open_session
from infinipot.session import Session

NAME = "facts"
KEY = (
    "model",
    "dtype",
    "method",
    "question",
    "options",
    "haystack",
    "system",
    "length",
    "templates",
    "distractors",
    "depths",
    "trial",
    "seed",
    "max_tokens",
    "template",
)
KINDS = ("person", "place", "amount", "time", "cause", "code")
APART = 0.02
"""How far apart two statements at the same depth stand."""
OPPOSITE = 0.45
"""How far behind its fact a distractor stands; at the end of the text it goes on at the start."""


@dataclass(frozen=True, kw_only=True)
class FactsReading:
    """One haystack with facts and their distractors, read once by one method.

    Every question meets the same pot. A method whose catalyst is the question knows all questions
    together. depths: places of the facts, 0 .. 1, one for each. templates: `all`, or the `even` or
    `odd` ones of each kind. distractors: whether each fact has one, a statement of the same template
    about somebody else. The text depends on everything except the method.
    """

    model: Model
    method: Method
    haystack: str
    length: int
    templates: str
    depths: tuple[float, ...]
    trial: int
    seed: int = 0
    max_tokens: int = 32
    system: str | None = None
    distractors: bool = True

    @property
    def title(self) -> str:
        text = f"{len(self.depths)} facts in {self.length:,} tokens"
        return f"{self.method.label} · {text}, trial {self.trial + 1}"

    def chosen(self) -> list[Template]:
        return chosen_for(self.trial, len(self.depths), self.templates, self.seed)

    def keys(self) -> list[Record]:
        shared = {
            **self.model.about,
            "method": self.method.label,
            "question": self.method.question,
            "options": self.method.options,
            "haystack": self.haystack.rstrip("/").rsplit("/", 1)[-1],
            "system": self.system,
            "length": self.length,
            "templates": self.templates,
            "depths": list(self.depths),
            "trial": self.trial,
            "seed": self.seed,
            "max_tokens": self.max_tokens,
        }
        if not self.distractors:
            shared["distractors"] = False
        return [
            {**shared, "template": template.name, "kind": template.kind, "depth": depth}
            for template, depth in zip(self.chosen(), self.depths, strict=True)
        ]

    def hidden(self) -> tuple[list[Fact], random.Random]:
        """The facts, and the random numbers for the text around them."""
        place = Path(self.haystack).name  # the same texts wherever the folder is
        chance = random.Random(
            f"facts {self.seed} {place} {self.templates} {self.length} {self.depths} {self.trial}"
        )
        return facts(self.chosen(), chance), chance

    def run(self, replica: Replica) -> list[Record]:
        hidden, chance = self.hidden()
        statements = placed(hidden, self.depths, self.distractors)
        stack = hide(replica, self.haystack, self.length, statements, chance)
        spans = dict(zip([text for _, text in statements], stack.spans, strict=True))
        session = open_session(replica, self.method.config, system=self.system)
        asked = None
        if self.method.aware:
            asked = " ".join(fact.question for fact in hidden)
        started = time.perf_counter()
        session.append(stack.ids, question=asked)
        read_s = seconds_since(started)
        before = head_tokens(replica, self.system)
        records = []
        for key, fact in zip(self.keys(), hidden, strict=True):
            start, stop = spans[fact.statement]
            kept = kept_share(session, before + start, before + stop)
            records.append({**key, **self._outcome(session, fact), "kept": kept, "read_s": read_s})
        return records

    def _outcome(self, session: Session, fact: Fact) -> dict[str, Any]:
        started = time.perf_counter()
        answer = session.ask(fact.question, max_tokens=self.max_tokens)
        stats = session.stats
        return {
            "value": fact.value.text,
            "other": fact.other.text,
            "answer": answer,
            "right": fact.right(answer),
            "confused": fact.other.named_in(answer),
            "tokens_read": stats.tokens_read,
            "distillations": stats.distillations,
            "peak_entries": stats.peak_entries,
            "answer_s": seconds_since(started),
        }


def placed(
    hidden: Sequence[Fact], depths: Sequence[float], distractors: bool = True
) -> list[tuple[float, str]]:
    """Pairs of depth and statement, sorted. distractors: with those."""
    found: list[tuple[float, str]] = []
    counts: dict[float, int] = {}
    for fact, depth in zip(hidden, depths, strict=True):
        apart = APART * counts.get(depth, 0)
        counts[depth] = counts.get(depth, 0) + 1
        if depth > 0.5:
            apart = -apart
        near = min(1.0, max(0.0, depth + apart))
        found.append((near, fact.statement))
        if distractors:
            found.append(((near + OPPOSITE) % 1, fact.distractor))
    return sorted(found)


def spread(count: int) -> list[float]:
    """Depths at equal distances: 5 -> 0.1, 0.3, 0.5, 0.7, 0.9."""
    return [round((2 * number + 1) / (2 * count), 4) for number in range(count)]


def plan(
    model: Model,
    methods: Iterable[Method],
    *,
    lengths: Sequence[int],
    depths: Sequence[float],
    trials: int,
    **more: Any,
) -> list[FactsReading]:
    """Every text for every method, short texts first. more: other fields of `FactsReading`."""
    listed = list(methods)
    return [
        FactsReading(
            model=model,
            method=method,
            length=length,
            depths=tuple(depths),
            trial=trial,
            **more,
        )
        for length in sorted(lengths)
        for trial in range(trials)
        for method in listed
    ]


def write(records: Sequence[Record], folder: Path) -> tuple[str, list[Path]]:
    """Write tables by kind and by depth, and heat maps. Returns the text and the files' paths."""
    texts = []
    files = []
    groups: dict[tuple[str, str, bool], list[Record]] = {}
    for record in records:
        place = (record["haystack"], record["templates"], record.get("distractors", True))
        groups.setdefault(place, []).append(record)
    for (haystack, half, distractors), some in groups.items():
        title = f"facts in {haystack} · {half} templates"
        if not distractors:
            title += " · without distractors"
        for length in sorted({record["length"] for record in some}):
            own = [as_question(record) for record in some if record["length"] == length]
            own.sort(key=lambda record: KINDS.index(record["kind"]))
            texts.append(grouped.report(own, f"{title} · {tokens(length)} tokens", by="kind"))
        texts.append(f"by depth\n\n{report.table(some)}")
        if any(record["kept"] is not None for record in some):
            texts.append(f"facts' entries still in the pot\n\n{report.table(some, 'kept')}")
        texts.append(grouped.seconds([as_question(record) for record in some]))
        name = f"facts-{half}" if distractors else f"facts-{half}-alone"
        path = folder / f"{name}-{Path(haystack).stem}"
        files += charts.heat_maps(report.shares(some), title, tokens, path)
    text = "\n\n".join(texts)
    (folder / f"{NAME}.md").write_text(text, "utf-8")
    return text, [*files, folder / f"{NAME}.md"]


def as_question(record: Record) -> Record:
    """The record as one of a question about a document, the text."""
    names = ("haystack", "length", "templates", "distractors", "depths", "trial", "seed")
    return {
        **record,
        "task": NAME,
        "document": " ".join(str(record.get(name)) for name in names),
        "id": record["template"],
        "digest": "",
        "score": 100.0 * record["right"],
    }
