"""Seconds and bytes."""

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
    """Wait for all GPUs, and give back what nothing needs any more."""
    gc.collect()
    if torch.cuda.is_available():
        wait()
        torch.cuda.empty_cache()
    # glibc keeps what is free; its next measurement would find it
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)


def wait() -> None:
    for number in range(torch.cuda.device_count()):
        torch.cuda.synchronize(number)


def clock() -> float:
    """Now, in seconds, when all GPUs have done what they were given."""
    wait()
    return time.perf_counter()


def cost_s(
    work: Callable[..., Any], prepare: Callable[[], tuple[Any, ...]] = tuple, repeats: int = 5
) -> float:
    """Seconds that a piece of work takes: on GPUs what its kernels do, without the gaps between
    them, which a recording has not either; elsewhere the median by the clock. `prepare` makes its
    arguments, untimed; one run warms up."""
    work(*prepare())
    if torch.cuda.is_available():
        return statistics.median(_kernels_s(work, prepare()) for _ in range(repeats))
    times = []
    for _ in range(repeats):
        material = prepare()
        started = clock()
        work(*material)
        times.append(clock() - started)
    return statistics.median(times)


def _kernels_s(work: Callable[..., Any], material: tuple[Any, ...]) -> float:
    wait()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        work(*material)
        wait()
    found = [
        event
        for event in profiler.key_averages()
        if event.device_type.name == "CUDA" and not event.is_user_annotation
    ]
    return sum(event.self_device_time_total for event in found) / 1e6


class Peak:
    """bytes: the most memory at any moment. grew: how much that is beyond what was taken before.
    None where the system cannot say."""

    bytes: int | None = None
    grew: int | None = None


@contextmanager
def peak(device: torch.device) -> Iterator[Peak]:
    """Measures what is inside. On GPUs what torch allocated, all cards together; on a CPU (Linux)
    the process's resident memory."""
    seen = Peak()
    settle()
    if device.type == "cuda":
        cards = range(torch.cuda.device_count())
        for card in cards:
            torch.cuda.reset_peak_memory_stats(card)
        before = sum(torch.cuda.memory_allocated(card) for card in cards)
        yield seen
        seen.bytes = sum(torch.cuda.max_memory_allocated(card) for card in cards)
        seen.grew = seen.bytes - before
        return
    known = Path("/proc/self/clear_refs").exists()
    if known:
        # the peak begins anew (proc(5)), at what is resident now
        Path("/proc/self/clear_refs").write_text("5")
        before = resident_peak()
    yield seen
    if known:
        seen.bytes = resident_peak()
        seen.grew = seen.bytes - before


def resident_peak() -> int:
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) * 1024
