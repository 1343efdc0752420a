"""Pots on disk: continuing equals never having stopped, and what is wrong with a file is said."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path

import pytest
import torch
from helpers import assert_close, kept
from safetensors.torch import load_file, save_file
from tiny import make_tiny, make_tokenizer

from infinipot import PotConfig, PotFileError, Session, pot_file

MODEL, TOKENIZER = make_tiny("llama"), make_tokenizer()
TEXT = "The keeper hid the letter under the third step. Nobody saw it, but the dog did. " * 12
CONFIG = PotConfig(pot_size=160, distill_to=60, chunk_tokens=32)


def saved(path: Path, config: PotConfig = CONFIG, length: int = 700) -> Session:
    session = Session(MODEL, TOKENIZER, config, system="Be brief.")
    session.append(TEXT[:length], question="Who?")
    session.save(path)
    return session


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"context_reset": False},
        {"policy": "streaming"},
        {"policy": "truncate"},
        {"policy": "full"},
        {"catalyst": "plain"},
        {"novelty": 1.0},
    ],
)
@pytest.mark.parametrize("length", [50, 700])
def test_continuing_equals_never_stopping(tmp_path: Path, options: dict, length: int) -> None:
    one = saved(
        tmp_path / "a.pot",
        PotConfig(pot_size=160, distill_to=60, chunk_tokens=32, **options),
        length,
    )
    other = Session.load(tmp_path / "a.pot", MODEL, TOKENIZER)
    assert other.ask("Who saw it?", max_tokens=20) == one.ask("Who saw it?", max_tokens=20)
    for session in (one, other):
        session.append(TEXT[700:], question="Where?" if options.get("catalyst") is None else None)
        session.chat("Why?", max_tokens=20)
    assert kept(one) == kept(other)
    assert_close("logits", other.logits, one.logits, 1e-6)
    assert {**vars(one.stats), "timings": 0} == {**vars(other.stats), "timings": 0}


def test_provenance(tmp_path: Path) -> None:
    saved(tmp_path / "a.pot")
    about = pot_file.describe(tmp_path / "a.pot")
    assert about["version"] == pot_file.VERSION
    assert about["config"]["pot_size"] == 160
    assert about["model"]["class"] == "LlamaForCausalLM"
    assert about["pot"]["tokens_read"] > 700
    assert about["tokenizer_sha256"]


def test_reading_leaves_nothing_behind(tmp_path: Path) -> None:
    """A server brings pots back from disk for as long as it lives."""
    saved(tmp_path / "a.pot")

    def left(times: int) -> int:
        before = sys.getallocatedblocks()
        for _ in range(times):
            pot_file.read(tmp_path / "a.pot")
        return sys.getallocatedblocks() - before

    left(50)
    assert left(200) < 200


def test_damage_is_found_and_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.pot"
    saved(path)
    good = path.read_bytes()
    for damage in (
        good[: len(good) // 2],
        good[:5],
        b"",
        b"hello" * 100,
        good[:-9] + b"x" + good[-8:],
    ):
        path.write_bytes(damage)
        with pytest.raises(PotFileError, match="damaged|readable"):
            Session.load(path, MODEL, TOKENIZER)
        assert path.read_bytes() == damage
    path.write_bytes(good)
    Session.load(path, MODEL, TOKENIZER)


def with_header(path: Path, **changes) -> None:
    header = {**pot_file.describe(path), **changes}
    save_file(load_file(path), path, metadata={pot_file.FORMAT: json.dumps(header)})


def test_newer_and_foreign_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.pot"
    saved(path)
    with pytest.raises(PotFileError, match="another configuration|other weights"):
        Session.load(path, make_tiny("llama", kv_heads=4), TOKENIZER)
    with pytest.raises(PotFileError, match="other weights"):
        Session.load(path, make_tiny("llama", seed=1), TOKENIZER)
    with pytest.raises(PotFileError, match="another class"):
        Session.load(path, make_tiny("qwen2"), TOKENIZER)
    with pytest.raises(PotFileError, match="another tokenizer"):
        Session.load(path, MODEL, make_tokenizer(template=None))
    with_header(path, version=pot_file.VERSION + 1)
    with pytest.raises(PotFileError, match="update infinipot"):
        Session.load(path, MODEL, TOKENIZER)
    save_file({"a": torch.zeros(3)}, path)
    with pytest.raises(PotFileError, match="not a pot"):
        Session.load(path, MODEL, TOKENIZER)
    with pytest.raises(PotFileError, match="no file"):
        Session.load(tmp_path / "missing.pot", MODEL, TOKENIZER)


OLD = {
    "pot_size": 4096, "distill_to": None, "coverage": 0.9, "policy": "infinipot", "novelty": 0.25, "catalyst": None, "begun": None,
    "contrast": None, "sinks": None, "recent": None, "window": None, "pool": None, "pool_kind": None, "gqa": "mean", "shared_heads": None,
    "persist": None, "layer_budget": "uniform", "pot_dtype": None, "prefill": "bounded", "context_reset": True, "group": 8,
    "neighbours": 1024, "chunk_tokens": 32,
}  # fmt: skip
"""The options of a file of format 1 or 2: all there were, whatever the policy."""


def as_old(path: Path, version: int, **options: object) -> None:
    """Give a file the header that an older format had."""
    header, tensors = pot_file.describe(path), load_file(path)
    header.pop("plan", None)
    if version == 1:
        header.pop("catalyst", None)
    header |= {"version": version, "config": {**OLD, **options}}
    header["content_sha256"] = pot_file.content_hash(tensors, header)
    save_file(tensors, path, metadata={pot_file.FORMAT: json.dumps(header)})


def in_force(session: Session) -> tuple:
    assert session.plan is not None
    layer = session.plan.layers[0]
    return session.plan.distill_to, layer.recent, layer.pool, layer.pool_mode


def test_a_file_of_format_1_keeps_the_defaults_of_its_time(tmp_path: Path) -> None:
    """What it leaves out was half of the pot, seven slots around an entry, and nothing because it is new."""
    path = tmp_path / "a.pot"
    for policy, then in (("infinipot", (2048, 0, 7, "avg")), ("h2o", (2048, 1024, 0, "avg"))):
        saved(path, PotConfig(pot_size=4096, distill_to=2048, policy=policy))
        as_old(path, 1, policy=policy)
        assert in_force(Session.load(path, MODEL, TOKENIZER)) == then
    as_old(path, 1, pool_kind="both")
    with pytest.raises(
        PotFileError,
        match="filled with options that this infinipot does not have: unknown pool_mode 'both'",
    ):
        pot_file.config_of(path, pot_file.describe(path))


def test_a_file_of_format_2_goes_on_as_it_was(tmp_path: Path) -> None:
    """The options under their old names; the smoothing by the kind of catalyst that it says."""
    path = tmp_path / "a.pot"
    sizes = {"pot_size": 160, "distill_to": 60, "chunk_tokens": 32}
    one = saved(
        path, PotConfig(**sizes, score_memory=0.5, pool_mode="max", answer_prefix="It was ")
    )
    as_old(path, 2, **sizes, persist=0.5, pool_kind="max", begun="It was ")
    other = Session.load(path, MODEL, TOKENIZER)
    assert (other.config, other.plan) == (one.config, one.plan)
    for session in (one, other):
        session.append(TEXT[700:], question="Where?")
    assert kept(one) == kept(other)
    saved(path, PotConfig(pot_size=4096))
    for kind, pool in (("question", (45, "trailing")), ("general", (7, "avg"))):
        with_header(path, catalyst=kind)
        as_old(path, 2)
        assert pot_file.in_force(path, pot_file.describe(path))[1].layers[0].pool == pool[0]
    for gone in ({"distill_to": "auto"}, {"layer_budget": "pyramid"}, {"catalyst": "general-1"}):
        as_old(path, 2, **gone)
        with pytest.raises(PotFileError, match="does not have: .* is gone"):
            Session.load(path, MODEL, TOKENIZER)


def test_saving_is_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.pot"
    session = saved(path)
    before = path.read_bytes()

    def full_disk(*args, **kwargs) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(pot_file, "put", full_disk)
        with pytest.raises(PotFileError, match="No space left"):
            session.save(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["a.pot"]
    with pytest.raises(PotFileError, match="does not exist"):
        session.save(tmp_path / "nowhere" / "a.pot")
    with pytest.raises(PotFileError, match="nothing has been read"):
        Session(MODEL, TOKENIZER, CONFIG).save(path)


def test_loading_in_another_dtype(tmp_path: Path) -> None:
    saved(tmp_path / "a.pot")
    half = make_tiny("llama").to(torch.bfloat16)
    with pytest.raises(PotFileError, match="float32"):
        Session.load(tmp_path / "a.pot", half, TOKENIZER)


def test_only_files_are_replaced(tmp_path: Path) -> None:
    session = saved(tmp_path / "a.pot")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "to folder").symlink_to(tmp_path / "folder")
    for name, what in (
        ("folder", "a folder"),
        ("pipe", "a device or a pipe"),
        ("loop", "back to itself"),
        ("to folder", "a folder"),
    ):
        with pytest.raises(PotFileError, match=f"cannot save .*{what}.*choose another name"):
            session.save(tmp_path / name)
        with pytest.raises(PotFileError):
            Session.load(tmp_path / name, MODEL, TOKENIZER)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert (tmp_path / "loop").is_symlink()


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    real, link, early = tmp_path / "elsewhere" / "a.pot", tmp_path / "a.pot", tmp_path / "b.pot"
    session = saved(real)
    link.symlink_to(real)
    early.symlink_to(tmp_path / "elsewhere" / "b.pot")  # its file is not there yet
    real.chmod(0o640)
    session.append(TEXT[:100])
    for path in (link, early):
        session.save(path)
        assert path.is_symlink()
        assert Session.load(path, MODEL, TOKENIZER).stats.tokens_read == session.stats.tokens_read
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    assert sorted(path.name for path in real.parent.iterdir()) == ["a.pot", "b.pot"]


def test_what_is_saved_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The content before it takes the name, the name before it is said that all is saved."""
    done: list[str] = []
    real_sync, real_replace = os.fsync, os.replace

    def sync(handle: int) -> None:
        done.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
        real_sync(handle)

    def replace(source: Path, target: Path) -> None:
        done.append("name")
        real_replace(source, target)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", replace)
    saved(tmp_path / "a.pot")
    assert done == ["file", "name", "folder"]


