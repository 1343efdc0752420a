"""What a pot keeps, beside what the model without a bound attends to (paper, figures 2 and 3)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from infinipot.engine.observe import catalyst_look, observe
from infinipot.eval import charts
from infinipot.eval.inspect import kept_places
from infinipot.eval.methods import Method, method
from infinipot.eval.results import Record
from infinipot.eval.runner import Model, Replica
from infinipot.eval.tables import markdown, name_key, names, number
from infinipot.eval.tasks.longbench import Prompt, Row, prompt_ids, tasks
from infinipot.eval.teacher_forcing import open_session

NAME = "kept"
KEY = ("model", "dtype", "method", "question", "options", "task", "id")
PARTS = 20
"""Parts of the text in which kept entries are counted."""


@dataclass(frozen=True)
class Whole:
    """What the model sees that has read everything: attention of its first answer token [L, K, N], and each token's novelty [N]."""

    prompt: Prompt
    template: bool
    attention: Tensor
    novelty: Tensor


def whole(replica: Replica, prompt: Prompt, template: bool) -> Whole:
    """Read without a bound; of the last row only, as a row is followed by its other methods."""
    last = replica.cache.get("whole")
    if last is not None and (last.prompt, last.template) == (prompt, template):
        return last
    config = method("full", {}).config
    session = open_session(replica, config, template=template)
    session.score_all()
    session.append(prompt.text)
    count = session.stats.tokens_read
    novelty = session.pot.novelty[0, :count].cpu()
    session.append(prompt.question)
    token = session.logits.argmax(dim=-1, keepdim=True)
    seen = observe(session.host, session.pot, token, *catalyst_look(1))
    attention = torch.stack([seen[layer][0, :, :count].cpu() for layer in sorted(seen)])
    replica.cache["whole"] = Whole(prompt, template, attention, novelty)
    return replica.cache["whole"]


@dataclass(frozen=True, kw_only=True)
class KeptUnit:
    """One LongBench row, read by one method; nothing is asked."""

    model: Model
    method: Method
    row: Row

    @property
    def title(self) -> str:
        return f"{self.row.task} {self.row.number + 1} · {self.method.label}"

    def keys(self) -> list[Record]:
        shared = {**self.model.about, "method": self.method.label, "question": self.method.question, "options": self.method.options}
        return [{**shared, "task": self.row.task, "id": self.row.id}]

    def run(self, replica: Replica) -> list[Record]:
        template, config = tasks()[self.row.task].chat, self.method.config
        prompt = prompt_ids(replica.tokenizer, self.row, max(1, (config.pot_size - config.survivors) // 2))
        seen = whole(replica, prompt, template)
        session = open_session(replica, config, template=template)
        session.append(prompt.text, question=prompt.question if self.method.aware else None)
        kept = kept_places(session, seen.attention.shape[-1])
        free = slice(session.pot.pinned, None)
        hits, best = overlap(kept[..., free], seen.attention[..., free]), overlap_mass(kept[..., free], seen.novelty[free])
        outcome: dict[str, Any] = {
            "hits": [[round(value, 4) for value in heads] for heads in hits.tolist()],
            "chance": round(float(kept[..., free].float().mean()), 4),
            "novelty": round(best, 4),
            "positions": [[round(value, 4) for value in parts] for parts in positions(kept).tolist()],
            "distillations": session.stats.distillations,
        }
        return [{**self.keys()[0], **outcome}]


def overlap(kept: Tensor, attention: Tensor) -> Tensor:
    """Share of the most attended entries that were kept, [L, K]: of as many as were kept. Both [L, K, N]."""
    counts = kept.sum(dim=-1, keepdim=True)
    ranks = attention.argsort(dim=-1, descending=True, stable=True).argsort(dim=-1)
    return (kept & (ranks < counts)).sum(dim=-1) / counts[..., 0].clamp(min=1)


def overlap_mass(kept: Tensor, novelty: Tensor) -> float:
    """Novelty of the kept entries, as a share of the most that as many could have; mean over layers and heads."""
    mass = (kept * novelty).sum(dim=-1)
    best = novelty.sort(descending=True).values.cumsum(dim=-1)
    most = best[kept.sum(dim=-1).clamp(min=1) - 1]
    return float((mass / most.clamp(min=1e-9)).mean())


def positions(kept: Tensor) -> Tensor:
    """How much of each twentieth of the text was kept, [L, 20], mean over heads."""
    edges = np.linspace(0, kept.shape[-1], PARTS + 1).astype(int)
    shares = [kept[..., a:b].float().mean(dim=(1, 2)) if b > a else torch.zeros(kept.shape[0]) for a, b in pairwise(edges)]
    return torch.stack(shares, dim=1)


def plan(model: Model, methods: Iterable[Method], rows: Sequence[Row], limit: int | None) -> list[KeptUnit]:
    """All methods on a row before the next, so that the reading without a bound is done once."""
    for one in methods:
        if not one.policy.bounded:
            raise ValueError(f"policy {one.policy.name!r} distils nothing, so there is nothing to compare")
    chosen: dict[str, list[Row]] = {}
    for row in rows:
        chosen.setdefault(row.task, []).append(row)
    return [KeptUnit(model=model, method=one, row=row) for some in chosen.values() for row in some[:limit] for one in methods]


def write(records: Sequence[Record], folder: Path) -> tuple[str, list[Path]]:
    """A table, hit rates by layer, and where in the text entries were kept."""
    named = names(records)
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(named[name_key(record)], []).append(record)
    rows, rates, places = [], {}, {}
    for name, some in groups.items():
        hits = np.mean([np.mean(record["hits"], axis=1) for record in some], axis=0)
        rates[name] = [(float(layer), 100 * float(value)) for layer, value in enumerate(hits)]
        places[name] = np.mean([record["positions"] for record in some], axis=0).tolist()
        shares = [100 * float(np.mean([record[what] for record in some])) for what in ("chance", "novelty")]
        rows.append([name, number(100 * float(hits.mean())), *[number(share) for share in shares], str(len(some))])
    title = f"what is kept · {', '.join(sorted({record['model'] for record in records}))}"
    text = f"{title}\n\n" + markdown(["%", "hit rate", "by chance", "of the most novelty", "rows"], rows)
    files = charts.curves(
        rates,
        title="kept entries among those most attended to without a bound",
        across="layer",
        up="hit rate, %",
        path=folder / "kept-hits",
        floor=0,
    )
    files += charts.shades(
        places, title="where entries are kept", across="place in the text", up="layer", legend="share kept", path=folder / "kept-positions"
    )
    (folder / "kept.md").write_text(text, "utf-8")
    return text, [*files, folder / "kept.md"]
