"""The entries that a pot keeps, compared with the attention of the model without a bound (paper,
figures 2 and 3)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from infinipot.engine.observe import CatalystLook, observe
from infinipot.eval import charts
from infinipot.eval.inspect import kept_places
from infinipot.eval.methods import Method, method
from infinipot.eval.results import Record
from infinipot.eval.runner import Model, Replica
from infinipot.eval.tables import markdown, name_key, names, number
from infinipot.eval.tasks.longbench import Prompt, Row, prompt_ids, tasks
from infinipot.eval.teacher_forcing import open_session
from infinipot.session import Session

NAME = "kept"
KEY = ("model", "dtype", "method", "question", "options", "task", "id")
PARTS = 20
"""Parts of the text in which the kept entries are counted."""


@dataclass(frozen=True)
class Whole:
    """The model after reading everything without a bound.

    attention: of the first answer token, [L, K, N]. novelty: of each token, [N].
    """

    prompt: Prompt
    template: bool
    attention: Tensor
    novelty: Tensor


def whole(replica: Replica, prompt: Prompt, template: bool) -> Whole:
    """Read a prompt without a bound. The last result is cached for the other methods of the row."""
    last = replica.cache.get("whole")
    if last is not None and (last.prompt, last.template) == (prompt, template):
        return last
    session = reading(replica, method("full", {}), prompt, template)
    before = session.pot.mark()
    count = session.stats.tokens_read
    novelty = session.pot.novelty[0, :count].cpu()
    session.append(prompt.question)
    token = session.logits.argmax(dim=-1, keepdim=True)
    scores = observe(session.runner, session.pot, token, CatalystLook(1))
    session.pot.rollback(before)
    attention = torch.stack([scores[layer][0, :, :count].cpu() for layer in sorted(scores)])
    replica.cache["whole"] = Whole(prompt, template, attention, novelty)
    return replica.cache["whole"]


def reading(replica: Replica, one: Method, prompt: Prompt, template: bool) -> Session:
    """A session that has read the text of a prompt by a method. If the method does not know the
    question, its last session is cached for other questions about the text."""
    last: dict[str, tuple[Any, Session]] = replica.cache.setdefault("readings", {})
    question = prompt.question if one.aware else None
    about = (one.config, prompt.text, question, template)
    if one.label not in last or last[one.label][0] != about:
        session = open_session(replica, one.config, template=template)
        if not one.policy.bounded:
            session.score_all()
        session.append(prompt.text, question=question)
        last[one.label] = (about, session)
    return last[one.label][1]


@dataclass(frozen=True, kw_only=True)
class KeptUnit:
    """One LongBench row, read by one method, without an answer."""

    model: Model
    method: Method
    row: Row

    @property
    def title(self) -> str:
        return f"{self.row.task} {self.row.number + 1} · {self.method.label}"

    def keys(self) -> list[Record]:
        shared = {
            **self.model.about,
            "method": self.method.label,
            "question": self.method.question,
            "options": self.method.options,
        }
        return [{**shared, "task": self.row.task, "id": self.row.id}]

    def run(self, replica: Replica) -> list[Record]:
        template = tasks()[self.row.task].chat
        config = self.method.config
        longest_question = max(1, (config.pot_size - config.mean_budget) // 2)
        prompt = prompt_ids(replica.tokenizer, self.row, longest_question)
        unbounded = whole(replica, prompt, template)
        session = reading(replica, self.method, prompt, template)
        kept = kept_places(session, unbounded.attention.shape[-1])
        free = slice(session.pot.pinned, None)
        hits = overlap(kept[..., free], unbounded.attention[..., free])
        mass = overlap_mass(kept[..., free], unbounded.novelty[free])
        outcome: dict[str, Any] = {
            "hits": _rounded(hits),
            "chance": round(float(kept[..., free].float().mean()), 4),
            "novelty": round(mass, 4),
            "positions": _rounded(positions(kept)),
            "distillations": session.stats.distillations,
        }
        return [{**self.keys()[0], **outcome}]


def _rounded(matrix: Tensor) -> list[list[float]]:
    return [[round(value, 4) for value in row] for row in matrix.tolist()]


def overlap(kept: Tensor, attention: Tensor) -> Tensor:
    """The share of kept entries that have the highest attention, [L, K].

    kept, attention: [L, K, N]. With n entries kept, the n entries of highest attention count.
    """
    counts = kept.sum(dim=-1, keepdim=True)
    ranks = attention.argsort(dim=-1, descending=True, stable=True).argsort(dim=-1)
    return (kept & (ranks < counts)).sum(dim=-1) / counts[..., 0].clamp(min=1)


def overlap_mass(kept: Tensor, novelty: Tensor) -> float:
    """The novelty of the kept entries as a share of the maximum for as many entries.

    Mean over layers and heads. kept: [L, K, N]. novelty: [N].
    """
    mass = (kept * novelty).sum(dim=-1)
    best = novelty.sort(descending=True).values.cumsum(dim=-1)
    most = best[kept.sum(dim=-1).clamp(min=1) - 1]
    return float((mass / most.clamp(min=1e-9)).mean())


def positions(kept: Tensor) -> Tensor:
    """The kept share of each twentieth of the text, [L, 20], mean over heads."""
    edges = np.linspace(0, kept.shape[-1], PARTS + 1).astype(int)
    shares = [
        kept[..., a:b].float().mean(dim=(1, 2)) if b > a else torch.zeros(kept.shape[0])
        for a, b in pairwise(edges)
    ]
    return torch.stack(shares, dim=1)


def plan(
    model: Model, methods: Iterable[Method], rows: Sequence[Row], limit: int | None
) -> list[KeptUnit]:
    """Every row for every method.

    All methods read a row before the next row, so that the reading without a bound is done once.
    """
    for one in methods:
        if not one.policy.bounded:
            raise ValueError(
                f"policy {one.policy.name!r} distils nothing, so it has no survivors to compare: "
                "use a policy with a pot"
            )
        if not one.bounded:
            raise ValueError(
                f"{one.label!r} keeps everything until it answers, so there are no survivors of "
                "reading to compare: leave out prefill=whole"
            )
    by_task: dict[str, list[Row]] = {}
    for row in rows:
        by_task.setdefault(row.task, []).append(row)
    return [
        KeptUnit(model=model, method=one, row=row)
        for some in by_task.values()
        for row in some[:limit]
        for one in methods
    ]


def write(records: Sequence[Record], folder: Path) -> tuple[str, list[Path]]:
    """Write a table, a figure of hit rates by layer, and a figure of the places of kept entries.

    Returns the text and the paths of the files.
    """
    name_of = names(records)
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(name_of[name_key(record)], []).append(record)
    hits = {
        name: np.mean([np.mean(record["hits"], axis=1) for record in some], axis=0)
        for name, some in groups.items()
    }
    rows = []
    for name, some in groups.items():
        shares = [float(hits[name].mean()), _mean(some, "chance"), _mean(some, "novelty")]
        rows.append([name, *[number(100 * share) for share in shares], str(len(some))])
    title = f"what is kept · {', '.join(sorted({record['model'] for record in records}))}"
    head = ["%", "hit rate", "by chance", "of the most novelty", "rows"]
    text = f"{title}\n\n{markdown(head, rows)}"
    (folder / "kept.md").write_text(text, "utf-8")
    return text, [*_figures(hits, groups, folder), folder / "kept.md"]


def _mean(records: Sequence[Record], name: str) -> float:
    return float(np.mean([record[name] for record in records]))


def _figures(
    hits: Mapping[str, Any], groups: Mapping[str, Sequence[Record]], folder: Path
) -> list[Path]:
    rates = {
        name: [(float(layer), 100 * float(value)) for layer, value in enumerate(values)]
        for name, values in hits.items()
    }
    places = {
        name: np.mean([record["positions"] for record in some], axis=0).tolist()
        for name, some in groups.items()
    }
    files = charts.curves(
        rates,
        title="kept entries among those most attended to without a bound",
        across="layer",
        up="hit rate, %",
        path=folder / "kept-hits",
        floor=0,
        whole=True,
    )
    return files + charts.shades(
        places,
        title="where entries are kept",
        across="place in the text",
        up="layer",
        legend="share kept",
        path=folder / "kept-positions",
    )
