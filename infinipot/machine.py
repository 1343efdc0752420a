"""A description of the machine, and a test for its out-of-memory errors."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

import infinipot


def machine() -> dict[str, Any]:
    """Hardware and software versions, written with every result.

    The environment variable INFINIPOT_COMMIT names the commit where there is no git repository.
    """
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent,
    )
    return {
        "date": datetime.date.today().isoformat(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "gpus": torch.cuda.device_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "infinipot": infinipot.__version__,
        "commit": os.environ.get("INFINIPOT_COMMIT") or commit.stdout.strip() or None,
    }


def _cpu() -> str:
    """The processor's name. Linux gives the exact one in /proc/cpuinfo."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":")[1].strip()
    return platform.processor()


def on_device(numbers: Sequence[Any], device: torch.device) -> Tensor:
    """Whole numbers as a tensor on a device. On a GPU the copy does not wait for its other work."""
    if device.type != "cuda":
        return torch.tensor(numbers, dtype=torch.long, device=device)
    host = torch.tensor(numbers, dtype=torch.long, pin_memory=True)
    return host.to(device, non_blocking=True)


def out_of_memory(problem: BaseException) -> bool:
    """Whether an exception reports that memory ran out.

    torch has a class for this on GPUs. On a CPU only the message tells.
    """
    if isinstance(problem, (torch.OutOfMemoryError, MemoryError)):
        return True
    return "allocate memory" in str(problem)
