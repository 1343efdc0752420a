"""Where and with what results were made."""

from __future__ import annotations

import datetime
import json
import os
import platform
from pathlib import Path
from typing import Any

import torch
import transformers

from infinipot import __version__
from infinipot.eval.runner import Model


def machine() -> dict[str, Any]:
    cpu = Path("/proc/cpuinfo")
    named = [line.split(":")[1].strip() for line in cpu.read_text().splitlines() if line.startswith("model name")] if cpu.exists() else []
    return {
        "cpu": named[0] if named else platform.processor(),
        "cores": os.cpu_count(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "infinipot": __version__,
    }


def note(folder: Path, model: Model, command: list[str]) -> None:
    """Add a line to runs.jsonl: results themselves hold nothing that differs from one run to the next."""
    line = {"date": datetime.date.today().isoformat(), "command": ["infinipot", *command], **model.about, **machine()}
    with open(folder / "runs.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(line, ensure_ascii=False) + "\n")
