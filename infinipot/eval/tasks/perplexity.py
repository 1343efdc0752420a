"""How well a model predicts a long text while it reads it through a pot."""

from __future__ import annotations

import gzip
import io
import math
from collections.abc import Iterable, Iterator, Sequence
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
from infinipot.text.tokens import encode

NAME = "perplexity"
KEY = ("model", "dtype", "method", "question", "options", "text", "tokens", "every")
BLOCK = 1 << 16


def pieces(path: Path) -> Iterator[str]:
    """A text file, also .gz, in blocks: it is never held whole."""
    opened = gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")  # noqa: SIM115
    with io.TextIOWrapper(opened, encoding="utf-8") as file:  # type: ignore[arg-type]
        try:
            while block := file.read(BLOCK):
                yield block
        except UnicodeDecodeError as problem:
            raise ValueError(f"{path} is not UTF-8 ({problem.reason}); convert it first") from None


@dataclass(frozen=True, kw_only=True)
class Stream:
    """One text, read once by one method. count: tokens that are read, None for all. every: tokens over which losses are averaged."""

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
        sums: list[float] = []
        counts: list[int] = []
        seen = 0

        def note() -> None:
            """After every chunk: its losses are the newest that the pot holds."""
            nonlocal seen
            fresh = session.stats.tokens_read - seen
            for loss in session.pot.novelty[0, -fresh:].tolist():
                if seen > 0:  # nothing predicts the first token
                    place = (seen - 1) // self.every
                    if place == len(sums):
                        sums.append(0.0)
                        counts.append(0)
                    sums[place] += loss
                    counts[place] += 1
                seen += 1

        left = math.inf if self.count is None else self.count
        if begin := replica.tokenizer.encode("", add_special_tokens=True)[:1]:
            session.append(begin, progress=note)
        for ids in encode(replica.tokenizer, pieces(self.path)):
            session.append(ids[: int(min(left, len(ids)))], progress=note)
            left -= len(ids)
            if left <= 0:
                break
        if not sums:
            raise ValueError(f"{self.path} holds no text to predict: give a longer one")
        stats = session.stats
        outcome = {
            "loss": round(sum(sums) / sum(counts), 6),
            "losses": [round(total / count, 4) for total, count in zip(sums, counts, strict=True)],
            "tokens_read": stats.tokens_read,
            "distillations": stats.distillations,
            "peak_entries": stats.peak_entries,
        }
        return [{**self.keys()[0], **outcome}]


def plan(model: Model, methods: Iterable[Method], paths: Sequence[Path], count: int | None, every: int) -> list[Stream]:
    for method in methods:
        if method.policy.cuts:
            raise ValueError(f"policy {method.policy.name!r} leaves out most of a text, so it predicts none of it: compare with streaming")
    return [Stream(model=model, method=method, path=path, count=count, every=every) for path in paths for method in methods]


def table(records: Sequence[Record]) -> str:
    """Perplexity over all, and over the text's four quarters, as far as its windows allow."""
    named = names(records)
    lines = []
    for record in records:
        losses = record["losses"]
        cuts = [len(losses) * n // 4 for n in range(5)]
        quarters = [mean(losses[a:b]) for a, b in pairwise(cuts)]
        shown = [number(None if loss is None else math.exp(loss), 2) for loss in (record["loss"], *quarters)]
        lines.append(
            [named[name_key(record)], *shown, f"{record['tokens_read']:,}", f"{record['distillations']:,}", f"{record['peak_entries']:,}"]
        )
    return markdown(["perplexity", "all", "1st quarter", "2nd", "3rd", "4th", "tokens", "distillations", "peak entries"], lines)


def write(records: Sequence[Record], folder: Path) -> tuple[str, list[Path]]:
    """A table and a figure for each text."""
    texts, files = [], []
    for text in dict.fromkeys((record["text"], record["tokens"], record["every"]) for record in records):
        some = [record for record in records if (record["text"], record["tokens"], record["every"]) == text]
        title = f"{text[0]} · {', '.join(sorted({record['model'] for record in some}))}"
        texts.append(f"{title}\n\n{table(some)}")
        named = names(some)
        curves = {named[name_key(record)]: smoothed(record["losses"], text[2]) for record in some}
        stem = f"perplexity-{Path(text[0]).stem.removesuffix('.txt')}" + (f"-{tokens(text[1])}" if text[1] else "").replace(",", "")
        files += charts.curves(curves, title=title, across="tokens read", up="perplexity", path=folder / stem)
    whole = "\n\n".join(texts)
    (folder / "perplexity.md").write_text(whole, "utf-8")
    return whole, [*files, folder / "perplexity.md"]


def smoothed(losses: Sequence[float], every: int, points: int = 60) -> list[tuple[float, float]]:
    """(tokens, perplexity) at most so many times: neighbouring windows are averaged."""
    step = max(1, math.ceil(len(losses) / points))
    groups = [losses[n : n + step] for n in range(0, len(losses), step)]
    return [((n + 0.5) * step * every, math.exp(sum(group) / len(group))) for n, group in enumerate(groups)]
