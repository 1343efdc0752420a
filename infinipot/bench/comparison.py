"""The whole benchmark: every length in a pot and, beside it in the same run, by stock transformers."""

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
from infinipot.bench.measure import machine
from infinipot.config import PotConfig
from infinipot.model.runner import Host

RATIOS = ("prefill_tps", "first_token_s", "decode_tps", "batch_tps", "peak_bytes", "grew_bytes", "kv_bytes")
Say = Callable[[str], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """What to measure. rounds: how often each row, at most; a row is not repeated once it took `patience_s` seconds in all."""

    lengths: tuple[int, ...]
    stock: bool = False
    batch: int = 8
    tokens: int = 64
    rounds: int = 3
    patience_s: float = 60.0


def compare(name: str, model: PreTrainedModel, config: PotConfig, task: Task, say: Say) -> dict[str, Any]:
    """All rows, the parts of reading, and the ratios, as one document. The text is random ids, the same for all."""
    host = Host(model)
    random = torch.Generator().manual_seed(0)
    ids = torch.randint(host.vocabulary, (max(task.lengths),), generator=random).tolist()
    say("warming up")
    warm_up(host, config, ids, task)
    rows = list(measure(host, config, ids, task, say))
    say("the parts of reading")
    longest = next(row for row in reversed(rows) if row["what"] == "pot")
    return {
        "benchmark": "bench",
        "machine": machine(),
        "model": described(name, model),
        "config": config.changed,
        "pot_size": config.pot_size,
        "distill_to": config.survivors,
        "task": dataclasses.asdict(task),
        "rows": rows,
        "ratios": ratios(rows),
        "parts": parts(host, config, ids, longest["prefill_tps"]) if longest["distillations"] else None,
    }


def described(name: str, model: PreTrainedModel) -> dict[str, Any]:
    weight = model.get_input_embeddings().weight
    return {
        "name": name,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "dtype": str(weight.dtype).removeprefix("torch."),
        "device": weight.device.type,
        "attention": model.config._attn_implementation,
    }


def warm_up(host: Host, config: PotConfig, ids: list[int], task: Task) -> None:
    """Run everything once, on a text that is distilled several times if the longest is; compilers, allocators and recordings have then done
    their first work."""
    reading.measured(host, config, ids[: 4 * config.pot_size], task.batch, 8)
    if task.stock:
        stock.measured(host.model, ids[:512], task.batch, 8)


def measure(host: Host, config: PotConfig, ids: list[int], task: Task, say: Say) -> Iterator[dict[str, Any]]:
    """A row for the pot and one for stock a length, of medians over rounds in which the two take turns.

    Stock is not tried on longer texts once memory was used up. At one length (`taken_apart`) there are two rows more: `no nuc`, the pot's
    reading speed without novelty, and `loop`, without catalyst and novelty.
    """
    died = False
    for length in sorted(task.lengths):
        text = ids[:length]
        kinds: dict[str, Callable[[], dict[str, Any]]] = {"pot": partial(reading.measured, host, config, text, task.batch, task.tokens)}
        if task.stock and not died:
            kinds["stock"] = partial(stock.measured, host.model, text, task.batch, task.tokens)
        if length == taken_apart(config, task):
            kinds["no nuc"] = partial(reading.without, host, config, text)
            kinds["loop"] = partial(reading.plain, host, config, text)
        runs: dict[str, list[dict[str, Any]]] = {kind: [] for kind in kinds}
        took = dict.fromkeys(kinds, 0.0)
        for number in range(task.rounds):
            for kind, run in kinds.items():
                if took[kind] > task.patience_s or any(row.get("died") for row in runs[kind]):
                    continue
                say(f"{length:,} tokens, {kind}, round {number + 1}")
                started = time.perf_counter()
                runs[kind].append(run())
                took[kind] += time.perf_counter() - started
        for kind, found in runs.items():
            row = {"length": length, "what": kind, **medians(found)}
            died = died or (kind == "stock" and row.get("prefill_tps") is None)
            yield row
        if task.stock and "stock" not in kinds:
            yield {"length": length, "what": "stock", "died": "not tried: out of memory at a shorter length"}


def taken_apart(config: PotConfig, task: Task) -> int | None:
    """The longest text of no more than eight pots, else the shortest that is distilled, if there is one."""
    distilled = [length for length in sorted(task.lengths) if length > config.pot_size]
    return max((length for length in distilled if length <= 8 * config.pot_size), default=distilled[0] if distilled else None)


def medians(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Of each number its median over rounds; how many rounds there were, and all their reading speeds."""
    row: dict[str, Any] = {}
    for name in found[0]:
        values = [run[name] for run in found]
        if all(isinstance(value, int) for value in values):
            row[name] = statistics.median_low(values)  # bytes and counts stay whole
        else:
            row[name] = statistics.median(values) if all(isinstance(value, float) for value in values) else values[-1]
    return {**row, "rounds": [run["prefill_tps"] for run in found]}


def ratios(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The pot's numbers divided by stock's, a length each, where both are there and stock could read the text."""
    found = []
    for pot in (row for row in rows if row["what"] == "pot"):
        for other in (row for row in rows if row["what"] == "stock" and row["length"] == pot["length"] and row.get("prefill_tps")):
            pairs = {name: (pot.get(name), other.get(name)) for name in RATIOS}
            found.append({"length": pot["length"], **{name: a / b for name, (a, b) in pairs.items() if a and b}})
    return found
