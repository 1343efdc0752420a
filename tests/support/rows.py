"""Rows in the format of LongBench, written for these tests."""

from __future__ import annotations

from typing import Any

from infinipot.eval.tasks.longbench import Row

CLASSES = [
    "Manner of an action",
    "Manner",
    "Description of a person",
    "Person",
    "Other location",
    "Location",
]


def record(task: str, number: int = 0, words: int = 150) -> dict[str, Any]:
    """A row in LongBench's format, written for these tests."""
    context = " ".join(
        f"Line {n}: the ship went to port {(n + number) % 7}." for n in range(words // 8)
    )
    question = (
        "" if task in ("gov_report", "lcc", "passage_count") else f"Which port came {number}th?"
    )
    answers = {
        "passage_retrieval_en": ["Paragraph 3"],
        "trec": ["Location"],
        "lcc": ["    return 1"],
        "passage_count": ["4"],
    }
    return {
        "input": question,
        "context": context,
        "answers": answers.get(task, [f"port {number}", "a port"]),
        "all_classes": CLASSES if task == "trec" else None,
        "dataset": task,
        "_id": f"{task}-{number}",
        "length": words,
        "language": "en",
    }


def row_of(task: str, **more: Any) -> Row:
    fields = record(task, **more)
    classes = tuple(fields["all_classes"] or ())
    return Row(
        task,
        fields["_id"],
        0,
        fields["context"],
        fields["input"],
        tuple(fields["answers"]),
        classes,
        0,
    )
