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

    first, second: task -> row -> score. Every row is drawn by itself; otherwise as
    `grouped_difference`.
    """
    return grouped_difference(each_alone(first), each_alone(second), rounds)


def mean_interval(
    scores: Mapping[str, Mapping[str, float]],
) -> tuple[float, tuple[float, float] | None]:
    """The mean of task means, with an interval as `paired_difference`: rows are drawn within each
    task. scores: task -> row -> score."""
    nothing = {task: dict.fromkeys(rows, 0.0) for task, rows in scores.items()}
    return paired_difference(nothing, scores)


Grouped = Mapping[str, Mapping[str, Mapping[str, float]]]
"""Task -> document -> question -> score."""


def grouped_difference(
    first: Grouped, second: Grouped, rounds: int = ROUNDS
) -> tuple[float, tuple[float, float] | None]:
    """second - first, as the mean of task means over all questions, with a 95 % interval by paired
    bootstrap.

    Only questions of both methods count. The bootstrap draws documents within each task, each with
    all its questions, the same for both methods. Its random numbers depend on the tasks only, so
    the interval is reproducible. The interval is None if a task has a single document, because one
    document has no spread. Raises ValueError if the methods share no question.
    """
    gaps: dict[str, list[list[float]]] = {}
    for task in sorted(first):
        documents = _gaps(first[task], second.get(task, {}))
        if documents:
            gaps[task] = documents
    if not gaps:
        raise ValueError("the two methods have no row in common, so there is nothing to compare")
    means = [np.mean([gap for some in documents for gap in some]) for documents in gaps.values()]
    if min(map(len, gaps.values())) < 2:
        return float(np.mean(means)), None
    samples = np.zeros(rounds)
    for task, documents in gaps.items():
        seed = int.from_bytes(hashlib.sha256(task.encode()).digest()[:4], "big")
        sums = np.asarray([sum(some) for some in documents])
        counts = np.asarray([len(some) for some in documents])
        picks = np.random.default_rng(seed).integers(len(sums), size=(rounds, len(sums)))
        samples += sums[picks].sum(axis=1) / counts[picks].sum(axis=1)
    low, high = np.quantile(samples / len(gaps), [0.025, 0.975])
    return float(np.mean(means)), (float(low), float(high))


def grouped_mean(scores: Grouped) -> tuple[float, tuple[float, float] | None]:
    """The mean of task means over all questions, with an interval, as `grouped_difference`."""
    nothing = {
        task: {name: dict.fromkeys(asked, 0.0) for name, asked in documents.items()}
        for task, documents in scores.items()
    }
    return grouped_difference(nothing, scores)


def each_alone(
    scores: Mapping[str, Mapping[str, float]],
) -> dict[str, dict[str, dict[str, float]]]:
    """Task -> row -> score as task -> document -> question -> score: each row is a document."""
    return {
        task: {row: {row: score} for row, score in rows.items()} for task, rows in scores.items()
    }


def _gaps(
    first: Mapping[str, Mapping[str, float]], second: Mapping[str, Mapping[str, float]]
) -> list[list[float]]:
    """second - first for the shared questions of each shared document, in the order of names."""
    gaps = [
        [
            second[name][one] - first[name][one]
            for one in sorted(set(first[name]) & set(second[name]))
        ]
        for name in sorted(set(first) & set(second))
    ]
    return [some for some in gaps if some]


def share_interval(right: int, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share, 0 .. 1. It is valid at 0 of 8 and 8 of 8 too."""
    z = 1.96
    share = right / count
    scale = 1 + z * z / count
    middle = (share + z * z / (2 * count)) / scale
    half = z * np.sqrt(share * (1 - share) / count + z * z / (4 * count * count)) / scale
    return float(max(0.0, middle - half)), float(min(1.0, middle + half))
