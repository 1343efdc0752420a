"""Perplexity of a model on a long text that it reads through a pot."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from infinipot.eval import charts
from infinipot.eval.methods import Method
from infinipot.eval.results import Record
from infinipot.eval.runner import Model, Replica
from infinipot.eval.stats import mean
from infinipot.eval.tables import markdown, name_key, names, number, tokens
from infinipot.eval.teacher_forcing import open_session
from infinipot.text.files import file_text
from infinipot.text.special_tokens import starting_ids
from infinipot.text.tokens import encode

NAME = "perplexity"
KEY = ("model", "dtype", "method", "question", "options", "text", "tokens", "every")


class Windows:
    """Mean losses over windows of `size` tokens. The first token of a text has no loss."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.tokens = 0
        self.sums: list[float] = []
        self.counts: list[int] = []

    def add(self, losses: Iterable[float]) -> None:
        """Add the losses of the next tokens of the text."""
        for loss in losses:
            if self.tokens > 0:
                place = (self.tokens - 1) // self.size
                if place == len(self.sums):
                    self.sums.append(0.0)
                    self.counts.append(0)
                self.sums[place] += loss
                self.counts[place] += 1
            self.tokens += 1

    def means(self) -> list[float]:
        return [total / count for total, count in zip(self.sums, self.counts, strict=True)]


@dataclass(frozen=True, kw_only=True)
class Stream:
    """One text, read once by one method.

    count: tokens to read, None for all. every: tokens per window of mean losses.
    """

    model: Model
    method: Method
    path: Path
    count: int | None = None
    every: int = 1024

    @property
    def title(self) -> str:
        return f"{self.method.label} · {self.path.name}"

    def keys(self) -> list[Record]:
        return [
            {
                **self.model.about,
                "method": self.method.label,
                "question": self.method.question,
                "options": self.method.options,
                "text": self.path.name,
                "tokens": self.count,
                "every": self.every,
            }
        ]

    def run(self, replica: Replica) -> list[Record]:
        session = open_session(replica, self.method.config, template=False)
        session.score_all()
        windows = Windows(self.every)

        def note() -> None:
            """After every chunk: its losses are the newest in the pot."""
            fresh = session.stats.tokens_read - windows.tokens
            windows.add(session.pot.novelty[0, -fresh:].tolist())

        if self.count is None:
            left = math.inf
        else:
            left = self.count
        if begin := starting_ids(replica.tokenizer):
            session.append(begin, progress=note)
        for ids in encode(replica.tokenizer, file_text(self.path)):
            session.append(ids[: int(min(left, len(ids)))], progress=note)
            left -= len(ids)
            if left <= 0:
                break
        if not windows.sums:
            raise ValueError(f"{self.path} holds no text to predict: give a longer one")
        stats = session.stats
        outcome = {
            "loss": round(sum(windows.sums) / sum(windows.counts), 6),
            "losses": [round(loss, 4) for loss in windows.means()],
            "tokens_read": stats.tokens_read,
            "distillations": stats.distillations,
            "peak_entries": stats.peak_entries,
        }
        return [{**self.keys()[0], **outcome}]


def plan(
    model: Model, methods: Iterable[Method], paths: Sequence[Path], count: int | None, every: int
) -> list[Stream]:
    for method in methods:
        if method.policy.cuts:
            raise ValueError(
                f"policy {method.policy.name!r} leaves out most of a text, so it cannot predict "
                "the text: use another policy, such as streaming"
            )
    return [
        Stream(model=model, method=method, path=path, count=count, every=every)
        for path in paths
        for method in methods
    ]


COLUMNS = (
    "perplexity",
    "all",
    "1st quarter",
    "2nd",
    "3rd",
    "4th",
    "tokens",
    "distillations",
    "peak entries",
)


def table(records: Sequence[Record]) -> str:
    """Perplexity over the whole text, and over its four quarters (in whole windows)."""
    name_of = names(records)
    lines = []
    for record in records:
        losses = record["losses"]
        cuts = [len(losses) * n // 4 for n in range(5)]
        quarters = [mean(losses[a:b]) for a, b in pairwise(cuts)]
        counts = [record[name] for name in ("tokens_read", "distillations", "peak_entries")]
        lines.append(
            [
                name_of[name_key(record)],
                *[_perplexity(loss) for loss in (record["loss"], *quarters)],
                *[f"{count:,}" for count in counts],
            ]
        )
    return markdown(COLUMNS, lines)


def _perplexity(loss: float | None) -> str:
    return number(None if loss is None else math.exp(loss), 2)


def write(records: Sequence[Record], folder: Path) -> tuple[str, list[Path]]:
    """Write a table and a figure for each text. Returns the text and the paths of the files."""
    groups: dict[tuple[str, int | None, int], list[Record]] = {}
    for record in records:
        text = (record["text"], record["tokens"], record["every"])
        groups.setdefault(text, []).append(record)
    texts = []
    files = []
    for (name, count, every), some in groups.items():
        title = f"{name} · {', '.join(sorted({record['model'] for record in some}))}"
        texts.append(f"{title}\n\n{table(some)}")
        name_of = names(some)
        curves = {name_of[name_key(record)]: smoothed(record["losses"], every) for record in some}
        stem = f"perplexity-{Path(name).stem.removesuffix('.txt')}"
        if count:
            stem += f"-{tokens(count)}".replace(",", "")
        files += charts.curves(
            curves, title=title, across="tokens read", up="perplexity", path=folder / stem
        )
    whole = "\n\n".join(texts)
    (folder / "perplexity.md").write_text(whole, "utf-8")
    return whole, [*files, folder / "perplexity.md"]


def smoothed(losses: Sequence[float], every: int, points: int = 60) -> list[tuple[float, float]]:
    """At most `points` pairs (tokens, perplexity). Neighbouring windows are averaged."""
    step = max(1, math.ceil(len(losses) / points))
    groups = [losses[n : n + step] for n in range(0, len(losses), step)]
    return [
        ((n + 0.5) * step * every, math.exp(sum(group) / len(group)))
        for n, group in enumerate(groups)
    ]
