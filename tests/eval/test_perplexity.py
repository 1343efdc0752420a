"""Perplexity while reading: against plain cross-entropy, bounded, resumable."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from infinipot.cli import main
from infinipot.eval.methods import methods
from infinipot.eval.runner import Model, Replica
from infinipot.eval.tasks.perplexity import Stream, plan, smoothed, table
from infinipot.text.files import file_text

TEXT = "The ship left at dawn and nobody saw it go; only the harbour master wrote of rain. " * 40


@pytest.fixture
def book(tmp_path: Path) -> Path:
    path = tmp_path / "book.txt.gz"
    path.write_bytes(gzip.compress(TEXT.encode()))
    return path


def stream(tiny: Model, label: str, path: Path, **more: Any) -> Stream:
    (one,) = methods(label, {"pot_size": 96, "distill_to": 32}, asked=False)
    return Stream(model=tiny, method=one, path=path, every=100, **more)


def plain_losses(replica: Replica, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        logits = replica.runner.model(torch.tensor([ids])).logits[0]
    return torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(ids[1:]), reduction="none")


def test_full_equals_plain_cross_entropy(replica: Replica, tiny: Model, book: Path) -> None:
    ids = replica.tokenizer.encode(TEXT)[:250]
    expected = plain_losses(replica, ids)
    for label in (
        "full",
        "infinipot:pot_size=400",
        "keydiff:pot_size=400",
    ):  # keydiff needs no novelty: it is noted all the same
        (record,) = stream(tiny, label, book, count=250).run(replica)
        assert record["loss"] == pytest.approx(float(expected.mean()), rel=1e-4)
        assert record["losses"] == pytest.approx(
            [float(part.mean()) for part in expected.split(100)], rel=1e-4
        )
        assert record["tokens_read"] == 250


def test_a_small_pot_stays_small_and_counts_every_token(
    replica: Replica, tiny: Model, book: Path
) -> None:
    whole = len(replica.tokenizer.encode(TEXT))
    for label in ("streaming", "infinipot", "h2o"):
        (record,) = stream(tiny, label, book).run(replica)
        assert (record["tokens_read"], record["tokens"]) == (whole, None)
        assert record["peak_entries"] <= 96 < whole
        assert record["distillations"] > 4
        assert len(record["losses"]) == -(-(whole - 1) // 100)
    at_once, by_chunk = (
        stream(tiny, f"streaming:chunk_tokens={n}", book, count=300).run(replica)[0]
        for n in (512, 7)
    )
    assert at_once["loss"] == pytest.approx(by_chunk["loss"], rel=1e-4)


def test_what_predicts_nothing_is_refused(
    tiny: Model, book: Path, tmp_path: Path, replica: Replica
) -> None:
    with pytest.raises(ValueError, match="leaves out most of a text"):
        plan(tiny, methods("truncate", {}, asked=False), [book], None, 100)
    with pytest.raises(ValueError, match="there is no question"):
        methods("infinipot:catalyst=question", {}, asked=False)
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(ValueError, match="no text to predict"):
        stream(tiny, "full", tmp_path / "empty.txt").run(replica)
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9 au lait")
    with pytest.raises(ValueError, match="not UTF-8"):
        list(file_text(tmp_path / "latin.txt"))


def test_quarters_and_points() -> None:
    record = {"model": "m", "dtype": "float32", "method": "full", "question": None, "options": {}, "loss": 0.0,
              "losses": [0.0, 0.0, 0.0, 1.0], "tokens_read": 400, "distillations": 0, "peak_entries": 400}  # fmt: skip
    assert [cell.strip() for cell in table([record]).splitlines()[-1].split("|")[2:7]] == [
        "1.00",
        "1.00",
        "1.00",
        "1.00",
        "2.72",
    ]
    assert (
        table([{**record, "losses": [0.0]}]).count("–") == 3
    )  # a quarter without a every has no perplexity
    assert smoothed([0.0] * 6, 100, points=3) == [(100.0, 1.0), (300.0, 1.0), (500.0, 1.0)]


def test_the_command(
    tiny: Model, book: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "out"
    args = ["eval", "perplexity", tiny.name, "-f", str(book), "--tokens", "300", "--every", "100", "--policy", "full,streaming",
            "--pot-size", "96", "--device", "cpu", "-o", str(out)]  # fmt: skip
    assert main(args) == 0
    shown = capsys.readouterr().out
    assert len((out / "perplexity.jsonl").read_text().splitlines()) == 2
    assert (out / "perplexity-book-300.png").exists()
    assert main([*args, "--json"]) == 0  # again: nothing is done twice
    assert [json.loads(line)["method"] for line in capsys.readouterr().out.splitlines()] == [
        "full",
        "streaming",
    ]
    assert main(["plot", str(out)]) == 0
    assert capsys.readouterr().out == shown
    assert main(["eval", "perplexity", tiny.name, "-f", "no/such", "-o", str(out)]) == 2
    assert "there is no file no/such" in capsys.readouterr().err
