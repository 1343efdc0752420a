"""Writes the figures into README and docs/results.md from the records in benchmarks/results.

    python benchmarks/figures.py [--check]

A line `<!-- figures: NAME -->` stands above each block of figures; `blocks.py` computes it, and it
ends before the next empty line. --check writes nothing and fails if a document differs.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from blocks import BLOCKS

ROOT = Path(__file__).parents[1]
DOCUMENTS = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
MARKED = re.compile(r"<!-- figures: ([\w-]+) -->\n((?:.+\n)*)")


def named(text: str) -> list[str]:
    """The names of a document's blocks."""
    return [match[1] for match in MARKED.finditer(text)]


def renewed(text: str) -> str:
    """The document with its blocks computed anew. Raises KeyError for a name without a block."""

    def block(match: re.Match[str]) -> str:
        lines = [f"<!-- figures: {match[1]} -->", *BLOCKS[match[1]]()]
        return "\n".join(lines) + "\n"

    return MARKED.sub(block, text)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    for path in DOCUMENTS:
        text = path.read_text("utf-8")
        new = renewed(text)
        if new == text:
            continue
        if given.check:
            raise SystemExit(f"{path} differs from the records: run benchmarks/figures.py")
        path.write_text(new, "utf-8")
        print(path)


if __name__ == "__main__":
    main()
