"""Measurement of time and memory."""

from __future__ import annotations

import ctypes
import gc
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile


def settle() -> None:
    """Wait for all GPUs, and return free memory to the system."""
    gc.collect()
    if torch.cuda.is_available():
        wait()
        torch.cuda.empty_cache()
    # glibc keeps freed memory, which the next measurement would count
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)


def wait() -> None:
    for number in range(torch.cuda.device_count()):
        torch.cuda.synchronize(number)


def clock() -> float:
    """The time in seconds, after all GPUs have finished their work."""
    wait()
    return time.perf_counter()


def cost_s(
    work: Callable[..., Any], prepare: Callable[[], tuple[Any, ...]] = tuple, repeats: int = 5
) -> float:
    """Seconds for `work`, as the median of several runs after one run to warm up.

    On GPUs it is the time of the kernels without the gaps between them, because CUDA graphs have no
    gaps. Elsewhere it is the time by the clock. `prepare` makes the arguments of each run and is
    not timed.
    """
    work(*prepare())
    if torch.cuda.is_available():
        return statistics.median(_kernels_s(work, prepare()) for _ in range(repeats))
    times = []
    for _ in range(repeats):
        arguments = prepare()
        start = clock()
        work(*arguments)
        times.append(clock() - start)
    return statistics.median(times)


def _kernels_s(work: Callable[..., Any], arguments: tuple[Any, ...]) -> float:
    wait()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        work(*arguments)
        wait()
    kernels = [
        event
        for event in profiler.key_averages()
        if event.device_type.name == "CUDA" and not event.is_user_annotation
    ]
    return sum(event.self_device_time_total for event in kernels) / 1e6


class Peak:
    """bytes: the peak memory. grew: the peak less the memory before. None where the system does not
    report memory."""

    bytes: int | None = None
    grew: int | None = None


@contextmanager
def peak(device: torch.device) -> Iterator[Peak]:
    """Measures the peak memory of the block.

    On GPUs it is the memory that torch allocated, on all cards together. On a CPU (Linux) it is the
    resident memory of the process.
    """
    most = Peak()
    settle()
    if device.type == "cuda":
        cards = range(torch.cuda.device_count())
        for card in cards:
            torch.cuda.reset_peak_memory_stats(card)
        before = sum(torch.cuda.memory_allocated(card) for card in cards)
        yield most
        most.bytes = sum(torch.cuda.max_memory_allocated(card) for card in cards)
        most.grew = most.bytes - before
        return
    reset = Path("/proc/self/clear_refs")
    reports = reset.exists()
    if reports:
        reset.write_text("5")  # sets the peak to the resident memory of now, see proc(5)
        before = resident_peak()
    yield most
    if reports:
        most.bytes = resident_peak()
        most.grew = most.bytes - before


def resident_peak() -> int:
    """Bytes, from the line `VmHWM: N kB`."""
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) * 1024
