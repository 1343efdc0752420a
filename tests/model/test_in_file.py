"""Where weights in groups are: embeddings that stay in their file, and weights on the device that they are for."""

from __future__ import annotations

import copy
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from commands import save_tiny
from gguf_files import byte_level
from helpers import random_ids
from torch import nn

from infinipot import load
from infinipot.model import convert, gguf_groups, in_file
from infinipot.model.gguf import load_gguf
from infinipot.model.groups import GroupedWeight, weights_in_groups
from infinipot.model.in_file import Place, WeightInFile
from infinipot.model.pretrained import load_pretrained


def folder(path: Path) -> Path:
    save_tiny(path / "tiny")
    return path / "tiny"


def gguf_file(path: Path) -> Path:
    return byte_level(path / "tiny.gguf", tensors=True)


@pytest.fixture(params=[folder, gguf_file])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    made: Path = request.param(tmp_path)
    return made


def embedding(model: Any) -> GroupedWeight:
    weight: GroupedWeight = model.get_input_embeddings().weight
    return weight


def both(source: Path, monkeypatch: pytest.MonkeyPatch, weights: str = "int8") -> tuple[Any, Any]:
    """The model with its embedding in the file, and with it in memory; tiny ones are in memory."""
    memory, _ = load(str(source), dtype="float32", device="cpu", weights=weights)
    monkeypatch.setattr(in_file, "LEAST_WEIGHTS", 1)
    stored, _ = load(str(source), dtype="float32", device="cpu", weights=weights)
    assert type(embedding(memory)) is GroupedWeight and type(embedding(stored)) is WeightInFile
    assert not any(True for _ in embedding(stored).buffers())
    return stored, memory


