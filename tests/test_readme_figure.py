"""README's figure is drawn from results as the commands write them, and says what is missing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "readme_figure.py"
PNG = b"\x89PNG"


def bench(name: str, *stock: dict[str, Any]) -> dict[str, Any]:
    numbers = {"prefill_tps": 1.0, "first_token_s": 1.0, "decode_tps": 1.0}
    rows = [{"length": 1024 << n, "what": "pot", "peak_bytes": 17_000_000_000 + n, **numbers} for n in range(4)]
    machine = {"date": "2026-11-28", "cpu": "a CPU", "threads": 2, "gpu": None, "torch": "2.13.0", "transformers": "5.24.0"}
    return {"benchmark": "bench", "machine": machine, "model": {"name": name, "dtype": "bfloat16"}, "pot_size": 4096, "rows": [*rows, *stock]}


def stock(length: int, peak: int | None, died: str | None = None) -> dict[str, Any]:
    return {"length": length, "what": "stock", "peak_bytes": peak, "first_token_s": None if died else 1.0, "died": died}


def needles(method: str, lengths: tuple[int, ...], **changes: Any) -> list[dict[str, Any]]:
    shared = {"model": "small", "dtype": "float32", "method": method, "question": "known", "options": {"pot_size": 1024, "distill_to": 512},
              "haystack": "essays", "kind": "number", "system": None, "seed": 0, **changes}  # fmt: skip
    return [
        {**shared, "length": length, "depth": depth, "trial": trial, "right": trial < 1 + (length < 8192), "forced": True, "kept": 0.5}
        for length in lengths
        for depth in (0.1, 0.5, 0.9)
        for trial in range(2)
    ]


def write(folder: Path, name: str, records: list[dict[str, Any]]) -> None:
    (folder / name).write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")


def drawn(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), "--results", str(folder), "--out", str(folder / "out" / "figure"), *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Results of both kinds, with others among them that are not to be drawn."""
    measured = [stock(1024, 18_000_000_000), stock(2048, 40_000_000_000), stock(4096, 70_000_000_000, "out of memory while reading")]
    write(tmp_path, "bench.jsonl", [{"benchmark": "other"}, bench("first", *measured), bench("large", *measured), bench("alone")])
    write(tmp_path, "needle.jsonl", needles("streaming", (4096, 8192, 16384, 32768)) + needles("infinipot", (4096,), question="unknown"))
    write(tmp_path, "needle-more.jsonl", needles("infinipot:pool=13", (4096, 8192)))
    return tmp_path


def test_both_panels(folder: Path) -> None:
    child = drawn(folder)
    assert child.returncode == 0, child.stderr
    assert (folder / "out" / "figure.png").read_bytes()[:4] == PNG
    drawing = (folder / "out" / "figure.svg").read_text("utf-8")
    for part in ("large, bfloat16, a CPU", "pot of 4,096", "stock transformers", "stock runs out of memory here",
                 ">small<", "pot of 1,024, question known, 2 trials a cell", ">100<", ">50<", "90 %", ">8K<"):  # fmt: skip
        assert part in drawing, part
    assert ">16K<" not in drawing  # streaming's
    assert "first, bfloat16" not in drawing
    chosen = drawn(folder, "--bench", "first", "--needle", "unknown")
    assert chosen.returncode == 0, chosen.stderr
    drawing = (folder / "out" / "figure.svg").read_text("utf-8")
    assert "first, bfloat16" in drawing and "question unknown" in drawing


def test_what_is_missing_is_named(folder: Path) -> None:
    child = drawn(folder, "--bench", "alone")
    assert child.returncode == 1
    assert "bench.jsonl has no result of alone with the memory of stock" in child.stderr and "first, large" in child.stderr
    child = drawn(folder, "--needle", "moby-dick")
    assert child.returncode == 1 and "'moby-dick'" in child.stderr and "small, number in essays" in child.stderr
    (folder / "needle-more.jsonl").unlink()
    (folder / "needle.jsonl").unlink()
    assert "infinipot needle MODEL" in drawn(folder).stderr
    (folder / "bench.jsonl").unlink()
    assert "infinipot bench MODEL --compare stock" in drawn(folder).stderr
    assert not (folder / "out").exists()
