"""A record of the machine and the command behind each run."""

from __future__ import annotations

from pathlib import Path

from infinipot.eval.runner import Model
from infinipot.machine import machine
from infinipot.text.json_text import json_text


def note(folder: Path, model: Model, command: list[str]) -> None:
    """Add a line to runs.jsonl. The results themselves are equal for equal runs."""
    line = {"command": ["infinipot", *command], **model.about, **machine()}
    with open(folder / "runs.jsonl", "a", encoding="utf-8") as file:
        file.write(json_text(line) + "\n")