def test_a_file_that_is_replaced_or_changed_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, other = tmp_path / "a.pot", tmp_path / "b.pot"
    one = saved(path)
    two = saved(other, length=100)
    load, fresh = pot_file.load, other.read_bytes()

    def meanwhile(content: bytes) -> dict:
        os.replace(other, path)
        return load(content)

    with monkeypatch.context() as patch:
        patch.setattr(pot_file, "load", meanwhile)
        assert Session.load(path, MODEL, TOKENIZER).stats.tokens_read == one.stats.tokens_read
    assert Session.load(path, MODEL, TOKENIZER).stats.tokens_read == two.stats.tokens_read
    fstat, times = os.fstat, iter(range(10**9, 10**10))

    def touched(handle: int) -> os.stat_result:
        about = fstat(handle)
        os.utime(path, ns=(0, next(times)))
        return about

    with monkeypatch.context() as patch:
        patch.setattr(os, "fstat", touched)
        with pytest.raises(PotFileError, match="was changed while it was read: try again"):
            pot_file.read(path)
    assert path.read_bytes() == fresh


def test_modes_of_files(tmp_path: Path) -> None:
    """New files are as the umask says, and old ones keep theirs: pots, and results of evaluations."""
    from infinipot.eval.results import write_whole

    before = os.umask(0o022)
    try:
        for name, write in (
            ("a.pot", lambda path: saved(path, length=50)),
            ("a.jsonl", lambda path: write_whole(path, "{}\n")),
        ):
            path = tmp_path / name
            write(path)
            assert path.stat().st_mode & 0o777 == 0o644
            path.chmod(0o640)
            write(path)
            assert path.stat().st_mode & 0o777 == 0o640
        link = tmp_path / "link"
        link.symlink_to(tmp_path / "a.jsonl")
        write_whole(link, "[]\n")
        assert link.is_symlink() and (tmp_path / "a.jsonl").read_text() == "[]\n"
        with pytest.raises(PotFileError, match="a device or a pipe"):
            write_whole(Path("/dev/null"), "x")
    finally:
        os.umask(before)


