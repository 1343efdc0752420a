"""The paper's studies: the methods that each compares, and its figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from infinipot.eval import charts, scores
from infinipot.eval.results import Record
from infinipot.eval.stats import mean_interval
from infinipot.eval.tables import tokens


@dataclass(frozen=True)
class Study:
    """kind: the task. policies: the methods, as values of --policy; {half} is half of the pot."""

    summary: str
    kind: Literal["longbench", "needle", "kept", "hops"]
    policies: str
    against: str | None = None

    def methods(self, pot_size: int) -> str:
        """The methods for a pot of this size."""
        return self.policies.format(half=pot_size // 2)


PROMPTS = {
    "general-1": "Write down the key points of the text above, with the names, numbers and dates that matter.",
    "general-2": "What is the text above about? Explain it to somebody who has not read it.",
}
"""Two more general prompts, only for the study of catalysts."""
CATALYSTS = ("plain", "unrelated", "general", "general-1", "general-2", "question")
SHARES = (0, 0.25, 0.5, 0.75, 1)
SIZES = (1024, 2048, 4096, 8192)
SIZED = (
    "truncate",
    "streaming:distill_to={half}",
    "infinipot:preset=paper:distill_to={half}",
    "infinipot",
)
UNPROMPTED = "tova:distill_to={half}"
"""The paper's row without CaP and NuC: in its Table 3 that row is TOVA's."""
PLAIN = ":novelty=0:catalyst=plain"
KEPT = ("0:catalyst=plain", "0:catalyst=general", "0:catalyst=question", "0.5:catalyst=question")
STUDIES = {
    "catalyst": Study(
        "what the catalyst should ask (Table 2): LongBench rows",
        "longbench",
        ",".join(["truncate", *[f"infinipot:preset=paper:catalyst={kind}" for kind in CATALYSTS]]),
        "infinipot:preset=paper:catalyst=general",
    ),
    "novelty": Study(
        "how large novelty's share should be (Table 3): LongBench rows",
        "longbench",
        ",".join([UNPROMPTED, *[f"infinipot:preset=paper:novelty={share:g}" for share in SHARES]]),
        "infinipot:preset=paper:novelty=0",
    ),
    "memory": Study(
        "pots of 1K to 8K (Figure 6): LongBench rows",
        "longbench",
        ",".join(
            f"{policy.format(half=size // 2)}:pot_size={size}" for policy in SIZED for size in SIZES
        ),
    ),
    "ablation": Study(
        "without novelty, catalyst, CR-RoPE (Table 4): needles",
        "needle",
        ",".join(
            [
                *[f"infinipot:preset=paper{less}" for less in ("", ":novelty=0", PLAIN)],
                UNPROMPTED,
                f"{UNPROMPTED}:context_reset=false",
            ]
        ),
    ),
    "kept": Study(
        "kept entries against those attended to without a bound (Figures 2 and 3): LongBench rows",
        "kept",
        ",".join(["sliding_window", *(f"infinipot:preset=paper:novelty={kind}" for kind in KEPT)]),
    ),
    "hops": Study(
        "facts along a chain across cycles (open question 2): generated texts",
        "hops",
        "streaming,infinipot:catalyst=general,infinipot",
    ),
}


def figure(name: str, records: Sequence[Record], folder: Path) -> list[Path]:
    """The figure of a study of LongBench rows: one file for genuine rows, one for other rows."""
    files: list[Path] = []
    for kind in dict.fromkeys(record["rows"] for record in records):
        own = [record for record in records if record["rows"] == kind]
        values = {
            label: mean_interval(items) for label, items in scores.by_label(own).items() if items
        }
        if not values:
            continue
        models = ", ".join(sorted({record["model"] for record in own}))
        title = f"{kind} rows, mean of tasks · {models}"
        if any(interval for _, interval in values.values()):
            title += " · 95 % intervals"
        suffix = "style"
        if kind == "LongBench":
            suffix = "genuine"
        draw = DRAWINGS.get(name, draw_memory)
        files += draw(values, title, folder / f"{name}-{suffix}")
    return files


Means = Mapping[str, tuple[float, charts.Interval | None]]
"""Label of a method -> its mean score, and the interval where it is known."""


def draw_catalyst(values: Means, title: str, path: Path) -> list[Path]:
    prefix = "infinipot:preset=paper:catalyst="
    bars = {label.removeprefix(prefix): {"score": value} for label, (value, _) in values.items()}
    intervals = {label.removeprefix(prefix): {"score": some} for label, (_, some) in values.items()}
    return charts.bars(bars, title=title, up="score", path=path, intervals=intervals)


def draw_novelty(values: Means, title: str, path: Path) -> list[Path]:
    prefix = "infinipot:preset=paper:novelty="
    own = {
        float(label.removeprefix(prefix)): value
        for label, value in values.items()
        if label.startswith(prefix)
    }
    return charts.curves(
        {"infinipot": [(share, value) for share, (value, _) in own.items()]},
        title=title,
        across="novelty's share of the survivors",
        up="score",
        path=path,
        intervals={"infinipot": [interval for _, interval in own.values()]},
    )


def draw_memory(values: Means, title: str, path: Path) -> list[Path]:
    series: dict[str, list[tuple[float, float]]] = {}
    intervals: dict[str, list[charts.Interval | None]] = {}
    for label, (value, interval) in values.items():
        policy, _, size = label.partition(":pot_size=")
        policy = charts.spoken(policy.replace(f":distill_to={int(size) // 2}", ""))
        series.setdefault(policy, []).append((float(size), value))
        intervals.setdefault(policy, []).append(interval)
    return charts.curves(
        series,
        title=title,
        across="pot size, entries",
        up="score",
        path=path,
        intervals=intervals,
        log=True,
        ticks={float(size): tokens(size) for size in SIZES},
    )


DRAWINGS = {"catalyst": draw_catalyst, "novelty": draw_novelty}
