"""What tests of the evaluation read."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from rows import record


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with two rows of each of four tasks, one of them compressed."""
    folder = tmp_path / "rows"
    folder.mkdir()
    for task in ("hotpotqa", "trec", "samsum", "lcc"):
        text = "".join(json.dumps(record(task, number)) + "\n" for number in range(2))
        if task == "trec":
            (folder / "trec.jsonl.gz").write_bytes(gzip.compress(text.encode()))
        else:
            (folder / f"{task}.jsonl").write_text(text)
    return folder