@pytest.mark.parametrize("weights", ["int8", "int4", "auto"])
def test_a_model_reads_the_same(
    source: Path, weights: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored, memory = both(source, monkeypatch, weights)
    assert embedding(stored).bits == embedding(memory).bits == 8
    assert embedding(stored).shape == embedding(memory).shape
    # the file may get another content under its name
    for path in [source] if source.is_file() else list(source.glob("*.safetensors")):
        other = path.with_name("other")
        other.write_bytes(bytes(path.stat().st_size))
        os.replace(other, path)
    for ids in (random_ids(40, vocabulary=80), [5, 5, 5], [7]):
        assert torch.equal(stored(torch.tensor([ids])).logits, memory(torch.tensor([ids])).logits)
    nothing = torch.empty(1, 0, dtype=torch.long)
    assert embedding(stored).lookup(nothing).shape == embedding(memory).lookup(nothing).shape
    for rows in (slice(None), slice(3, 9), torch.tensor([4, 1, 4])):
        assert torch.equal(embedding(stored).dequantize(rows), embedding(memory).dequantize(rows))
    assert embedding(stored).finite()
    for dtype in (torch.bfloat16, torch.float32):
        looked = embedding(stored.to(dtype)).lookup(torch.tensor([3]))
        assert looked.dtype is dtype
        assert torch.equal(looked, embedding(memory.to(dtype)).lookup(torch.tensor([3])))
    assert type(embedding(stored)) is WeightInFile


@pytest.mark.parametrize(
    "use", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x)), nn.Module.state_dict]
)
def test_copies_are_in_memory(
    source: Path, use: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    stored, memory = both(source, monkeypatch)
    used = use(embedding(stored))
    assert type(embedding(stored)) is GroupedWeight
    expected = embedding(memory).state_dict()
    if isinstance(used, nn.Module):
        used = used.state_dict()
    assert used.keys() == expected.keys() == {"numbers", "scale"}
    assert all(torch.equal(used[name], x) for name, x in expected.items())
    ids = torch.tensor([random_ids(40, vocabulary=80)])
    assert torch.equal(stored(ids).logits, memory(ids).logits)


def test_another_device_gets_all_of_it(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored, _ = both(source, monkeypatch)
    stored.to("meta")
    assert type(embedding(stored)) is GroupedWeight
    assert embedding(stored).numbers.is_meta and embedding(stored).device.type == "meta"


def test_a_model_is_saved_with_it(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_file, "LEAST_WEIGHTS", 1)
    stored, tokenizer = load(str(source), dtype="float32", device="cpu", weights="int4")
    ids = torch.tensor([random_ids(40, vocabulary=80)])
    expected = stored(ids).logits
    convert.save(stored, tokenizer, tmp_path / "copy")
    assert torch.equal(load(str(tmp_path / "copy"), dtype="float32")[0](ids).logits, expected)


def test_what_an_output_layer_shares_is_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_file, "LEAST_WEIGHTS", 1)
    save_tiny(tmp_path)
    plain, _ = load(str(tmp_path), dtype="float32")
    plain.config.tie_word_embeddings = True
    plain.tie_weights()
    plain.save_pretrained(tmp_path)
    model, _ = load(str(tmp_path), dtype="float32", weights="int8")
    assert type(embedding(model)) is GroupedWeight and embedding(model) is model.lm_head.weight


def rows_in_file(
    path: Path, kind: gguf.GGMLQuantizationType, form: str, value: float
) -> WeightInFile:
    """Eight rows of one block each, behind four bytes. Row 5 has `value` as its scale."""
    width, size = gguf.GGML_QUANT_SIZES[kind]
    rows = np.zeros((8, size), np.uint8)
    rows[5, :2].view(np.float16)[0] = value
    path.write_bytes(b"head" + rows.tobytes())
    return WeightInFile(Place(path, 4, size), (8, width), form, gguf_groups.KEPT[kind, form])


@pytest.mark.parametrize(("kind", "form"), gguf_groups.KEPT)
@pytest.mark.parametrize("value", [1, np.nan, np.inf])
def test_a_scale_that_is_no_number_is_found(
    kind: gguf.GGMLQuantizationType, form: str, value: float, tmp_path: Path
) -> None:
    assert rows_in_file(tmp_path / "rows", kind, form, value).finite() is (value == 1)


@pytest.mark.parametrize("change", ["shorter", "overwritten", "replaced"])
def test_a_file_that_is_written_to(change: str, tmp_path: Path) -> None:
    """Never other numbers than those that were loaded: an error, unless another file took the name."""
    path = tmp_path / "rows"
    weight = rows_in_file(path, gguf.GGMLQuantizationType.Q8_0, "int8", 1)
    before = weight.lookup(torch.tensor([7, 5]))
    content = bytes(path.stat().st_size)
    if change == "shorter":
        os.truncate(path, 4 + 7 * 34 + 3)
    elif change == "overwritten":
        with path.open("r+b") as file:
            file.write(content)
        os.utime(path, ns=(1, 1))  # clocks of files may be coarse
    else:
        path.with_name("other").write_bytes(content)
        os.replace(path.with_name("other"), path)
        assert torch.equal(weight.lookup(torch.tensor([7, 5])), before)
        return
    with pytest.raises(OSError, match="rows was changed while its model was in use"):
        weight.lookup(torch.tensor([6]))


@pytest.mark.parametrize("ids", [[8], [-1], [3, 60_000]])
def test_ids_without_a_row_are_refused(ids: list[int], tmp_path: Path) -> None:
    weight = rows_in_file(tmp_path / "rows", gguf.GGMLQuantizationType.Q8_0, "int8", 1)
    with pytest.raises(IndexError, match="the embedding has 8 rows"):
        weight.lookup(torch.tensor(ids))


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_weights_are_rounded_on_the_device_that_they_are_for(source: Path, weights: str) -> None:
    """meta stands for a GPU: it has no numbers, but everything else."""
    meta = torch.device("meta")
    if source.is_file():
        model, _ = load_gguf(source, dtype=torch.float32, weights=weights, device=meta)
    else:
        model, _ = load_pretrained(source, torch.float32, weights, meta)
    there = weights_in_groups(model)
    here = weights_in_groups(load(str(source), dtype="float32", device="cpu", weights=weights)[0])
    assert there.keys() == here.keys() and len(here) > 1
    for name, one in there.items():
        assert one.device == meta and not any(x.device == meta for x in here[name].buffers())
        assert (one.shape, one.bits) == (here[name].shape, here[name].bits)
    assert not any(x.is_meta for x in model.parameters())
