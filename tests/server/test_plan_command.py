"""What `infinipot plan` reckons from a config is what the model takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import one_line, save_tiny
from families import FAMILIES

from infinipot import PotConfig, load
from infinipot.bench.shapes import shape_config
from infinipot.cli import main
from infinipot.model.groups import OTHER_BLOCK, weights_in_groups
from infinipot.model.quantizer import quantise_model
from infinipot.model.runner import ModelRunner
from infinipot.server.memory import activation_bytes, pot_bytes, unscored_bytes
from infinipot.server.sizes import PROGRAM_BYTES, sizes_of


@pytest.mark.parametrize(
    "name",
    [
        "Llama-3.2",
        "Gemma-3",
        "Qwen3-MoE",
        "Falcon-H1",
        "StableLM",
        "GPT-NeoX",
        "Granite-4",
        "Bamba",
    ],
)
def test_reckoned_sizes_are_those_of_the_model(name: str) -> None:
    """Weights of each kind to the byte, and pots, activations and what waits for its novelty."""
    model = FAMILIES[name].build()
    pot = PotConfig(pot_size=64)
    cpu = torch.device("cpu")
    sizes = sizes_of(model.config, pot, torch.float32, (64, 256), cpu)
    runner = ModelRunner(model)
    for size in (64, 256):
        asked = pot.replace(pot_size=size)
        assert sizes.pots[size] == pot_bytes(runner, asked) + unscored_bytes(runner, asked)
    assert sizes.activations == activation_bytes(runner, pot)
    assert sizes.weights["float32"] == sum(one.nbytes for one in model.parameters())
    for kind in ("int8", "int4"):
        other = FAMILIES[name].build()
        quantise_model(other, kind)
        groups = sum(one.nbytes for one in weights_in_groups(other).values())
        assert sizes.weights[kind] == groups + sum(one.nbytes for one in other.parameters())


def test_a_gpu_needs_room_for_unpacked_weights() -> None:
    """Twice for the largest weight, in the model's type, up to a block of the output layer."""
    config = shape_config("tiny-shape")
    pot = PotConfig(pot_size=512)

    def sizes(device: str) -> Any:
        return sizes_of(config, pot, torch.bfloat16, (512,), torch.device(device))

    assert sizes("cpu").unpacked == 0
    assert sizes("cuda").unpacked == 2 * 2 * 1000 * 64
    config.vocab_size = 2 * OTHER_BLOCK // 64
    there = sizes("cuda")
    assert there.unpacked == 2 * 2 * OTHER_BLOCK
    memory = 8 * 10**9
    for kind, more in (("int4", there.unpacked), ("bfloat16", 0)):
        room = memory - PROGRAM_BYTES - there.weights[kind] - there.activations - more
        assert there.sessions(kind, 512, memory) == room // there.pots[512]


def test_plan_prints_what_fits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_tiny(tmp_path)
    command = ["plan", str(tmp_path), "--quiet", "--dtype", "float32", "--memory"]
    assert main([*command, "600MB", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    model: Any = load(str(tmp_path), dtype="float32")[0]
    assert document["weights"]["float32"] == sum(one.nbytes for one in model.parameters())
    few = document["sessions"]["int4"]
    assert few["512"] > few["1024"] > few["16384"] > 0
    assert main([*command, "600MB", "--pot-size", "1k"]) == 0
    told = capsys.readouterr().out
    assert f"infinipot generate {tmp_path} --pot-size 1024" in told
    assert f"{few['1024']}" in told
    assert main([*command, "300MB"]) == 0
    assert "nothing fits" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("", "--weights int8 --dtype bfloat16"),
        ("--dtype float32", "--weights int8"),
        ("--dtype bfloat16", "--weights int8 --dtype bfloat16"),
        ("--pot-dtype int8", "--weights int8 --dtype bfloat16 --pot-dtype int8"),
        ("--weights int4", "--weights int4"),
        ("--weights auto --dtype bfloat16", "--weights int8 --dtype bfloat16"),
        ("--device cpu", "--weights int8 --dtype bfloat16 --device cpu"),
    ],
)
def test_the_command_takes_the_sizes_that_were_reckoned(
    flags: str, expected: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a processor that is faster in bfloat16, `auto` is float32 with quantised weights. Nobody can
    load a shape."""
    monkeypatch.setattr("infinipot.model.load.fast_bfloat16", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    command = ["plan", "llama-8b-shape", "--quiet", "--memory", "12GB", "--pot-size", "1k"]
    assert main([*command, *flags.split()]) == 0
    told = capsys.readouterr().out
    assert f"infinipot generate MODEL {expected} --pot-size 1024\n" in told
    assert ("bfloat16  " in told) is ("--weights" not in flags and flags != "--dtype float32")


def test_a_folder_in_groups_has_one_kind_of_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_tiny(tmp_path / "plain")
    copy = tmp_path / "copy"
    assert main(["convert", str(tmp_path / "plain"), str(copy), "--weights", "int4"]) == 0
    command = ["plan", str(copy), "--quiet", "--device", "cpu", "--memory", "1GB"]
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["weights"].keys() == {"int4"}
    assert main(command) == 0
    assert f"infinipot generate {copy} --device cpu --pot-size 16384" in capsys.readouterr().out


def test_unknown_weights_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "tiny-shape", "--memory", "1GB", "--weights", "int3"]) == 2
    one_line(capsys.readouterr().err, "int3", "int4")


@pytest.mark.parametrize(
    "memory", ["8", "much", "0GB", "0.0000000001GB", f"{10**400}GB", "-1GB", "8 TB", ""]
)
def test_memory_that_is_none_is_refused(memory: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "smollm2", f"--memory={memory}"]) == 2
    one_line(capsys.readouterr().err, f"--memory {memory!r}", "8GB")
