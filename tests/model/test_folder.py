"""Folders that hold no model, another one than their config says, or code: refused in a sentence, never guessed."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from gguf_files import byte_level
from safetensors.torch import load_file, save_file
from tiny import make_tiny, make_tokenizer

from infinipot import load
from infinipot.checks import ModelWarning

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
Change = Callable[[Path], object]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "whole"
    make_tiny("llama").save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "sharded"
    make_tiny("llama").save_pretrained(folder, max_shard_size="100KB")
    make_tokenizer().save_pretrained(folder)
    return folder


def opened(folder: Path | str):
    return load(str(folder), device="cpu", dtype="float32")


def config(**fields: object) -> Change:
    return fields_of("config.json", fields)


def fields_of(name: str, fields: dict[str, object]) -> Change:
    def change(folder: Path) -> None:
        path = folder / name
        content = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps({**content, **fields}))

    return change


def text(name: str, content: str) -> Change:
    return lambda folder: (folder / name).write_text(content)


def weights(act: Callable[[dict[str, torch.Tensor]], object]) -> Change:
    def change(folder: Path) -> None:
        path = folder / "model.safetensors"
        tensors = load_file(path)
        save_file(act(tensors) or tensors, path, {"format": "pt"})

    return change


def cut(name: str, size: int) -> Change:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:size])


def gone(name: str) -> Change:
    return lambda folder: (folder / name).unlink()


def twice(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text('{"hidden_size": 32,' + path.read_text().strip()[1:])


NORM = "model.norm.weight"
WRONG: dict[str, tuple[Change, str]] = {
    "no head": (
        weights(lambda w: {name: x for name, x in w.items() if name != "lm_head.weight"}),
        r"weights are missing: lm_head.weight\.",
    ),
    "prefixed": (
        weights(lambda w: {f"module.{name}": x for name, x in w.items()}),
        r"missing: lm_head.weight.* more; weights are left over: module.lm_head",
    ),
    "too many": (weights(lambda w: w.update(extra=w[NORM].clone())), "left over: extra"),
    "more layers": (config(num_hidden_layers=3), r"missing: model.layers.2.input_layernorm"),
    "fewer layers": (config(num_hidden_layers=1), "left over: model.layers.1.input_layernorm"),
    "other width": (config(hidden_size=32), "wrong shapes"),
    "KV heads": (
        config(num_key_value_heads=4),
        r"k_proj.weight is \[32, 64\] instead of \[64, 64\]",
    ),
    "vocabulary": (
        config(vocab_size=99),
        r"embed_tokens.weight is \[97, 64\] instead of \[99, 64\]",
    ),
    "biases": (config(attention_bias=True), "missing: .*bias"),
    "NaN": (weights(lambda w: w.update({NORM: w[NORM] * torch.nan})), f"{NORM} holds NaN"),
    "infinity": (weights(lambda w: w.update({NORM: w[NORM] / 0})), f"{NORM} holds NaN"),
    "integers": (weights(lambda w: w.update({NORM: w[NORM].int()})), f"{NORM} is I32"),
    "float8": (
        weights(lambda w: w.update({NORM: w[NORM].to(torch.float8_e4m3fn)})),
        f"{NORM} is F8_E4M3",
    ),
    "cut short": (cut("model.safetensors", 40_000), r"model.safetensors is cut short"),
    "cut in its header": (cut("model.safetensors", 90), "model.safetensors is cut short"),
    "empty weights": (text("model.safetensors", ""), "model.safetensors is empty"),
    "pointer": (text("model.safetensors", POINTER), "model.safetensors is a git-lfs pointer"),
    "pointer of a tokenizer": (text("tokenizer.json", POINTER), "tokenizer.json is a git-lfs"),
    "archive cut short": (
        lambda f: (
            (f / "model.safetensors").rename(f / "pytorch_model.bin").write_bytes(b"PK\x03\x04")
        ),
        "pytorch_model.bin is cut short",
    ),
    "no weights": (gone("model.safetensors"), "holds no weights: none of model.safetensors"),
    "no config": (gone("config.json"), r"holds no model: it has no config\.json"),
    "empty config": (text("config.json", ""), "config.json is empty"),
    "broken config": (text("config.json", '{"a": 1,\n "b"'), r"config.json is no usable .*line 2"),
    "list": (text("config.json", "[1]"), "config.json must hold a JSON object, not a list"),
    "a key twice": (twice, r"config.json .*'hidden_size' stands there twice"),
    "no model type": (text("config.json", "{}"), "Unrecognized model"),
    "unknown type": (config(model_type="no-such"), "no-such"),
    "odd dtype": (config(dtype="float99"), "float99"),
    "broken tokenizer": (text("tokenizer.json", '{"version'), "tokenizer.json is no usable JSON"),
    "empty tokenizer": (text("tokenizer.json", "{}"), "cannot load"),
    "adapter": (
        lambda f: (f / "config.json").rename(f / "adapter_config.json"),
        "holds an adapter, not a model",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_folder_that_is_wrong(whole, tmp_path, name, capfd):
    change, message = WRONG[name]
    folder = tmp_path / "model"
    shutil.copytree(whole, folder)
    change(folder)
    with pytest.raises((ValueError, OSError), match=f"(?s){message}") as caught:
        opened(folder)
    assert "model" in str(caught.value)
    assert str(folder) in str(caught.value)
    assert capfd.readouterr().out == ""


def index(**places: str) -> Change:
    def change(folder: Path) -> None:
        path = folder / "model.safetensors.index.json"
        content = json.loads(path.read_text())
        content["weight_map"].update({name.replace("__", "."): at for name, at in places.items()})
        path.write_text(json.dumps(content))

    return change


FIRST = "model-00001-of-00004.safetensors"
SECOND = "model-00002-of-00004.safetensors"
SHARDS: dict[str, tuple[Change, str]] = {
    "shard missing": (gone(SECOND), f"names {SECOND}, which is not there"),
    "another file": (index(model__norm__weight="other.safetensors"), "names other.safetensors"),
    "another place": (index(lm_head__weight=SECOND), "does not hold lm_head.weight"),
    "not in the index": (
        lambda f: save_file({**load_file(f / FIRST), "more": torch.ones(2)}, f / FIRST),
        "holds more, of which model.safetensors.index.json says nothing",
    ),
    "shard cut short": (cut(SECOND, 2000), f"{SECOND} is cut short"),
    "pointer": (text(SECOND, POINTER), f"{SECOND} is a git-lfs pointer"),
    "no map": (text("model.safetensors.index.json", "{}"), "no usable weight_map"),
}


@pytest.mark.parametrize("name", SHARDS)
def test_shards_that_do_not_fit(sharded, tmp_path, name):
    change, message = SHARDS[name]
    folder = tmp_path / "model"
    shutil.copytree(sharded, folder)
    change(folder)
    with pytest.raises((ValueError, OSError), match=message):
        opened(folder)


def test_what_is_whole_is_read(whole, sharded):
    expected = make_tiny("llama").state_dict()
    for folder in (whole, sharded):
        model, tokenizer = opened(folder)
        assert len(tokenizer) == 97
        assert all(torch.equal(x, expected[name]) for name, x in model.state_dict().items())


def test_a_tied_head_is_not_missing(whole, tmp_path):
    model = make_tiny("llama")
    model.config.tie_word_embeddings = True
    model.tie_weights()
    shutil.copytree(whole, tmp_path / "tied")
    model.save_pretrained(tmp_path / "tied")
    assert "lm_head.weight" not in load_file(tmp_path / "tied" / "model.safetensors")
    again, _ = opened(tmp_path / "tied")
    assert torch.equal(again.lm_head.weight, model.model.embed_tokens.weight)


MAP = {
    "AutoConfig": "own.Own",
    "AutoModelForCausalLM": "own.Own",
    "AutoTokenizer": ["own.Own", None],
}
CODE: dict[str, tuple[Change, str | None]] = {
    "config": (config(auto_map=MAP), None),
    "unknown type": (config(auto_map=MAP, model_type="own"), "transformers has no class"),
    "no type": (config(auto_map=MAP, model_type=None), "transformers has no class"),
    "tokenizer": (fields_of("tokenizer_config.json", {"auto_map": MAP}), None),
    "unknown tokenizer": (
        fields_of("tokenizer_config.json", {"auto_map": MAP, "tokenizer_class": "Own"}),
        "transformers has no class",
    ),
    "generation": (fields_of("generation_config.json", {"auto_map": MAP}), None),
    "processor": (fields_of("processor_config.json", {"auto_map": MAP}), None),
    "generate": (lambda folder: (folder / "custom_generate").mkdir(), None),
}


class Unasked:
    """Stands for a terminal or a pipe: nobody may read it."""

    def __getattr__(self, name: str):
        raise AssertionError(f"stdin.{name}")


@pytest.mark.parametrize("name", CODE)
def test_code_of_a_model_is_not_run_and_not_asked_about(whole, tmp_path, name, monkeypatch, capfd):
    change, message = CODE[name]
    folder = tmp_path / "model"
    shutil.copytree(whole, folder)
    change(folder)
    mark = tmp_path / "it-ran"
    code = f"open({str(mark)!r}, 'w')\nclass Own: pass\ndef generate(*args, **more): pass\n"
    (folder / "own.py").write_text(code)
    if (folder / "custom_generate").exists():
        (folder / "custom_generate" / "generate.py").write_text(code)
    monkeypatch.setattr(sys, "stdin", Unasked())
    with pytest.warns(ModelWarning, match="brings its own code .*, which is not run"):  # noqa: PT031
        if message is None:
            model, tokenizer = opened(folder)
            ids = tokenizer("ab", return_tensors="pt").input_ids
            assert torch.equal(model(ids).logits, make_tiny("llama")(ids).logits)
        else:
            with pytest.raises(ValueError, match=f"own code, which is not run, and {message}"):
                opened(folder)
    assert not mark.exists()
    assert capfd.readouterr().out == ""


def test_a_folder_with_one_gguf_file(tmp_path):
    path = byte_level(tmp_path / "M.GGUF", tensors=True)
    model, tokenizer = opened(tmp_path)
    again, _ = opened(path)
    ids = tokenizer("ab", return_tensors="pt").input_ids
    assert torch.equal(model(ids).logits, again(ids).logits)
    shutil.copy(path, tmp_path / "n.gguf")
    with pytest.raises(
        ValueError, match=r"holds 2 GGUF files: give one of them \(M.GGUF, n.gguf\)"
    ):
        opened(tmp_path)
    path.rename(tmp_path / "blob")
    assert torch.equal(opened(tmp_path / "blob")[0](ids).logits, model(ids).logits)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.gguf", "", "a.gguf is empty"),
        ("a.gguf", POINTER, "a.gguf is a git-lfs pointer"),
        ("a.gguf", "text", "not a GGUF file"),
        ("a.safetensors", "text", r"is a file, but .*give the folder that holds"),
        ("config.json", "{}", r"is a file, but .*give the folder that holds"),
    ],
)
def test_files_that_are_no_models(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(ValueError, match=message):
        opened(path)
    with pytest.raises(FileNotFoundError, match="is missing|no folder"):
        opened(tmp_path / "none" / name)
