"""Run units of work over one model: in this process, in several processes, or on a Ray cluster."""

from __future__ import annotations

import concurrent.futures
import functools
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from infinipot.checks import EMBEDDED, known
from infinipot.engine.reader import NoRoom
from infinipot.eval.results import Record, Results
from infinipot.machine import out_of_memory
from infinipot.model.load import best_device, best_dtype, kept_weights, load
from infinipot.model.quantizer import WEIGHTS
from infinipot.model.runner import ModelRunner
from infinipot.option_types import DtypeName
from infinipot.optional import RAY, need

Progress = Callable[[int, int, str], None]
"""(units done, units in total, title of the last unit)."""
Work = list[Record] | str
"""The records of a unit, or why there are none."""


@dataclass(frozen=True)
class Model:
    """A model by name, and how to load it. Small enough to send to another process."""

    name: str
    device: str = "auto"
    dtype: DtypeName = "auto"
    weights: str | None = None
    tensor_parallel: int = 1
    spread: bool = False

    @property
    def label(self) -> str:
        """The Hub id, or the name of the file or folder."""
        path = Path(self.name)
        if self.name == EMBEDDED or not path.exists():
            return self.name
        return path.resolve().name

    @property
    def precision(self) -> str:
        weights = self.weights or kept_weights(self.name)
        dtype = best_dtype(self.dtype, best_device(self.device), weights)
        precision = str(dtype).removeprefix("torch.")
        if self.weights is None:
            return precision
        known("weights", self.weights, WEIGHTS)
        return f"{precision}, weights {self.weights}"

    @property
    def about(self) -> Record:
        """The model's fields of every result."""
        return {"model": self.label, "dtype": self.precision}


