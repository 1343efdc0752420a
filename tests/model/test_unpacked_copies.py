"""Unpacked weights of GGUF files are kept: whole or not at all, for one state of one file, and within a limit."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import pytest
import torch
from gguf_files import byte_level
from transformers import PreTrainedModel

from infinipot.checks import ModelWarning
from infinipot.model import gguf, unpacked_copies
from infinipot.model.gguf import load_gguf
from infinipot.model.unpacked_copies import COPIES, STALE_S, VARIABLE, place_of


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, which takes small models, too."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(unpacked_copies, "LEAST", 0)
    return tmp_path / "cache" / "infinipot"


@pytest.fixture
def unpacked(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files whose weights are unpacked, one after another."""
    seen: list[Path] = []
    original = gguf.fill

    def fill(model, file, architecture) -> None:
        seen.append(file.path)
        original(model, file, architecture)

    monkeypatch.setattr(gguf, "fill", fill)
    return seen


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return byte_level(tmp_path / "tiny.gguf", tensors=True)


def loaded(path: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    with warnings.catch_warnings():
        warnings.simplefilter("error", ModelWarning)
        return load_gguf(path, dtype=dtype)[0]


def assert_same(one: PreTrainedModel, other: PreTrainedModel) -> None:
    for kind in ("named_parameters", "named_buffers"):
        first, second = dict(getattr(one, kind)()), dict(getattr(other, kind)())
        assert first.keys() == second.keys()
        for name, tensor in first.items():
            assert tensor.dtype == second[name].dtype and torch.equal(tensor, second[name]), name
            assert tensor.requires_grad == second[name].requires_grad
    assert one.config.to_dict() == other.config.to_dict()
    assert one.training == other.training


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_second_time_nothing_is_unpacked(
    path: Path, folder: Path, unpacked: list[Path], dtype: torch.dtype
) -> None:
    first, second = loaded(path, dtype), loaded(path, dtype)
    assert unpacked == [path]
    assert_same(first, second)
    ids = torch.tensor([[1, 2, 3]])
    assert torch.equal(first(ids).logits, second(ids).logits)
    assert folder.stat().st_mode & 0o077 == 0
    assert [file.name for file in folder.iterdir()] == [place_of(path, dtype).name]


def test_a_change_in_memory_does_not_reach_the_copy(path: Path) -> None:
    first, second = loaded(path), loaded(path)
    with torch.no_grad():
        for parameter in second.parameters():
            parameter.zero_()
    assert_same(first, loaded(path))


@pytest.mark.parametrize("change", ["another dtype", "touched", "another file", "another version"])
def test_a_copy_serves_its_own_file_only(
    path: Path, unpacked: list[Path], monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    loaded(path)
    dtype = torch.float32
    if change == "another dtype":
        dtype = torch.bfloat16
    if change == "touched":
        os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))
    if change == "another file":  # of the same size and age
        age, content = path.stat().st_mtime_ns, path.read_bytes()
        path.unlink()
        path.write_bytes(content[:-4] + b"\0\0\0\0")
        os.utime(path, ns=(age, age))
    if change == "another version":
        monkeypatch.setattr(unpacked_copies, "version", lambda name: "99")
    loaded(path, dtype)
    assert len(unpacked) == 2


@pytest.mark.parametrize("damage", ["cut off", "a bit", "header", "empty", "other weights"])
def test_a_damaged_copy_is_ignored_and_made_anew(
    path: Path, unpacked: list[Path], damage: str
) -> None:
    model = loaded(path)
    place = place_of(path, torch.float32)
    content = bytearray(place.read_bytes())
    if damage == "cut off":
        del content[-5:]
    if damage == "a bit":
        content[-7] ^= 1
    if damage == "header":
        content[12] ^= 255
    if damage == "empty":
        content.clear()
    place.write_bytes(content)
    if damage == "other weights":
        unpacked_copies.write_copy(place, {"lm_head.weight": torch.ones(4)})
    assert_same(model, loaded(path))
    assert len(unpacked) == 2
    assert_same(model, loaded(path))
    assert len(unpacked) == 2


def test_a_copy_that_is_in_use_stays_readable(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process removes it, or puts a new one into its place."""
    loaded(path)
    model = loaded(path)
    before = {name: tensor.clone() for name, tensor in model.named_parameters()}
    place = place_of(path, torch.float32)
    unpacked_copies.write_copy(place, {name: tensor + 1 for name, tensor in before.items()})
    place.unlink()
    assert all(torch.equal(before[name], own) for name, own in model.named_parameters())


def test_what_was_not_used_for_longest_makes_room(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = [folder / COPIES.replace("*", name) for name in "abc"]
    weights = {"weight": torch.ones(1000)}
    monkeypatch.setenv(VARIABLE, str(9000 / 1e9))  # two copies of 4,000 bytes and their headers
    for age, place in enumerate(places[:2]):
        unpacked_copies.write_copy(place, weights)
        os.utime(place, (age, age))
    assert unpacked_copies.read_copy(places[0]) is not None  # used now
    unpacked_copies.write_copy(places[2], weights)
    assert [place.exists() for place in places] == [True, False, True]
    unpacked_copies.write_copy(places[1], {"weight": torch.ones(3000)})  # more than the limit
    assert [place.exists() for place in places] == [True, False, True]


def test_it_can_be_switched_off(
    path: Path, folder: Path, unpacked: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded(path)
    monkeypatch.setenv(VARIABLE, "0")
    loaded(path)
    assert len(unpacked) == 2
    place_of(path, torch.float32).unlink()
    loaded(path)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("value", ["-1", "nan", "inf", "4GB", "none"])
def test_a_limit_that_is_no_number_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv(VARIABLE, value)
    with pytest.raises(ValueError, match=rf"{VARIABLE}='{value}' is not allowed: .* or 0 to keep"):
        load_gguf(path, dtype=torch.float32)


def test_what_was_never_finished_is_removed(path: Path, folder: Path) -> None:
    for name, age in (("weights-old.part", 2 * STALE_S), ("weights-new.part", 0.0)):
        (folder / name).mkdir(parents=True)
        (folder / name / "x").write_bytes(b"half")
        then = (folder / name).stat().st_mtime - age
        os.utime(folder / name, (then, then))
    loaded(path)
    assert [file.name for file in folder.glob("*.part")] == ["weights-new.part"]


def test_a_folder_that_cannot_be_written_is_said(path: Path, folder: Path) -> None:
    folder.parent.mkdir()
    folder.write_text("no folder")
    with pytest.warns(ModelWarning, match=f"cannot be kept in .*{VARIABLE}=0"):
        model, _ = load_gguf(path, dtype=torch.float32)
    assert model.lm_head.weight.isfinite().all()


def test_a_writer_that_dies_leaves_nothing(
    path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(content, place, noted) -> None:
        place.write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(unpacked_copies, "save_file", die)
    with pytest.raises(KeyboardInterrupt):
        load_gguf(path, dtype=torch.float32)
    assert list(folder.iterdir()) == []


def test_small_weights_are_not_kept(
    path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder.parent))
    loaded(path)
    assert not folder.exists()
