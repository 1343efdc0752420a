"""Models whose weights are stored in eight bits, as their users have them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch
import transformers
from commands import process, save_tiny
from helpers import CATALYST, assert_close, random_ids
from tiny import make_tiny

from infinipot import PotConfig, Session, load
from infinipot.engine.distill import score_novelty

torchao = pytest.importorskip(
    "torchao.quantization", reason="needs torchao: pip install --no-deps torchao"
)


def test_torchao_int8(tmp_path: Path) -> None:
    """Exact against the quantised model itself, novelty included; bounded; its pots can be saved and only it can go on with them."""
    model = make_tiny("llama")
    torchao.quantize_(model, torchao.Int8WeightOnlyConfig())
    ids = random_ids(100)
    session = Session(model, None, PotConfig(pot_size=128))
    session.append(ids, question=CATALYST)
    score_novelty(session.runner, session.pot)
    logits = model(torch.tensor([ids])).logits
    assert_close("logits", session.logits, logits[:, -1])
    losses = torch.nn.functional.cross_entropy(
        logits[0, :-1], torch.tensor(ids[1:]), reduction="none"
    )
    assert_close("novelty", session.pot.novelty[0, 1:], losses)
    small = Session(model, None, PotConfig(pot_size=48, distill_to=20))
    small.append(random_ids(300), question=CATALYST)
    assert small.stats.peak_entries == 48
    small.save(tmp_path / "pot")
    loaded = Session.load(tmp_path / "pot", model)
    for one in (small, loaded):
        one.append(random_ids(60, seed=1), question=CATALYST)
    assert torch.equal(small.logits, loaded.logits)
    with pytest.raises(ValueError, match="other weights"):
        Session.load(tmp_path / "pot", make_tiny("llama"))


def test_torchao_prints_nothing_into_a_command(tmp_path: Path) -> None:
    save_tiny(tmp_path)
    child = process(
        "generate",
        str(tmp_path),
        "-p",
        "Hello",
        "--max-tokens",
        "2",
        "--quiet",
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert (child.communicate(timeout=120)[1], child.returncode) == (b"", 0)


def test_a_torchao_folder_loads_as_transformers_loads_it(tmp_path: Path) -> None:
    save_tiny(tmp_path / "plain")
    kind = transformers.TorchAoConfig(torchao.Int8WeightOnlyConfig())
    stock = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "plain", quantization_config=kind, dtype=torch.float32
    )
    stock.save_pretrained(tmp_path / "int8")
    transformers.AutoTokenizer.from_pretrained(tmp_path / "plain").save_pretrained(
        tmp_path / "int8"
    )
    model, _ = load(str(tmp_path / "int8"), dtype="float32")
    ids = torch.tensor([random_ids(20)])
    assert torch.equal(model(ids).logits, stock(ids).logits)
    with pytest.raises(ValueError, match=r"quantised already \(torchao\)"):
        load(str(tmp_path / "int8"), weights="int8")