class Replica:
    """A loaded model. cache: data that units share, such as a tokenised haystack."""

    def __init__(self, model: Model, number: int = 0, threads: int | None = None) -> None:
        if threads is not None:
            torch.set_num_threads(threads)
        device = best_device(model.device)
        gpus = torch.cuda.device_count()
        several = model.tensor_parallel > 1 or model.spread
        if device.type == "cuda" and device.index is None and gpus > 1 and not several:
            device = torch.device("cuda", number % gpus)
        try:
            loaded, self.tokenizer = load(
                model.name,
                device=str(device),
                dtype=model.dtype,
                weights=model.weights,
                tensor_parallel=model.tensor_parallel,
                spread=model.spread,
            )
        except OSError as problem:
            raise ValueError(str(problem)) from problem
        self.runner = ModelRunner(loaded)
        self.cache: dict[str, Any] = {}

    @classmethod
    def of(cls, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Replica:
        """A replica of a model that is already loaded."""
        replica = cls.__new__(cls)
        replica.runner = ModelRunner(model)
        replica.tokenizer = tokenizer
        replica.cache = {}
        return replica

    def work(self, unit: Unit) -> Work:
        """The unit's records. If it does not fit on the device or in the pot, the reason."""
        try:
            return unit.run(self)
        except NoRoom as problem:
            return str(problem)
        except Exception as problem:
            if not out_of_memory(problem):
                raise
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            return "not enough memory on the device"


class Unit(Protocol):
    """A unit of work, usually one reading with its questions. Its records depend only on the unit and
    the model."""

    @property
    def title(self) -> str: ...

    def keys(self) -> list[Record]:
        """The identifying fields of the records it makes."""
        ...

    def run(self, replica: Replica) -> list[Record]: ...


def shard_of(text: str) -> tuple[int, int]:
    """`2/8` -> (2, 8): the second of eight parts."""
    number, _, count = text.partition("/")
    if not (number.isdigit() and count.isdigit() and 1 <= int(number) <= int(count)):
        raise ValueError(
            f"shard={text!r} is not allowed: it must be i/n with i from 1 to n, as in 2/8"
        )
    return int(number), int(count)


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Which units run, and where."""

    shard: tuple[int, int] = (1, 1)
    """(i, n): every n-th unit from the i-th on."""
    limit: int | None = None
    """Most units of the shard."""
    workers: int = 1
    """Processes, each with the model. They are spread over the GPUs."""
    ray: str | None = None
    """Address of a Ray cluster; "local" for one on this machine."""
    replica: Replica | None = None
    """A loaded model, for one process."""
    kept: list[Replica] = field(default_factory=list)
    """Where one process keeps the model that it loads, for the next sweep."""

    def stream(self, units: list[Any], model: Model) -> Iterator[tuple[Any, Work]]:
        """Run the units, and yield each with its result."""
        if self.ray is not None:
            return on_ray(units, model, self.ray)
        if self.workers > 1 and len(units) > 1:
            return in_processes(units, model, min(self.workers, len(units)))
        if self.replica is not None:
            return here(units, [self.replica], model)
        return here(units, self.kept, model)


def sweep(
    units: Sequence[Any],
    results: Results,
    model: Model,
    progress: Progress = lambda done, total, title: None,
    **placement: Any,
) -> list[str]:
    """Run the units that have no results yet, and add their records to the results. Returns the
    titles of units without records, with the reason. placement: fields of `Placement`."""
    place = Placement(**placement)
    first, step = place.shard
    mine = list(units)[first - 1 :: step][: place.limit]
    left = [unit for unit in mine if not all(results.has(key) for key in unit.keys())]  # noqa: SIM118 (a method)
    done = len(mine) - len(left)
    failed = []
    progress(done, len(mine), "")
    for unit, records in place.stream(left, model):
        if isinstance(records, str):
            failed.append(f"{unit.title}: {records}")
        else:
            results.add(records)
        done += 1
        progress(done, len(mine), unit.title)
    results.settle(key for unit in mine for key in unit.keys())  # noqa: SIM118
    return failed


def here(units: list[Any], kept: list[Replica], model: Model) -> Iterator[tuple[Any, Work]]:
    if units and not kept:
        kept.append(Replica(model))
    for unit in units:
        yield unit, kept[0].work(unit)


_MAKE: list[Callable[[], Replica]] = []
"""In a worker process: a function that loads the model at its first call, so that an error is
reported like any other."""


def _begin(model: Model, numbers: Any, threads: int | None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    _MAKE.append(functools.cache(functools.partial(Replica, model, numbers.get(), threads)))


def _work(unit: Any) -> Work:
    return _MAKE[0]().work(unit)


def in_processes(units: list[Any], model: Model, count: int) -> Iterator[tuple[Any, Work]]:
    """Results in order of completion. Only a few units are submitted at a time, so that an interrupted
    run stops soon."""
    context = multiprocessing.get_context("spawn")
    numbers = context.Queue()
    for number in range(count):
        numbers.put(number)
    threads = max(1, (os.cpu_count() or 1) // count)
    pool = concurrent.futures.ProcessPoolExecutor(
        count, mp_context=context, initializer=_begin, initargs=(model, numbers, threads)
    )
    waiting = iter(units)
    running = dict[Any, Any]()
    try:
        for unit in waiting:
            running[pool.submit(_work, unit)] = unit
            if len(running) > count:
                yield from _finished(running)
        while running:
            yield from _finished(running)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _finished(running: dict[Any, Any]) -> Iterator[tuple[Any, Work]]:
    done, _ = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
    for future in done:
        yield running.pop(future), future.result()


def on_ray(units: list[Any], model: Model, address: str) -> Iterator[tuple[Any, Work]]:
    """One replica a GPU of the cluster; without GPUs, one for every two CPUs."""
    ray = need("ray", "sweeps on a cluster", RAY)
    ray.init(address=address, ignore_reinit_error=True, log_to_driver=False)
    gpus = int(ray.cluster_resources().get("GPU", 0))
    cpus = int(ray.cluster_resources().get("CPU", 1))
    share = {"num_cpus": 1}
    slots = max(1, cpus // 2)
    threads: int | None = 1
    if gpus:
        share = {"num_gpus": 1}
        slots = gpus
        threads = None
    count = min(len(units), slots)
    if not count:
        return
    actors = [ray.remote(**share)(Replica).remote(model, 0, threads) for _ in range(count)]
    waiting = iter(units)
    running = {
        actor.work.remote(unit): (actor, unit) for actor, unit in zip(actors, waiting, strict=False)
    }
    while running:
        (ready,), _ = ray.wait(list(running), num_returns=1)
        actor, unit = running.pop(ready)
        following = next(waiting, None)
        if following is not None:
            running[actor.work.remote(following)] = (actor, following)
        yield unit, ray.get(ready)
    ray.shutdown()