def test_a_change_of_any_weight_is_noticed(tmp_path: Path) -> None:
    saved(tmp_path / "a.pot")
    model = make_tiny("llama")
    for name, weight in model.named_parameters():
        before = weight.data.clone()
        weight.data.mul_(1.001)  # less than bfloat16 can tell
        with pytest.raises(PotFileError, match="has other weights"):
            Session.load(tmp_path / "a.pot", model, TOKENIZER)
        weight.data.copy_(before)
        assert pot_file.model_identity(model) == pot_file.model_identity(MODEL), name


class Adapted(torch.nn.Linear):
    """Has the attributes of PEFT's layers, and a change of its output while an adapter is active."""

    def __init__(self, base: torch.nn.Linear) -> None:
        super().__init__(base.in_features, base.out_features, bias=False)
        self.weight = base.weight
        self.active_adapters = ["poet"]
        self.disable_adapters = False
        self.merged_adapters: list[str] = []
        self.scaling = {"poet": 2.0, "clerk": -1.0}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = super().forward(x)
        if not self.disable_adapters:
            out = out * self.scaling[self.active_adapters[0]]
        return out


def test_the_adapters_in_use_belong_to_the_model(tmp_path: Path) -> None:
    model = make_tiny("llama")
    layer = Adapted(model.model.layers[0].mlp.up_proj)
    model.model.layers[0].mlp.up_proj = layer
    session = Session(model, TOKENIZER, CONFIG)
    session.append(TEXT[:300], question="Who?")
    session.save(tmp_path / "a.pot")
    changes = ({"active_adapters": ["clerk"]}, {"disable_adapters": True}, {"scaling": {"poet": 3}})
    for change in changes:
        before = dict(vars(layer))
        vars(layer).update(change)
        with pytest.raises(PotFileError, match="has other adapters in use"):
            Session.load(tmp_path / "a.pot", model, TOKENIZER)
        vars(layer).update(before)
    assert Session.load(tmp_path / "a.pot", model, TOKENIZER).stats.tokens_read > 300
    with pytest.raises(PotFileError, match="has other adapters in use"):
        Session.load(tmp_path / "a.pot", MODEL, TOKENIZER)


def test_a_file_without_samples_of_all_weights(tmp_path: Path) -> None:
    """From before they were saved: it is compared by what it has."""
    saved(tmp_path / "a.pot")
    about = pot_file.describe(tmp_path / "a.pot")["model"]
    old = {key: about[key] for key in about if key not in ("samples_sha256", "adapters")}
    tensors = load_file(tmp_path / "a.pot")
    header = {**pot_file.describe(tmp_path / "a.pot"), "model": old}
    header["content_sha256"] = pot_file.content_hash(tensors, header)
    save_file(tensors, tmp_path / "a.pot", metadata={pot_file.FORMAT: json.dumps(header)})
    Session.load(tmp_path / "a.pot", MODEL, TOKENIZER)
    with pytest.raises(PotFileError, match="has other weights"):
        Session.load(tmp_path / "a.pot", make_tiny("llama", seed=1), TOKENIZER)
