"""The generated documents say what the code says: docs/cli.md the help, docs/options.md the dataclasses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("script", ["make_cli.py", "make_options.py"])
def test_generated_document_is_up_to_date(script: str) -> None:
    command = [sys.executable, f"docs/{script}", "--check"]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
