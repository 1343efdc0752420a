"""The benchmark: it measures what it says, says when stock is out of memory, and keeps one line of JSON a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import random_ids
from tiny import make_tiny

from infinipot import PotConfig
from infinipot.bench import shapes, stock
from infinipot.bench.comparison import Task, compare, ratios
from infinipot.bench.measure import peak
from infinipot.bench.reading import pace
from infinipot.bench.shapes import shape_config, shaped
from infinipot.cli import main
from infinipot.cli.bench import tokens_of
from infinipot.cli.console import BadUse
from infinipot.model.rounding import AT_ONCE

CPU = torch.device("cpu")


def test_shapes_are_made_in_their_own_type() -> None:
    model = shaped("tiny-shape", device=CPU)
    assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}
    assert {weight.device.type for weight in (*model.parameters(), *model.buffers())} == {"cpu"}
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert torch.equal(model.model.norm.weight, torch.ones_like(model.model.norm.weight))
    assert 0.015 < model.get_input_embeddings().weight.float().std() < 0.025
    assert torch.isfinite(model(torch.tensor([random_ids(20)])).logits).all()


@pytest.mark.parametrize(
    ("name", "millions"),
    [("llama-8b-shape", 8030), ("llama-70b-shape", 70554), ("qwen2.5-0.5b-shape", 494)],
)
def test_shapes_are_the_models_they_are_named_after(name: str, millions: int) -> None:
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(shape_config(name))
        model.tie_weights()
    assert round(sum(weight.numel() for weight in model.parameters()) / 1e6) == millions


def test_lengths() -> None:
    assert tokens_of("32k,8192,1M") == (8192, 32768, 1 << 20)
    for bad in ("", "8k,", "0", "-5", "8kk", "many"):
        with pytest.raises(BadUse, match="numbers of tokens"):
            tokens_of(bad)


def test_peak_is_what_was_held_inside() -> None:
    with peak(CPU) as seen:
        held = torch.ones(50 << 20, dtype=torch.uint8)
        del held
    with peak(CPU) as after:
        pass
    assert seen.grew is not None and after.grew is not None  # Linux
    assert 48 << 20 < seen.grew < 60 << 20  # the kernel counts in batches of pages
    assert after.grew < 5 << 20


def test_pace_leaves_out_the_start() -> None:
    assert pace([0.0, 5.0, 7.0, 9.0, 10.0, 10.5, 11.0], rows=3) == 6.0


def test_one_line_of_json_and_a_table(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "bench.jsonl"
    command = [
        "bench",
        "tiny-shape",
        "--device",
        "cpu",
        "--lengths",
        "64,200",
        "--compare",
        "stock",
        "--pot-size",
        "96",
        "--distill-to",
        "32",
    ]
    assert (
        main([*command, "--rounds", "2", "--batch", "2", "--decode-tokens", "8", "--out", str(out)])
        == 0
    )
    shown = capsys.readouterr()
    document = json.loads(shown.out)
    assert json.loads(out.read_text()) == document
    assert [(row["length"], row["what"]) for row in document["rows"]] == [
        (64, "pot"), (64, "stock"), (200, "pot"), (200, "stock"), (200, "no nuc"), (200, "loop")
    ]  # fmt: skip
    by = {(row["length"], row["what"]): row for row in document["rows"]}
    assert by[200, "pot"]["distillations"] > by[64, "pot"]["distillations"] == 0
    assert by[200, "pot"]["peak_entries"] <= 96
    assert (
        by[200, "stock"]["kv_bytes"] == 200 * 2 * 2 * 2 * 16 * 2
    )  # tokens, layers, K and V, heads, width, bytes
    for row in document["rows"]:
        assert row["prefill_tps"] > 0 and len(row["rounds"]) == 2
        assert row["what"] in ("loop", "no nuc") or (
            row["decode_tps"] > 0 and row["batch_tps"] > 0 and row["peak_bytes"] > 1e6
        )
    pot, beside, ratio = by[200, "pot"], by[200, "stock"], document["ratios"][1]
    assert ratio["decode_tps"] == pytest.approx(pot["decode_tps"] / beside["decode_tps"], rel=1e-3)
    assert set(document["parts"]["shares"]) == {
        "catalyst_forward",
        "scores",
        "selection",
        "compaction",
        "novelty",
    }
    assert document["machine"]["torch"] == torch.__version__
    assert "part by part:" in shown.err and "ratio" in shown.err


def test_a_shape_in_groups_is_made_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each weight a few rows at a time: never whole. Shared ones are shared, and nothing is left without numbers."""
    whole: list[int] = []
    quantise = shapes.quantise

    def noted(weight: torch.Tensor, form: str) -> Any:
        whole.append(weight.numel())
        return quantise(weight, form)

    config = shape_config("qwen2.5-0.5b-shape")
    config.num_hidden_layers = 1
    config.vocab_size = 3000
    monkeypatch.setattr(shapes, "shape_config", lambda name: config)
    monkeypatch.setattr(shapes, "quantise", noted)
    model = shaped("qwen2.5-0.5b-shape", device=CPU, dtype=torch.float32, weights="int4")
    assert max(whole) <= AT_ONCE["cpu"]
    assert not any(one.is_meta for one in (*model.parameters(), *model.buffers()))
    head: Any = model.get_output_embeddings()
    table: Any = model.get_input_embeddings()
    assert (head.weight is table.weight) and head.weight.bits == 8
    layer: Any = model.model.layers[0].mlp.up_proj
    assert layer.weight.bits == 4
    assert 0.015 < float(layer.weight.dequantize().std()) < 0.025
    assert model(torch.tensor([[1, 2, 3]])).logits.isfinite().all()


