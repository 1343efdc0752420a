"""Keeps the results of an evaluation as a record: the scores of every row, without texts.

    python benchmarks/keep_scores.py OUT/longbench.jsonl longbench

The first is the result file of `infinipot eval`, `needle` or `study`; the lines go to
benchmarks/results/NAME.jsonl, but those that are there. Left out are the model's answers, which
may quote the texts.
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


def keep_scores(source: Path, target: Path) -> int:
    """Add the records of a result file to another file. Returns how many are new."""
    old: list[str] = []
    if target.exists():
        old = target.read_text("utf-8").splitlines()
    lines = source.read_text("utf-8").splitlines()
    kept = dict.fromkeys(json.dumps(without_texts(json.loads(line))) for line in lines)
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
    args = parser.parse_args()
    target = RESULTS / f"{args.name}.jsonl"
    print(f"{keep_scores(args.source, target)} new lines in {target}")
