"""Where results are kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def keep(name: str, result: dict[str, Any]) -> None:
    """Print a result, with what it was made with and where, as one line of JSON, and add it to
    benchmarks/results/NAME.jsonl."""
    from infinipot.machine import machine

    line = json.dumps({**result, "machine": machine()})
    print(line)
    with open(RESULTS / f"{name}.jsonl", "a") as file:
        file.write(line + "\n")