def test_a_policy_without_novelty(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One entry leaves a token, as StreamingLLM was published."""
    command = ["bench", "tiny-shape", "--device", "cpu", "--lengths", "30", "--policy", "streaming"]
    sizes = ["--pot-size", "24", "--distill-to", "23", "--batch", "1", "--decode-tokens", "8"]
    out = ["--rounds", "1", "--out", str(tmp_path / "bench.jsonl")]
    assert main([*command, *sizes, *out]) == 0
    shown = capsys.readouterr()
    document = json.loads(shown.out)
    assert [row["what"] for row in document["rows"]] == ["pot", "loop"]
    assert document["rows"][0]["distillations"] > 5
    assert "choosing takes" in shown.err


def test_out_of_memory_is_a_result() -> None:
    model = make_tiny("llama")
    task = Task(lengths=(32, 100, 150), stock=True, batch=1, tokens=8, rounds=2)
    own = model.forward

    def forward(input_ids: torch.Tensor, **options):
        if options.get("logits_to_keep") and input_ids.shape[1] >= 100:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return own(input_ids=input_ids, **options)

    model.forward = forward
    document = compare(
        "tiny",
        model,
        PotConfig(pot_size=80, distill_to=20, chunk_tokens=16),
        task,
        lambda line: None,
    )
    died = {row["length"]: row.get("died") for row in document["rows"] if row["what"] == "stock"}
    assert died == {
        32: None,
        100: "out of memory while reading",
        150: "not tried: out of memory at a shorter length",
    }
    assert [ratio["length"] for ratio in document["ratios"]] == [32]
    with pytest.raises(RuntimeError, match="another"), stock.surviving({}, "reading"):
        raise RuntimeError("another fault")


def test_ratios_where_both_are_there() -> None:
    rows = [
        {"length": 8, "what": "pot", "decode_tps": 6.0, "peak_bytes": 5},
        {"length": 8, "what": "stock", "prefill_tps": 1.0, "decode_tps": 3.0, "peak_bytes": None},
    ]
    assert ratios(rows) == [{"length": 8, "decode_tps": 2.0}]


def test_plot(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    numbers = {"first_token_s": 1.0, "peak_bytes": 10**9, "decode_tps": 20.0}
    rows = [{"length": length, "what": "pot", **numbers} for length in (1024, 8192)]
    rows += [
        {"length": 1024, "what": "stock", **numbers},
        {"length": 8192, "what": "stock", "first_token_s": None, "died": "out of memory"},
    ]
    machine = {
        "gpu": None,
        "cpu": "a",
        "threads": 1,
        "torch": "2",
        "transformers": "5",
        "date": "2026-01-01",
    }
    document = {
        "benchmark": "bench",
        "model": {"name": "m", "dtype": "bfloat16"},
        "machine": machine,
        "pot_size": 64,
        "rows": rows,
    }
    results = tmp_path / "bench.jsonl"
    results.write_text(json.dumps({"benchmark": "other"}) + "\n" + json.dumps(document) + "\n")
    assert main(["plot", str(results)]) == 0
    assert (tmp_path / "bench-m.png").read_bytes()[:4] == b"\x89PNG"
    drawing = (tmp_path / "bench-m.svg").read_text()
    assert all(text in drawing for text in ("pot of 64", "8K", "stock runs out of memory here"))
    assert main(["plot", str(results), "--model", "x"]) == 2
    assert "it has m" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["tiny-shape", "--compare", "kvpress"], "kvpress_beside.py"),
        (["tiny-shape", "--out", "/nowhere/x.jsonl"], "there is no folder /nowhere"),
        (["smollm2", "--spread"], "spread is for folders and Hub ids"),
        (["smollm2", "--tensor-parallel", "2"], "tensor_parallel=2 is for folders and Hub ids"),
        (["tiny-shape", "--tensor-parallel", "4"], "it has 2 KV heads"),
        (["tiny-shape", "--tensor-parallel", "0"], "tensor_parallel=0 is not allowed"),
        (["tiny-shape", "--weights", "int4", "--spread"], "leave it out, or --spread"),
        (
            ["tiny-shape", "--weights", "int8", "--tensor-parallel", "2"],
            "leave it out, or --tensor-parallel",
        ),
        (["tiny-shape", "--weights", "int3"], "int3"),
        (["./nothing"], "there is no folder"),
        (["tiny-shape", "--lengths", "long"], "numbers of tokens"),
    ],
)
def test_bad_use(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--device", "cpu", *arguments]) == 2
    assert said in capsys.readouterr().err
