"""Texts of RULER's tasks as files in the form of `eval documents`, each of a length in tokens."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from infinipot.eval.results import write_whole
from infinipot.eval.tables import tokens
from infinipot.eval.tasks.ruler import TASKS, Size, Source, Task, Text, source_of
from infinipot.text.json_text import json_text
from infinipot.text.tokens import fragment

ROUNDS = 12
"""Most texts that are tried for a length."""
FULL = 0.98
"""The share of a length from which on a text is long enough."""


def write_texts(
    folder: Path,
    tokenizer: PreTrainedTokenizerBase,
    haystack: str,
    lengths: Sequence[int],
    trials: int,
    seed: int,
) -> list[Path]:
    """Write a file for each length, with so many texts of each task. The same arguments give the same
    texts. Raises ValueError for a length without room for a task."""
    source = source_of(haystack)
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for length in sorted(lengths):
        rows = []
        for name, task in TASKS.items():
            for number in range(trials):
                text = fitted(task, source, tokenizer, length, f"{seed} {name} {number}")
                rows.append(row(name, number, length, text))
        path = folder / f"ruler-{length}.jsonl"
        write_whole(path, "".join(json_text(one) + "\n" for one in rows))
        paths.append(path)
    return paths


def row(name: str, number: int, length: int, text: Text) -> dict[str, Any]:
    """A text in the form of `eval documents`."""
    return {
        "task": f"{name} {tokens(length)}",
        "doc": f"{name}-{length}-{number}",
        "intro": text.intro,
        "context": text.context,
        "metric": "parts",
        "max_tokens": TASKS[name].max_tokens,
        "questions": [{"question": text.question, "answers": ["; ".join(text.answers)]}],
    }


def fitted(
    task: Task, source: Source, tokenizer: PreTrainedTokenizerBase, length: int, seed: str
) -> Text:
    """The longest text found of at most `length` tokens, with its question and the longest answer."""

    def made(units: int) -> tuple[int, Text]:
        text = task.make(source, random.Random(f"{seed} {length}"), Size(units, length))
        whole = f"{text.intro}{text.context}\n{text.question}"
        return len(fragment(tokenizer, whole)) + task.max_tokens, text

    low = task.least
    size, best = made(low)
    if size > length:
        raise ValueError(
            f"{length} tokens have no room for RULER's texts, of which one needs {size}: "
            "use a greater length"
        )
    high = length
    units = min(4 * low, high - 1)
    for _ in range(ROUNDS):
        if size >= FULL * length or high - low < 2:
            break
        count, text = made(units)
        each = max(1e-3, (count - task.max_tokens) / units)
        if count <= length:
            low, size, best = units, count, text
        else:
            high = units
        units = low + max(1, int((length - size) / each))
        if units >= high:
            units = (low + high) // 2
    return best
