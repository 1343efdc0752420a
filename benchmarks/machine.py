"""What every result says about where and with what it was made."""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def machine() -> dict[str, Any]:
    import torch
    import transformers

    import infinipot

    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    cpu = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=RESULTS.parent).stdout.strip()
    return {
        "date": datetime.date.today().isoformat(),
        "cpu": cpu,
        "cores": os.cpu_count(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "infinipot": infinipot.__version__,
        "commit": commit,
    }


def keep(name: str, result: dict[str, Any]) -> None:
    """Print a result as one line of JSON, and add it to benchmarks/results/NAME.jsonl."""
    line = json.dumps({**result, "machine": machine()})
    print(line)
    with open(RESULTS / f"{name}.jsonl", "a") as file:
        file.write(line + "\n")
