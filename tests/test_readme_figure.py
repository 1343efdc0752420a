"""README's figure is drawn from results as the commands write them, and says what is missing."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib")
SCRIPT = Path(__file__).parents[1] / "benchmarks" / "readme_figure.py"
PNG = b"\x89PNG"


def bench(name: str, *stock: dict[str, Any]) -> dict[str, Any]:
    numbers = {"prefill_tps": 1.0, "first_token_s": 1.0, "decode_tps": 1.0}
    rows = [
        {"length": 1024 << n, "what": "pot", "peak_bytes": 17_000_000_000 + n, **numbers}
        for n in range(4)
    ]
    machine = {
        "date": "2026-11-28",
        "cpu": "a CPU",
        "threads": 2,
        "gpu": None,
        "torch": "2.13.0",
        "transformers": "5.24.0",
    }
    return {
        "benchmark": "bench",
        "machine": machine,
        "model": {"name": name, "dtype": "bfloat16"},
        "pot_size": 4096,
        "rows": [*rows, *stock],
    }


def stock(length: int, peak: int | None, died: str | None = None) -> dict[str, Any]:
    return {
        "length": length,
        "what": "stock",
        "peak_bytes": peak,
        "first_token_s": None if died else 1.0,
        "died": died,
    }


def needles(method: str, lengths: tuple[int, ...], **changes: Any) -> list[dict[str, Any]]:
    shared = {"model": "small", "dtype": "float32", "method": method, "question": "known", "options": {"pot_size": 1024, "distill_to": 512},
              "haystack": "essays", "kind": "number", "system": None, "seed": 0, **changes}  # fmt: skip
    return [
        {
            **shared,
            "length": length,
            "depth": depth,
            "trial": trial,
            "right": trial < 1 + (length < 8192),
            "forced": True,
            "kept": 0.5,
        }
        for length in lengths
        for depth in (0.1, 0.5, 0.9)
        for trial in range(2)
    ]


def write(folder: Path, name: str, records: list[dict[str, Any]]) -> None:
    (folder / name).write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")


def drawn(folder: Path, *args: str) -> str:
    """Runs the script. Returns the drawing."""
    spec = importlib.util.spec_from_file_location("readme_figure", SCRIPT)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    script.main(["--results", str(folder), "--out", str(folder / "out" / "figure"), *args])
    return (folder / "out" / "figure.svg").read_text("utf-8")


def refused(folder: Path, *args: str) -> str:
    with pytest.raises(SystemExit) as problem:
        drawn(folder, *args)
    return str(problem.value.code)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Results of both kinds, with others among them that are not to be drawn."""
    measured = [
        stock(1024, 18_000_000_000),
        stock(2048, 40_000_000_000),
        stock(4096, 70_000_000_000, "out of memory while reading"),
    ]
    write(
        tmp_path,
        "bench.jsonl",
        [
            {"benchmark": "other"},
            bench("first", *measured),
            bench("large", *measured),
            bench("alone"),
        ],
    )
    write(
        tmp_path,
        "needle.jsonl",
        needles("streaming", (4096, 8192, 16384, 32768))
        + needles("infinipot", (4096,), question="unknown"),
    )
    options = {"pot_size": 1024, "distill_to": 512, "pool": 13}
    write(
        tmp_path,
        "needle-more.jsonl",
        needles("infinipot:pool=13", (4096, 8192), options=options)
        + needles(
            "infinipot:pool=13:distill_to=256", (4096,), options={**options, "distill_to": 256}
        )
        + needles(
            "infinipot:pool=9:distill_to=128",
            (131072,),
            options={**options, "pool": 9, "distill_to": 128},
        )
        + needles("h2o", (65536,), model="large"),
    )
    return tmp_path


def test_both_panels(folder: Path) -> None:
    drawing = drawn(folder)
    assert (folder / "out" / "figure.png").read_bytes()[:4] == PNG
    for part in ("large, bfloat16, a CPU", "pot of 4,096", "stock transformers", "stock runs out of memory here", "95 % intervals",
                 ">small, pots of 1,024, 512 survivors (others 256)<", ">infinipot, fewer survivors<", ">streaming<", ">8K<", ">32K<"):  # fmt: skip
        assert part in drawing, part
    assert ">64K<" not in drawing and ">h2o<" not in drawing  # of another model
    assert ">128K<" not in drawing  # other options than the number of survivors
    assert "first, bfloat16" not in drawing
    drawing = drawn(folder, "--bench", "first", "--needle", "unknown")
    assert "first, bfloat16" in drawing and "the question is not known" in drawing


def test_what_is_missing_is_named(folder: Path) -> None:
    said = refused(folder, "--bench", "alone")
    assert (
        "bench.jsonl has no result of alone with the memory of stock" in said
        and "first, large" in said
    )
    said = refused(folder, "--needle", "moby-dick")
    assert "'moby-dick'" in said and "small, number in essays" in said
    (folder / "needle-more.jsonl").unlink()
    (folder / "needle.jsonl").unlink()
    assert "infinipot needle MODEL" in refused(folder)
    (folder / "bench.jsonl").unlink()
    assert "infinipot bench MODEL --compare stock" in refused(folder)
    assert not (folder / "out").exists()
