"""What a pot keeps of a text, beside what it would keep otherwise (the preset `paper`).

    python benchmarks/survivors.py [MODEL] [--file FILE] [--tokens 6000] [--pot-size 1024] [--what heads,cycles,chunks]

- heads: the paper's code lets every query head keep entries of its own; a pot keeps one set for
  each KV head. The share of a query head's own choice that the KV head keeps, at equal entries in
  every pot, by the catalyst's attention alone.
- cycles: after each distillation, the share of survivors by CaP alone that CaP with NuC keeps too,
  and the novelty of the survivors as a share of the most that as many tokens have (the paper's
  Figure 3). Novelty is that of the model without a bound.
- chunks: the same text in chunks of 512 and of 128 tokens. The share of the KV heads whose survivors
  differ in the end, and of the survivors that do.

The catalyst is `general`. Without a file the text is Python's own reference.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from machine import keep
from torch import Tensor

from infinipot import PotConfig, Session, load
from infinipot.engine.observe import CatalystLook
from infinipot.eval.tasks.kept import overlap_mass
from infinipot.model.runner import ModelRunner
from infinipot.scoring.representativeness import Scoring, causal_softmax, representativeness
from infinipot.scoring.selection import best, reduce_groups


@dataclass(frozen=True)
class HeadLook(CatalystLook):
    """A look that also compares each query head's choice with that of its KV head."""

    budget: int = 0
    shares: list[float] = field(default_factory=list)

    def __call__(self, query: Tensor, key: Tensor, scoring: Scoring) -> Tensor:
        attention = causal_softmax(query[:, :, -self.rows :], key, scoring)
        heads = representativeness(attention)
        reduced = reduce_groups(heads, key.shape[1], self.gqa)
        self.shares.append(own_share(heads, reduced, self.budget))
        return reduced


def own_share(heads: Tensor, reduced: Tensor, budget: int) -> float:
    """The share of the `budget` best entries of each query head that are among as many of its KV
    head. heads: scores [B, H, P]. reduced: [B, K, P]."""
    of_head = best(heads, budget)
    of_group = best(reduced, budget).repeat_interleave(heads.shape[1] // reduced.shape[1], dim=1)
    return float((of_head & of_group).sum() / of_head.sum())


def survivors(session: Session) -> Tensor:
    """Places in the text of the entries that the latest distillation kept, [L, K, C]."""
    return torch.cat([layer.index for layer in session.pot.bounded]).long().cpu()


def mask(places: Tensor, count: int) -> Tensor:
    return torch.zeros(*places.shape[:2], count, dtype=torch.bool).scatter_(2, places, True)


def by_cycle(session: Session, ids: list[int]) -> list[Tensor]:
    """The survivors after each distillation of a reading."""
    found: list[Tensor] = []

    def note() -> None:
        if session.stats.distillations > len(found):
            found.append(survivors(session))

    session.append(ids, progress=note)
    return found


class Measurement:
    """One model and one text."""

    def __init__(self, name: str, text: str, tokens: int, pot_size: int) -> None:
        model, self.tokenizer = load(name)
        self.runner = ModelRunner(model)
        self.ids = self.tokenizer.encode(text, add_special_tokens=False)[:tokens]
        self.pot_size = pot_size

    def session(self, **options: Any) -> Session:
        config = PotConfig(
            preset="paper", pot_size=self.pot_size, **{"catalyst": "general", **options}
        )
        return Session(self.runner, self.tokenizer, config, template=False)

    def part(self, what: str) -> list[dict[str, Any]]:
        if what == "heads":
            return [self.heads(gqa) for gqa in ("mean", "max")]
        if what == "cycles":
            return [{"rows": self.cycles()}]
        return [self.chunks()]

    def heads(self, gqa: str) -> dict[str, Any]:
        session = self.session(novelty=0.0, gqa=gqa)
        shares: list[float] = []
        budget = session.config.mean_budget

        def look(catalyst: Tensor) -> HeadLook:
            return HeadLook(catalyst.shape[1], gqa, budget=budget, shares=shares)

        session._reader.distiller.watcher.look = look  # type: ignore[method-assign]
        session.append(self.ids)
        layers = len(session.pot.bounded)
        by_layer = torch.tensor(shares).view(-1, layers).mean(dim=0)
        return {
            "gqa": gqa,
            "pots": len(shares) // layers,
            "share": round(float(by_layer.mean()), 4),
            "least_layer": round(float(by_layer.min()), 4),
            "most_layer": round(float(by_layer.max()), 4),
        }

    def cycles(self) -> list[dict[str, Any]]:
        whole = Session(self.runner, None, PotConfig(policy="full"))
        whole.score_all()
        whole.append(self.ids)
        novelty = whole.pot.novelty[0].cpu()
        alone = by_cycle(self.session(novelty=0.0), self.ids)
        both = by_cycle(self.session(), self.ids)
        rows = []
        for number, (first, second) in enumerate(zip(alone, both, strict=True), 1):
            read = int(max(first.max(), second.max())) + 1
            one = mask(first, read)
            two = mask(second, read)
            rows.append(
                {
                    "cycle": number,
                    "read": read,
                    "overlap": round(float((one & two).sum() / one.sum()), 4),
                    "novelty_cap": round(overlap_mass(one, novelty[:read]), 4),
                    "novelty_cap_nuc": round(overlap_mass(two, novelty[:read]), 4),
                }
            )
        return rows

    def chunks(self) -> dict[str, Any]:
        readings = [by_cycle(self.session(chunk_tokens=n), self.ids) for n in (512, 128)]
        first, second = (cycles[-1] for cycles in readings)
        count = len(self.ids)
        same = mask(first, count) & mask(second, count)
        kept = same.sum(dim=-1)
        return {
            "chunk_tokens": [512, 128],
            "distillations": len(readings[0]),
            "heads": kept.numel(),
            "heads_that_differ": int((kept < first.shape[-1]).sum()),
            "same_survivors": round(float(kept.float().mean() / first.shape[-1]), 5),
        }


def text_of(path: Path | None) -> str:
    if path is None:
        import pydoc_data.topics

        return "\n".join(pydoc_data.topics.topics.values())
    if path.suffix == ".gz":
        import gzip

        return gzip.decompress(path.read_bytes()).decode("utf-8")
    return path.read_text("utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--file", type=Path)
    parser.add_argument("--tokens", type=int, default=6000)
    parser.add_argument("--pot-size", type=int, default=1024)
    parser.add_argument("--what", default="heads,cycles,chunks")
    args = parser.parse_args()
    text = text_of(args.file)[: 8 * args.tokens]
    measurement = Measurement(args.model, text, args.tokens, args.pot_size)
    about = {
        "model": Path(args.model).name,
        "text": args.file.name if args.file else "Python's reference",
        "tokens": len(measurement.ids),
        "pot_size": args.pot_size,
    }
    for what in args.what.split(","):
        for found in measurement.part(what):
            keep("survivors", {**about, "what": what, **found})


if __name__ == "__main__":
    main()
