"""What the machine is, and how it says that its memory is used up."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch
import transformers

import infinipot


def machine() -> dict[str, Any]:
    """What every result says about where and with what it was made. INFINIPOT_COMMIT names the
    commit where there is no repository."""
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    else:
        lines = []
    cpu = next(
        (line.split(":")[1].strip() for line in lines if line.startswith("model name")),
        platform.processor(),
    )
    asked = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent,
    )
    return {
        "date": datetime.date.today().isoformat(),
        "cpu": cpu,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "gpus": torch.cuda.device_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "infinipot": infinipot.__version__,
        "commit": os.environ.get("INFINIPOT_COMMIT") or asked.stdout.strip() or None,
    }


def out_of_memory(problem: BaseException) -> bool:
    """Whether an exception says that memory is used up: torch has a class for it on GPUs, only
    words on a CPU."""
    return isinstance(problem, (torch.OutOfMemoryError, MemoryError)) or "allocate memory" in str(
        problem
    )
