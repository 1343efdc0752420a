"""Where and with what results were made."""

from __future__ import annotations

import json
from pathlib import Path

from infinipot.eval.runner import Model
from infinipot.machine import machine


def note(folder: Path, model: Model, command: list[str]) -> None:
    """Add a line to runs.jsonl: results themselves hold nothing that differs from one run to the
    next."""
    line = {"command": ["infinipot", *command], **model.about, **machine()}
    with open(folder / "runs.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(line, ensure_ascii=False) + "\n")
