"""Pot files that somebody has written to do harm: refused in one sentence, or they work."""

from __future__ import annotations

import copy
import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from live import CONFIG, live, tiny
from pot_mutations import CHANGES, Sample, changed_files, outcome, sample_files
from safetensors.torch import save_file

from infinipot import PotConfig, PotFileError, Session, pot_file
from infinipot.cli import main

KINDS = ["plain question", "int8", "growing positions", "contrast", "layers", "h2o", "snapkv", "truncate", "recurrent"]  # fmt: skip
FILES = 220


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> list[Sample]:
    return sample_files(tmp_path_factory.mktemp("good"), KINDS)


def test_changed_files_are_refused_in_a_sentence_or_work(
    samples: list[Sample], tmp_path: Path
) -> None:
    """The same, of many more files: benchmarks/fuzz_pot_files.py."""
    path = tmp_path / "changed.pot"
    results: dict[str, int] = {}
    kinds = set()
    for number, (sample, change, content) in enumerate(changed_files(samples, 3, FILES)):
        path.write_bytes(content)
        try:
            result = outcome(sample, path)
        except Exception as problem:
            raise AssertionError(f"file {number}: {sample.kind}, {change}") from problem
        results[result] = results.get(result, 0) + 1
        kinds.add(change)
    assert kinds == {change.__name__ for change in CHANGES}
    assert results["refused"] > FILES // 2
    assert results["works"] > FILES // 20


def written(
    sample: Sample, path: Path, change: Callable[[dict[str, torch.Tensor], dict[str, Any]], Any]
) -> Path:
    """The file after a change, with the right hash."""
    tensors = {name: x.clone() for name, x in sample.tensors.items()}
    header = copy.deepcopy(sample.header)
    change(tensors, header)
    header["content_sha256"] = pot_file.content_hash(tensors, header)
    save_file(tensors, path, metadata={pot_file.FORMAT: json.dumps(header)})
    return path


def eightfold(tensors: dict[str, torch.Tensor], header: dict[str, Any]) -> None:
    for name in list(tensors):
        if name.split(".")[-1] in ("keys", "values"):
            tensors[name] = torch.cat([tensors[name]] * 8, dim=2)


def put(place: str, value: Any) -> Callable[[dict[str, torch.Tensor], dict[str, Any]], None]:
    def change(tensors: dict[str, torch.Tensor], header: dict[str, Any]) -> None:
        if place in tensors:
            tensors[place].view(-1)[-1] = value
            return
        *way, last = place.split(".")
        for name in way:
            header = header[name]
        header[last] = value

    return change


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (put("config.chunk_tokens", 1 << 63), "chunk_tokens=9223372036854775808 is not allowed"),
        (put("pot.distillations", float("nan")), "NaN is not a number"),
        (put("pot.distillations", 0), "survivors of no distillation"),
        (put("pot.tokens_read", True), "no usable 'pot.tokens_read'"),
        (put("pot.positions", [1]), "1 positions, not 2"),
        (put("pot.pinned", 50), "not in the order of the text|leaves no room"),
        (put("entries", 7), "entries, not 7"),
        (put("config.policy_class", "this:That"), "never imports code"),
        (put("config.policy_class", 5), "has no name"),
        (put("usual_is_newest", None), "no usable 'usual_is_newest'"),
        (put("layers.0.keys", float("nan")), "'layers.0.keys' holds nan"),
        (put("hidden", 3e38), "'hidden' holds"),
        (put("layers.1.index", 0), "not in the order of the text"),
        (put("fresh", 97), "token ids from"),
        (put("catalyst", -1), "token ids from"),
        (eightfold, "the entries of layer 0 differ in number|entries in a pot of 96"),
        (lambda tensors, header: tensors.update(extra=tensors["hidden"] + 1), "'extra', which"),
        (lambda tensors, header: tensors.update(hidden=tensors["hidden"].half()), "float16"),
        (lambda tensors, header: tensors.update(tail=torch.tensor([5])), "1 ids wait to be read"),
    ],
)
def test_what_a_file_may_not_say(
    samples: list[Sample], tmp_path: Path, change: Callable[..., Any], told: str
) -> None:
    sample = samples[0]
    path = written(sample, tmp_path / "a.pot", change)
    before = path.read_bytes()
    with pytest.raises(PotFileError, match=told) as refused:
        Session.load(path, sample.runner, sample.tokenizer, origin=sample.origin)
    assert str(path) in str(refused.value)
    assert path.read_bytes() == before


