"""The whole benchmark: every length in a pot and, in the same run, by stock transformers."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from transformers import PreTrainedModel

from infinipot.bench import reading, stock
from infinipot.bench.breakdown import parts
from infinipot.config import PotConfig
from infinipot.machine import machine
from infinipot.model.groups import weights_in_groups
from infinipot.model.runner import ModelRunner

RATIOS = (
    "prefill_tps",
    "first_token_s",
    "decode_tps",
    "batch_tps",
    "peak_bytes",
    "grew_bytes",
    "kv_bytes",
)
Say = Callable[[str], None]
"""Shows a line of progress."""
Run = Callable[[], dict[str, Any]]
"""One measurement of one kind at one length."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """What to measure.

    rounds: most repetitions of a row. patience_s: a row that has taken this many seconds in total
    is not repeated.
    """

    lengths: tuple[int, ...]
    stock: bool = False
    batch: int = 8
    tokens: int = 64
    rounds: int = 3
    patience_s: float = 60.0


def compare(
    name: str, model: PreTrainedModel, config: PotConfig, task: Task, say: Say
) -> dict[str, Any]:
    """All rows, the parts of reading, and the ratios, as one document.

    Every row reads a prefix of the same random token ids.
    """
    runner = ModelRunner(model)
    random = torch.Generator().manual_seed(0)
    ids = torch.randint(runner.vocabulary, (max(task.lengths),), generator=random).tolist()
    say("warming up")
    warm_up(runner, config, ids, task)
    rows = list(measure(runner, config, ids, task, say))
    return {
        "benchmark": "bench",
        "machine": machine(),
        "model": described(name, model),
        "config": config.changed,
        "pot_size": config.pot_size,
        "distill_to": config.mean_budget,
        "task": dataclasses.asdict(task),
        "rows": rows,
        "ratios": ratios(rows),
        "parts": parts_of_longest(runner, config, ids, rows, say),
    }


def parts_of_longest(
    runner: ModelRunner, config: PotConfig, ids: list[int], rows: list[dict[str, Any]], say: Say
) -> dict[str, Any] | None:
    """The parts of reading the longest text; None if it was never distilled,
    or by every token."""
    longest = next(row for row in reversed(rows) if row["what"] == "pot")
    if not longest["distillations"]:
        return None
    say("the parts of reading")
    return parts(runner, config, ids, longest["prefill_tps"])


def described(name: str, model: PreTrainedModel) -> dict[str, Any]:
    weight = model.get_input_embeddings().weight
    return {
        "name": name,
        "parameters": sum(parameter.numel() for parameter in model.parameters())
        + sum(groups.shape.numel() for groups in weights_in_groups(model).values()),
        "dtype": str(weight.dtype).removeprefix("torch."),
        "device": weight.device.type,
        "attention": model.config._attn_implementation,
    }


def warm_up(runner: ModelRunner, config: PotConfig, ids: list[int], task: Task) -> None:
    """Run everything once before the measurement.

    Compilers, allocators and CUDA graphs do their first work here. The text is distilled several
    times if the longest one is.
    """
    reading.measured(runner, config, ids[: 4 * config.pot_size], task.batch, 8)
    if task.stock:
        stock.measured(runner.model, ids[:512], task.batch, 8)


def measure(
    runner: ModelRunner, config: PotConfig, ids: list[int], task: Task, say: Say
) -> Iterator[dict[str, Any]]:
    """For each length one row for the pot and one for stock transformers.

    A row has medians over rounds. In a round, pot and stock run one after the other. After stock
    runs out of memory, it is not tried at longer lengths. One length (`taken_apart`) has two more
    rows: `no nuc`, the reading speed without novelty, for policies with that option, and `loop`,
    the reading speed without catalyst and novelty.
    """
    died = False
    for length in sorted(task.lengths):
        text = ids[:length]
        kinds: dict[str, Run] = {
            "pot": partial(reading.measured, runner, config, text, task.batch, task.tokens)
        }
        if task.stock and not died:
            kinds["stock"] = partial(stock.measured, runner.model, text, task.batch, task.tokens)
        if length == taken_apart(config, task):
            if "novelty" in config.policy.options():
                kinds["no nuc"] = partial(reading.without, runner, config, text)
            kinds["loop"] = partial(reading.plain, runner, config, text)
        for kind, runs in run_rounds(length, kinds, task, say).items():
            row = {"length": length, "what": kind, **medians(runs)}
            died = died or (kind == "stock" and row.get("prefill_tps") is None)
            yield row
        if task.stock and "stock" not in kinds:
            why = "not tried: out of memory at a shorter length"
            yield {"length": length, "what": "stock", "died": why}


def run_rounds(
    length: int, kinds: dict[str, Run], task: Task, say: Say
) -> dict[str, list[dict[str, Any]]]:
    """The results of all rounds by kind. A kind stops when its time is up or it died."""
    runs: dict[str, list[dict[str, Any]]] = {kind: [] for kind in kinds}
    seconds = dict.fromkeys(kinds, 0.0)
    for number in range(task.rounds):
        for kind, run in kinds.items():
            if seconds[kind] > task.patience_s or any(row.get("died") for row in runs[kind]):
                continue
            say(f"{length:,} tokens, {kind}, round {number + 1}")
            start = time.perf_counter()
            runs[kind].append(run())
            seconds[kind] += time.perf_counter() - start
    return runs


def taken_apart(config: PotConfig, task: Task) -> int | None:
    """The length at which the parts of reading are measured too.

    It is the longest text of at most eight pots that is distilled, otherwise the shortest text that
    is distilled, otherwise None.
    """
    lengths = [length for length in sorted(task.lengths) if length > config.pot_size]
    short = [length for length in lengths if length <= 8 * config.pot_size]
    return next(iter(short[-1:] + lengths), None)


def medians(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The median of every number over the rounds, and the reading speed of each round."""
    row = {name: median([run[name] for run in runs]) for name in runs[0]}
    return {**row, "rounds": [run["prefill_tps"] for run in runs]}


def median(values: list[Any]) -> Any:
    """Whole numbers (bytes, counts) stay whole. Of values that are not all numbers, the last."""
    if all(isinstance(value, int) for value in values):
        return statistics.median_low(values)
    if all(isinstance(value, float) for value in values):
        return statistics.median(values)
    return values[-1]


def ratios(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The pot's numbers divided by stock's, for each length that stock could read."""
    stocks = [row for row in rows if row["what"] == "stock" and row.get("prefill_tps")]
    return [
        {"length": pot["length"], **ratio(pot, other)}
        for pot in rows
        if pot["what"] == "pot"
        for other in stocks
        if other["length"] == pot["length"]
    ]


def ratio(pot: dict[str, Any], other: dict[str, Any]) -> dict[str, float]:
    """The ratio of each number that both rows have."""
    names = [name for name in RATIOS if pot.get(name) and other.get(name)]
    return {name: pot[name] / other[name] for name in names}
