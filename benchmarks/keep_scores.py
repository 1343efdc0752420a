"""Keeps the results of an evaluation as a record: the scores of every row, without texts.

    python benchmarks/keep_scores.py OUT/longbench.jsonl longbench
    python benchmarks/keep_scores.py OUT/documents.jsonl documents --model qwen2.5-1.5b.gguf

The first is the result file of `infinipot eval`, `needle` or `study`; the lines go to
benchmarks/results/NAME.jsonl, but those that are there. Left out are the model's answers, which
may quote the texts. The many questions of a document become one line. --model: the model's name, if
the evaluation had it from a folder of another name.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from machine import RESULTS

TEXTS = ("pred", "answer", "answers")


def without_texts(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in TEXTS}


SHARED = (
    *("model", "dtype", "method", "question", "options", "task", "document"),
    *("turns", "text_tokens", "read_s"),
)


def by_document(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One record for all questions that met one reading of a document, others as they are."""
    found: dict[str, dict[str, Any]] = {}
    for number, row in enumerate(rows):
        if "document" not in row:
            found[str(number)] = row
            continue
        shared = {name: row[name] for name in SHARED if name in row}
        one = found.setdefault(json.dumps(shared), {**shared, "scores": {}})
        one["scores"][row["id"]] = row["score"]
    return list(found.values())


def keep_scores(source: Path, target: Path, model: str | None = None) -> int:
    """Add the records of a result file to another file. Returns how many are new."""
    old: list[str] = []
    if target.exists():
        old = target.read_text("utf-8").splitlines()
    lines = source.read_text("utf-8").splitlines()
    rows = by_document([without_texts(json.loads(line)) for line in lines])
    if model is not None:
        rows = [{**row, "model": model} for row in rows]
    kept = dict.fromkeys(map(json.dumps, rows))
    new = [line for line in kept if line not in set(old)]
    with target.open("a", encoding="utf-8") as file:
        file.write("".join(f"{line}\n" for line in new))
    return len(new)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path)
    parser.add_argument("name")
    parser.add_argument("--model")
    args = parser.parse_args()
    target = RESULTS / f"{args.name}.jsonl"
    print(f"{keep_scores(args.source, target, args.model)} new lines in {target}")