def test_a_file_never_imports_code(samples: list[Sample], tmp_path: Path) -> None:
    (tmp_path / "harmful.py").write_text("raise SystemExit")
    path = written(samples[0], tmp_path / "a.pot", put("config.policy_class", "harmful:Policy"))
    sys.path.insert(0, str(tmp_path))
    try:
        with pytest.raises(PotFileError, match="never imports code"):
            Session.load(path, samples[0].runner, samples[0].tokenizer)
        assert main(["info", str(path)]) == 2
    finally:
        sys.path.remove(str(tmp_path))
    assert "harmful" not in sys.modules


def test_a_file_that_names_a_large_pot_takes_no_room(samples: list[Sample], tmp_path: Path) -> None:
    """And is one, as it is filled."""

    def large(tensors: dict[str, torch.Tensor], header: dict[str, Any]) -> None:
        header["config"]["pot_size"] = 1 << 31
        for layer in header["plan"]["layers"]:
            layer["size"] = 1 << 31

    sample = samples[0]
    path = written(sample, tmp_path / "a.pot", large)
    session = Session.load(path, sample.runner, sample.tokenizer)
    assert session.pot.size == 1 << 31
    assert session.stats.pot_bytes < 2_000_000
    session.append("Nobody saw it. " * 80)
    assert max(layer.capacity for layer in session.pot.bounded) <= 4096
    assert session.ask("Who?", max_tokens=2)


def test_a_restored_pot_grows_to_what_it_was(tmp_path: Path) -> None:
    """It has slots for its entries at first. A fork at any time, and more text, change nothing."""
    config = PotConfig(pot_size=3000, distill_to=1100, chunk_tokens=512)
    session = Session(*tiny(), config)
    session.append("The keeper hid the letter. " * 45)
    session.save(tmp_path / "a.pot")
    other = Session.load(tmp_path / "a.pot", session.runner, session.tokenizer)
    assert other.pot.bounded[0].capacity < 1500 < session.pot.bounded[0].capacity
    fork = other.fork()
    for one in (session, other, fork):
        one.append("Nobody saw it, but the dog did. " * 70)
        assert torch.allclose(one.logits, session.logits, atol=1e-4)
        assert one.pot.bounded[0].capacity == 3000
        assert one.fork().ask("Who?", max_tokens=4) == session.ask("Who?", max_tokens=4)
    assert other.stats.pot_bytes == session.stats.pot_bytes


def test_info_of_a_file_that_would_control_the_terminal(
    samples: list[Sample], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(samples[0], tmp_path / "a.pot", put("model.class", "\x1b[2JLlama\nx"))
    assert main(["info", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "\\x1b[2JLlama\\nx" in shown
    assert "\x1b" not in shown


def test_a_folder_of_such_files(
    samples: list[Sample], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    session = Session(*tiny(), CONFIG)
    session.append("The keeper hid the letter. " * 20)
    session.save(tmp_path / "good.pot.safetensors")
    origin = pot_file.origin(session.runner.model, session.tokenizer)
    good = sample_of(tmp_path / "good.pot.safetensors", session, origin)
    contents = list(changed_files([good], 5, 24))
    for number, (_, _, content) in enumerate(contents):
        (tmp_path / f"bad{number}.pot.safetensors").write_bytes(content)
    with live({"max_sessions": 3, "pot_dir": tmp_path}) as here:
        listed = here.http.get("/v1/pots").json()["data"]
        assert len(listed) == len(contents) + 1
        said = [{"role": "user", "content": "Who?"}]
        body = {"model": "tiny", "messages": said, "max_tokens": 2}
        for number in range(len(contents)):
            pot = {"pot": f"bad{number}"}
            reply = here.http.post("/v1/chat/completions", json={**body, **pot})
            assert reply.status_code in (200, 409), (contents[number][1], reply.text)
        assert here.http.post("/v1/chat/completions", json={**body, "pot": "good"}).json()[
            "choices"
        ]
    assert not [
        record for record in caplog.records if record.exc_info and record.levelno >= logging.ERROR
    ]


def sample_of(path: Path, session: Session, origin: pot_file.Origin) -> Sample:
    tensors, header = pot_file.read(path)
    return Sample("served", session.runner, session.tokenizer, tensors, header, origin)
