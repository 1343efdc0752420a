"""Means over tasks, and confidence intervals."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np

ROUNDS = 2000


def task_means(scores: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """The mean score of each task that has rows. scores: task -> row -> score."""
    return {task: float(np.mean(list(rows.values()))) for task, rows in scores.items() if rows}


def mean(values: Sequence[float]) -> float | None:
    """The mean, or None for no values."""
    if values:
        return float(np.mean(values))
    return None


def paired_difference(
    first: Mapping[str, Mapping[str, float]],
    second: Mapping[str, Mapping[str, float]],
    rounds: int = ROUNDS,
) -> tuple[float, tuple[float, float] | None]:
    """second - first, as the mean of task means, with a 95 % interval by paired bootstrap.

    Only rows of both methods count. The bootstrap draws rows within each task, the same rows for
    both methods. Its random numbers depend on the tasks only, so the interval is reproducible. The
    interval is None if a task has a single row, because one row has no spread. Raises ValueError if
    the methods share no row.
    """
    shared = {task: sorted(set(first[task]) & set(second.get(task, {}))) for task in sorted(first)}
    gaps = {
        task: [second[task][row] - first[task][row] for row in rows]
        for task, rows in shared.items()
        if rows
    }
    if not gaps:
        raise ValueError("the two methods have no row in common, so there is nothing to compare")
    gap = float(np.mean([np.mean(rows) for rows in gaps.values()]))
    if min(map(len, gaps.values())) < 2:
        return gap, None
    samples = np.zeros(rounds)
    for task, rows in gaps.items():
        seed = int.from_bytes(hashlib.sha256(task.encode()).digest()[:4], "big")
        values = np.asarray(rows)
        picks = np.random.default_rng(seed).integers(len(values), size=(rounds, len(values)))
        samples += values[picks].mean(axis=1)
    low, high = np.quantile(samples / len(gaps), [0.025, 0.975])
    return gap, (float(low), float(high))


def share_interval(right: int, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share, 0 .. 1. It is valid at 0 of 8 and 8 of 8 too."""
    z = 1.96
    share = right / count
    scale = 1 + z * z / count
    middle = (share + z * z / (2 * count)) / scale
    half = z * np.sqrt(share * (1 - share) / count + z * z / (4 * count * count)) / scale
    return float(max(0.0, middle - half)), float(min(1.0, middle + half))
