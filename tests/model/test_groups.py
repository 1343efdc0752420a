"""Weights in groups of whole numbers: exact against stock with the same weights, whatever they were made of."""

from __future__ import annotations

import importlib.util
import json
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from commands import save_tiny
from families import FAMILIES
from helpers import CATALYST, assert_close, kept, random_ids
from tiny import make_tiny, make_tokenizer

from infinipot import PotConfig, Session, load
from infinipot.checks import ModelWarning
from infinipot.engine.distill import score_novelty
from infinipot.eval import runner
from infinipot.kernels import native
from infinipot.model import convert, gguf_groups, groups, rounding
from infinipot.model import load as loading
from infinipot.model.groups import GroupedWeight, weights_in_groups
from infinipot.model.quantizer import quantise_model
from infinipot.model.rounding import GROUP

KINDS = ("int8", "int4")
FORMS = ("int8", "int4", "q4_k")


@pytest.fixture(scope="module")
def plain_library(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The functions for processors without AVX2."""
    command = native.compiler()
    if command is None:
        pytest.skip("needs a C compiler")
    target = tmp_path_factory.mktemp("plain") / "groups.so"
    native.build([*command, "-DPLAIN"], target)
    return native.opened(target)


@pytest.fixture(params=["compiled", "plain", "torch"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The compiled functions, those for any processor, and torch's own operations in their place."""
    if request.param == "torch":
        monkeypatch.setattr(native, "fits", lambda x: False)
    elif request.param == "plain":
        library = request.getfixturevalue("plain_library")
        monkeypatch.setattr(native, "library", lambda: library)
    elif native.library() is None:
        pytest.skip("needs a C compiler")
    return request.param


def rounds() -> bool:
    """Whether the compiled functions round activations."""
    return native.library() is not None and native.takes_many()


@pytest.mark.parametrize(
    ("form", "width"),
    [*((form, width) for form in KINDS for width in (64, 50, 1100)), ("q4_k", 256), ("q4_k", 1280)],
)
def test_products_are_those_of_the_weights(
    way: str, form: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For few rows and for many, for all outputs and for some, with blocks that end within them."""
    torch.manual_seed(0)
    monkeypatch.setattr(groups, "LEAST_ROWS", 16)
    monkeypatch.setattr(groups, "BLOCK", {"cpu": 1})
    weight = GroupedWeight.of(torch.randn(70, width), form)
    plain = weight.dequantize()
    bias = torch.randn(70)
    allowed = 5e-5 if way == "compiled" and rounds() else 1e-6
    for rows in (1, 2, 3, 5, native.FEW, native.FEW + 1, 300):
        x = torch.randn(2, rows, width)
        assert_close("all", weight.linear(x, bias), x @ plain.T + bias, allowed)
        assert_close("some", weight.linear(x, rows=slice(9, 33)), x @ plain[9:33].T, allowed)
    assert torch.equal(weight.lookup(torch.tensor([[3, 69]])), plain[[3, 69]][None])


@pytest.mark.parametrize("form", FORMS)
def test_a_row_is_the_same_beside_others(form: str) -> None:
    """Bit for bit, in products of 1 to 300 rows; and on any number of threads."""
    if not rounds():
        pytest.skip("needs a C compiler and AVX2")
    torch.manual_seed(0)
    weight = GroupedWeight.of(torch.randn(45, 768), form)
    x = torch.randn(300, 768)
    x[1] *= 1e6
    together = weight.linear(x)
    for rows in (1, 2, 3, 4, 9, 257):
        for start in (0, 1, 40):
            part = slice(start, start + rows)
            assert torch.equal(weight.linear(x[part]), together[part])
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 2)
    try:
        assert torch.equal(weight.linear(x), together)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("form", FORMS)
def test_a_weight_is_rounded_in_parts_by_several_threads(form: str, monkeypatch: Any) -> None:
    """Bit for bit as in one piece, and all threads of torch are there afterwards."""
    monkeypatch.setitem(rounding.AT_ONCE, "cpu", 640)
    plain = torch.randn(45, 256)
    whole = rounding.quantise(plain, form)
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        weight = GroupedWeight.of(plain, form)
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(torch.get_num_threads).result() == torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(threads)
    for own, other in zip(weight.part(slice(None)), whole, strict=True):
        assert own is other is None or torch.equal(own, other)


def test_a_failure_in_a_part_is_raised(monkeypatch: Any) -> None:
    monkeypatch.setitem(rounding.AT_ONCE, "cpu", 64)

    def fails(rows: slice) -> Any:
        raise OSError(f"row {rows.start}")

    with pytest.raises(OSError, match="row 0"):
        GroupedWeight.by_rows((9, 64), "int8", torch.device("cpu"), fails)


def test_a_large_activation_disturbs_its_own_group_only() -> None:
    """Rounding errors are at most 1 / 65,534 of the largest activation of the group, times the weights."""
    torch.manual_seed(0)
    weight = GroupedWeight.of(torch.randn(20, 96), "int8")
    plain = weight.dequantize().double()
    x = torch.randn(5, 96)
    x[:, 40] = 3e4
    error = (weight.linear(x).double() - x.double() @ plain.T).abs()
    peaks = x.unflatten(1, (3, GROUP)).abs().amax(dim=-1).double()
    sizes = plain.abs().unflatten(1, (3, GROUP)).sum(dim=-1)
    assert bool((error <= 1.1 * peaks @ sizes.T / 65_534).all())
    x[:, 40] = 0.0
    small = weight.linear(x).double() - x.double() @ plain.T
    assert float(small.abs().max()) < 1e-3 * float(error.max())


def test_numbers_that_are_not_finite_or_very_small(way: str) -> None:
    """What is not finite stays so, in its own row only. Zeros and tiny numbers give next to nothing."""
    torch.manual_seed(0)
    for form in FORMS:
        weight = GroupedWeight.of(torch.randn(20, 256) + 0.1, form)
        for rows in (1, 2, 6):
            x = torch.randn(rows, 256)
            alone = weight.linear(x)
            for value in (torch.inf, -torch.inf, torch.nan):
                x[0, 50] = value
                y = weight.linear(x)
                assert not y[0].isfinite().any()
                assert torch.equal(y[1:], alone[1:])
            for value in (0.0, 1e-38, 1e-44):
                y = weight.linear(torch.full((rows, 256), value))
                assert float(y.abs().max()) < 1e-28


@pytest.mark.parametrize(("form", "allowed"), [("int8", 0.006), ("int4", 0.08), ("q4_k", 0.08)])
def test_rounding_errors_are_those_of_the_bits(form: str, allowed: float) -> None:
    """Of normal numbers; a number that is far from the others disturbs its own group only, and in
    q4_k its block."""
    torch.manual_seed(0)
    plain = torch.randn(64, 16 * GROUP)
    plain[5, 40] = 100.0
    error = GroupedWeight.of(plain, form).dequantize() - plain
    assert float(error[6:].norm() / plain[6:].norm()) < allowed
    other = slice(GROUP) if form in KINDS else slice(8 * GROUP, None)
    assert float(error[5, other].norm() / plain[5, other].norm()) < 1.5 * allowed
    constant = torch.full((2, 8 * GROUP), 0.25)
    assert_close("constant", GroupedWeight.of(constant, form).dequantize(), constant, 0.005)
    assert not GroupedWeight.of(torch.zeros(2, 8 * GROUP), form).dequantize().any()


def test_without_a_compiler_the_user_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "compiler", lambda: None)
    native.library.cache_clear()
    try:
        with pytest.warns(ModelWarning, match="Install gcc or clang"):
            assert not native.fits(torch.zeros(1, GROUP))
        assert not native.fits(torch.zeros(1, GROUP))  # a second warning would be an error here
    finally:
        native.library.cache_clear()


def test_places_for_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for place in (Path("new"), tmp_path / "a" / "new"):
        convert.check_target(place)
    (tmp_path / "empty").mkdir()
    convert.check_target(Path("empty"))
    (tmp_path / "link").symlink_to("empty")
    for place in (Path(), Path("."), tmp_path, Path("link")):
        with pytest.raises(ValueError, match="give the name of a new folder"):
            convert.check_target(place)


@pytest.mark.parametrize("weights", ["int3", 8, 4.0])
def test_weights_of_no_kind(weights: Any) -> None:
    with pytest.raises(ValueError, match=f"unknown weights {weights!r}.*known: auto, int8, int4"):
        load("smollm2", weights=weights)


@pytest.mark.skipif(native.compiler() is None, reason="needs a C compiler")
def test_a_damaged_library_is_compiled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    library = native.compiled()
    content = library.read_bytes()
    for damaged in (b"", b"garbage", content[:5000], b"x" + content[1:]):
        library.write_bytes(damaged)
        library = native.compiled()
        assert library.read_bytes()[:4] == content[:4] and library.stat().st_size > 5000
    assert native.opened(library).most_rows() > 0


def test_a_compiler_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "'")
    native.library.cache_clear()
    try:
        with pytest.warns(ModelWarning, match="No closing quotation"):
            assert native.library() is None
    finally:
        native.library.cache_clear()


@pytest.mark.parametrize(
    ("name", "kind"),
    [("Llama-3.2", "int4"), ("Gemma-3", "int8"), ("Cohere-2", "int4"), ("Qwen3-MoE", "int8")],
)
def test_what_fits_is_read_as_stock(name: str, kind: str) -> None:
    """Exact against the stock model with the same weights, read at once, in chunks and token by token, novelty included."""
    check_what_fits(FAMILIES[name].build(), kind)


def test_what_fits_is_read_as_stock_in_blocks() -> None:
    """The same with rows that are wide enough for q4_k."""
    model = make_tiny("qwen3", hidden=256)
    check_what_fits(model, "int4")
    assert {one.form for one in weights_in_groups(model).values()} == {"int8", "q4_k"}


def check_what_fits(model: Any, kind: str) -> None:
    quantise_model(model, kind)
    ids = random_ids(60)
    logits = model(torch.tensor([ids])).logits
    losses = torch.nn.functional.cross_entropy(
        logits[0, :-1], torch.tensor(ids[1:]), reduction="none"
    )
    for chunk in (1, 7, 512):
        session = Session(model, None, PotConfig(pot_size=60, chunk_tokens=chunk, novelty=1.0))
        session.append(ids)
        score_novelty(session.runner, session.pot)
        assert_close(f"in chunks of {chunk}", session.logits, logits[:, -1])
        assert_close("novelty", session.pot.novelty[0, 1:], losses)
    assert session.runner.in_groups


@pytest.mark.parametrize("kind", KINDS)
def test_a_small_pot_keeps_what_the_plain_weights_keep(way: str, kind: str) -> None:
    """Over distillations: the same as a model with the rounded weights as plain numbers. Where
    activations are rounded a near tie may fall the other way, as one does with seed 0."""
    model = make_tiny("qwen3", seed=1)
    quantise_model(model, kind)
    plain = make_tiny("qwen3", seed=1)
    for name, weight in weights_in_groups(model).items():
        plain.get_parameter(name).data.copy_(weight.dequantize())
    sessions = []
    for one in (model, plain):
        session = Session(one, None, PotConfig(pot_size=48, distill_to=20, chunk_tokens=9))
        session.append(random_ids(150), question=CATALYST)
        sessions.append(session)
    assert kept(sessions[0]) == kept(sessions[1])
    allowed = 5e-4 if way == "compiled" and rounds() else 1e-4
    assert_close("logits", sessions[0].logits, sessions[1].logits, allowed)


def test_a_tied_head_shares_one_copy() -> None:
    model = FAMILIES["Llama-3.2"].build()
    quantise_model(model, "int4")
    assert model.lm_head.weight is model.model.embed_tokens.weight
    model.to(torch.bfloat16)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.lm_head.weight.scale.dtype is torch.float16  # scales stay
    assert model(torch.tensor([[1, 2]])).logits.dtype is torch.bfloat16


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_is_quantised_while_it_is_read(tmp_path: Path, kind: str, tied: bool) -> None:
    """The weights are those of a model that is quantised in memory; a saved copy is the same again."""
    save_tiny(tmp_path)
    if tied:  # then the file has no head
        plain, _ = load(str(tmp_path), dtype="float32")
        plain.config.tie_word_embeddings = True
        plain.tie_weights()
        plain.save_pretrained(tmp_path)
    expected, _ = load(str(tmp_path), dtype="float32")
    quantise_model(expected, kind)
    model, _ = load(str(tmp_path), dtype="float32", weights=kind)
    ids = torch.tensor([random_ids(40)])
    assert weights_in_groups(model).keys() == weights_in_groups(expected).keys()
    assert torch.equal(model(ids).logits, expected(ids).logits)
    assert (model.lm_head.weight is model.model.embed_tokens.weight) is tied
    assert model.generation_config.eos_token_id == expected.generation_config.eos_token_id


@pytest.mark.parametrize("name", FAMILIES)
def test_what_no_file_holds_is_computed(name: str, tmp_path: Path) -> None:
    """Buffers such as the factor of Gemma's embedding, also of a copy."""
    FAMILIES[name].build().save_pretrained(tmp_path / "plain")
    make_tokenizer().save_pretrained(tmp_path / "plain")
    plain, tokenizer = load(str(tmp_path / "plain"), dtype="float32", device="cpu")
    model, _ = load(str(tmp_path / "plain"), dtype="float32", device="cpu", weights="int8")
    convert.save(model, tokenizer, tmp_path / "copy")
    copy, _ = load(str(tmp_path / "copy"), dtype="float32", device="cpu")
    for made in (model, copy):
        buffers = dict(made.named_buffers())
        for place, buffer in plain.named_buffers():
            assert torch.equal(buffers[place], buffer), place


def test_shards_and_files_of_torch_are_quantised_too(tmp_path: Path) -> None:
    save_tiny(tmp_path)
    expected, _ = load(str(tmp_path), dtype="float32", weights="int8")
    ids = torch.tensor([random_ids(40)])
    plain, _ = load(str(tmp_path), dtype="float32")
    (tmp_path / "model.safetensors").unlink()
    torch.save(plain.state_dict(), tmp_path / "pytorch_model.bin")
    model, _ = load(str(tmp_path), dtype="float32", weights="int8")
    assert torch.equal(model(ids).logits, expected(ids).logits)
    (tmp_path / "pytorch_model.bin").unlink()
    plain.save_pretrained(tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    model, _ = load(str(tmp_path), dtype="float32", weights="int8")
    assert torch.equal(model(ids).logits, expected(ids).logits)


def test_wrong_weights_are_refused(tmp_path: Path) -> None:
    save_tiny(tmp_path)
    with pytest.raises(ValueError, match="unknown weights 'int5'.*known: auto, int8, int4"):
        load(str(tmp_path), weights="int5")
    config = json.loads((tmp_path / "config.json").read_text())
    wrong = {**config, "intermediate_size": 96}
    (tmp_path / "config.json").write_text(json.dumps(wrong))
    with pytest.raises(ValueError, match="wrong shapes: model.layers.0.mlp.down_proj.weight"):
        load(str(tmp_path), weights="int4")
    wrong = {**config, "num_hidden_layers": 3}
    (tmp_path / "config.json").write_text(json.dumps(wrong))
    with pytest.raises(ValueError, match="weights are missing: model.layers.2"):
        load(str(tmp_path), weights="int4")
    (tmp_path / "config.json").write_text(json.dumps(config))
    plain, _ = load(str(tmp_path), dtype="float32")
    plain.model.layers[1].mlp.up_proj.weight.data[3, 3] = torch.nan
    plain.save_pretrained(tmp_path)
    for kind in KINDS:
        with pytest.raises(ValueError, match=r"layers.1.mlp.up_proj.weight holds NaN"):
            load(str(tmp_path), weights=kind)


TYPES = gguf.GGMLQuantizationType
RANDOM = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("kind", "form"),
    [(TYPES.Q8_0, "int8"), (TYPES.Q5_0, "int8"), (TYPES.Q4_0, "int4"), (TYPES.Q4_1, "int4")],
    ids=str,
)
def test_blocks_of_a_gguf_file_stay_value_for_value(kind: Any, form: str) -> None:
    content = gguf.quantize(RANDOM.standard_normal((6, 96), dtype=np.float32), kind)
    weight = GroupedWeight(gguf_groups.converted(content, kind, form, torch.device("cpu")), 96)
    assert np.array_equal(weight.dequantize().numpy(), gguf.dequantize(content, kind))


def test_blocks_of_q4_k_stay_value_for_value() -> None:
    """Of all bits that a block may have; only a GPU rounds their scales to float16."""
    content = random_blocks(TYPES.Q4_K, 40, 3)
    groups = gguf_groups.converted(content, TYPES.Q4_K, "q4_k", torch.device("cpu"))
    plain = torch.from_numpy(gguf.dequantize(content, TYPES.Q4_K))
    weight = GroupedWeight(groups, 768)
    assert weight.nbytes == content.nbytes
    assert_close("in blocks", weight.dequantize(), plain, 1e-7)
    weight.scale, weight.low = rounding.without_blocks(groups)[1:]
    assert weight.form == "int4"
    assert_close("as on a GPU", weight.dequantize(), plain, 5e-4)


def random_blocks(kind: Any, rows: int, blocks: int) -> np.ndarray:
    """Blocks of K-quants with random bits, and finite scales: their first or last numbers in float16."""
    size = gguf.GGML_QUANT_SIZES[kind][1]
    content = RANDOM.integers(0, 256, (rows, blocks, size), dtype=np.uint8)
    scales = (RANDOM.random((rows, blocks, 2)) * 0.01 + 0.001).astype(np.float16).view(np.uint8)
    where = {TYPES.Q6_K: slice(-2, None), TYPES.Q3_K: slice(-2, None), TYPES.Q2_K: slice(-4, None)}
    place = where.get(kind, slice(0, 4))
    content[..., place] = scales[..., : content[..., place].shape[-1]]
    return content.reshape(rows, -1)


@pytest.mark.parametrize(
    ("kind", "form", "allowed"),
    [
        (TYPES.Q5_K, "int8", 0.006),
        (TYPES.Q6_K, "int8", 0.008),
        (TYPES.Q3_K, "int8", 0.008),
        (TYPES.Q2_K, "int8", 0.008),
        (TYPES.Q6_K, "int4", 0.12),
        (TYPES.Q6_K, "q4_k", 0.12),
    ],
    ids=str,
)
def test_k_quants_are_rounded_as_little_as_the_bits_allow(
    kind: Any, form: str, allowed: float
) -> None:
    content = random_blocks(kind, 6, 2)
    plain = gguf.dequantize(content, kind)
    got = (
        GroupedWeight(gguf_groups.converted(content, kind, form, torch.device("cpu")), 512)
        .dequantize()
        .numpy()
    )
    assert np.linalg.norm(got - plain) / np.linalg.norm(plain) < allowed


def test_a_gguf_model_is_that_of_its_file(smollm2: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The embedded model is Q4_1 with an embedding in Q8_0: its logits stay the same, but for the
    rounding of activations."""
    model, tokenizer = load("smollm2", dtype="float32", weights="auto")
    ids = tokenizer("The keeper of the lighthouse wrote", return_tensors="pt").input_ids
    plain = smollm2[0](ids).logits
    assert_close("logits, activations rounded", model(ids).logits, plain, 5e-4)
    monkeypatch.setattr(native, "fits", lambda x: False)
    assert_close("logits", model(ids).logits, plain, 1e-5)
    assert sum(one.nbytes for one in weights_in_groups(model).values()) < 97e6
    assert model.lm_head.weight is model.model.embed_tokens.weight


READERS = {
    "gptq": "pip install gptqmodel optimum",
    "awq": "pip install gptqmodel",
    "bitsandbytes": "pip install bitsandbytes",
    "compressed-tensors": "pip install compressed-tensors",
    "torchao": "pip install torchao",
    "fbgemm_fp8": "requires a GPU",
    "quip": "transformers .* does not read",
}
"""What the sentence names, where nothing is installed and there is no GPU."""


@pytest.mark.parametrize("method", READERS)
def test_weights_that_are_quantised_already(tmp_path: Path, method: str) -> None:
    """Where no package reads them, the sentence names it. Another kind cannot be asked for."""
    package = READERS[method].split()[2].replace("-", "_")
    if importlib.util.find_spec(package) or torch.cuda.is_available():
        pytest.skip(f"{method} may be read here")
    save_tiny(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    kind = {"quant_method": method, "bits": 4, "group_size": 32, "load_in_4bit": method[0] == "b"}
    kind["quant_type"] = {"default": {"_type": "Int8WeightOnlyConfig", "_data": {}, "_version": 1}}
    (tmp_path / "config.json").write_text(json.dumps({**config, "quantization_config": kind}))
    with pytest.raises(ValueError, match=READERS[method]):
        load(str(tmp_path))
    with pytest.raises(ValueError, match=method):
        load(str(tmp_path), weights="int4")


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_is_the_same_again(tmp_path: Path, kind: str) -> None:
    """Weights, tied ones too, settings and tokenizer; what stands there already is left alone."""
    save_tiny(tmp_path / "plain")
    plain, tokenizer = load(str(tmp_path / "plain"), dtype="float32")
    plain.config.tie_word_embeddings = kind == "int4"
    plain.tie_weights()
    quantise_model(plain, kind)
    convert.save(plain, tokenizer, tmp_path / "copy")
    model, other = load(str(tmp_path / "copy"), dtype="float32")
    ids = torch.tensor([random_ids(40)])
    assert torch.equal(model(ids).logits, plain(ids).logits)
    assert (model.lm_head.weight is model.model.embed_tokens.weight) is (kind == "int4")
    assert other.get_vocab() == tokenizer.get_vocab()
    assert load(str(tmp_path / "copy"), weights=kind)[0].lm_head.weight.bits == 8
    with pytest.raises(ValueError, match=f"quantised already .{kind}"):
        load(str(tmp_path / "copy"), weights="int8" if kind == "int4" else "int4")
    with pytest.raises(ValueError, match="exists already"):
        convert.save(plain, tokenizer, tmp_path / "copy")
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["copy", "plain"]


def test_a_copy_keeps_blocks(tmp_path: Path) -> None:
    """Weights in q4_k are the same again."""
    save_tiny(tmp_path / "plain")
    _, tokenizer = load(str(tmp_path / "plain"))
    plain = make_tiny("qwen3", hidden=256, vocab=len(tokenizer))
    quantise_model(plain, "int4")
    convert.save(plain, tokenizer, tmp_path / "copy")
    model, _ = load(str(tmp_path / "copy"), dtype="float32")
    ids = torch.tensor([random_ids(40)])
    assert torch.equal(model(ids).logits, plain(ids).logits)
    assert model.lm_head.weight.form == "q4_k"


def test_forms_that_a_config_names(tmp_path: Path) -> None:
    """Bits stand for the two plain forms, as in older copies; what does not fit a weight is refused."""
    save_tiny(tmp_path / "plain")
    plain, tokenizer = load(str(tmp_path / "plain"), dtype="float32", weights="int4")
    convert.save(plain, tokenizer, tmp_path / "copy")
    place = tmp_path / "copy" / "config.json"
    config = json.loads(place.read_text())
    forms = config["quantization_config"]["modules"]
    assert set(forms.values()) == {"int8", "int4"}
    ids = torch.tensor([random_ids(40)])

    def loaded(modules: dict[str, Any]) -> Any:
        config["quantization_config"]["modules"] = modules
        place.write_text(json.dumps(config))
        return load(str(tmp_path / "copy"), dtype="float32")[0]

    older = loaded({name: int(form[3:]) for name, form in forms.items()})
    assert torch.equal(older(ids).logits, plain(ids).logits)
    with pytest.raises(ValueError, match=r"as q4_k, whose rows have 64 weights"):
        loaded({**forms, "model.layers.0.mlp.up_proj": "q4_k"})
    with pytest.raises(ValueError, match=r"int5.*known are groups of 32 and int8, int4, q4_k"):
        loaded({**forms, "model.layers.0.mlp.up_proj": "int5"})


def test_what_is_not_finite_is_found_in_every_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "SUMMED", 7)
    numbers = torch.ones(5, 6, dtype=torch.float16)
    assert groups.finite(numbers) and groups.finite(numbers[:0])
    for place, value in ((0, torch.nan), (13, torch.inf), (29, -torch.inf)):
        damaged = numbers.clone()
        damaged.view(-1)[place] = value
        assert not groups.finite(damaged)
    weight = GroupedWeight.of(torch.randn(9, 512), "q4_k")
    assert weight.finite()
    weight.scale[8, 1, 1] = 0x7C  # the upper byte of an infinite float16
    weight.scale[8, 1, 0] = 0
    assert not weight.finite()


def test_large_models_are_saved_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convert, "SHARD_BYTES", 20_000)
    save_tiny(tmp_path / "plain")
    plain, tokenizer = load(str(tmp_path / "plain"), dtype="float32", weights="int4")
    size = convert.save(plain, tokenizer, tmp_path / "copy")
    files = list((tmp_path / "copy").glob("*.safetensors"))
    assert len(files) > 2 and sum(path.stat().st_size for path in files) >= size
    model, _ = load(str(tmp_path / "copy"), dtype="float32")
    ids = torch.tensor([random_ids(40)])
    assert torch.equal(model(ids).logits, plain(ids).logits)


@pytest.mark.parametrize(
    ("flags", "seconds", "expected"),
    [
        ("flags : fma avx2", 0.1, torch.float32),
        ("flags : fma avx512_bf16", 0.1, torch.bfloat16),
        ("Features : asimd bf16", 0.1, torch.bfloat16),
        ("flags : avx512_bf16", 10.0, torch.float32),
        (None, 0.1, torch.float32),
    ],
)
def test_the_type_for_a_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: str, seconds: float, expected: Any
) -> None:
    """bfloat16 where the processor has it and it is faster, said once; else float32."""
    info = tmp_path / "cpuinfo"
    if flags is not None:
        info.write_text(f"processor : 0\n{flags}\n")
    monkeypatch.setattr(loading, "CPU_INFO", info)
    monkeypatch.setattr(loading, "product_s", {torch.bfloat16: seconds, torch.float32: 1.0}.get)
    loading.fast_bfloat16.cache_clear()
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            for _ in range(2):
                assert loading.best_dtype("auto", torch.device("cpu")) is expected
        assert len(told) == (expected is torch.bfloat16)
        assert loading.best_dtype("float32", torch.device("cpu")) is torch.float32
        assert loading.best_dtype("auto", torch.device("cuda")) is torch.bfloat16
        for device, own in (("cpu", torch.float32), ("cuda", torch.bfloat16)):
            assert loading.best_dtype("auto", torch.device(device), "int8") is own
    finally:
        loading.fast_bfloat16.cache_clear()


def test_a_copy_in_groups_has_the_type_of_its_products(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """float32 as with `weights`, where plain weights take bfloat16."""
    monkeypatch.setattr(loading, "fast_bfloat16", lambda: True)
    save_tiny(tmp_path / "plain")
    plain, _ = load(str(tmp_path / "plain"))
    assert plain.dtype is torch.bfloat16
    convert.save(*load(str(tmp_path / "plain"), weights="int4"), tmp_path / "copy")
    assert load(str(tmp_path / "copy"))[0].dtype is torch.float32
    assert runner.Model(str(tmp_path / "copy")).precision == "float32"
    assert runner.Model(str(tmp_path / "plain")).precision == "bfloat16"
    assert load(str(tmp_path / "copy"), dtype="bfloat16")[0].dtype is torch.bfloat16
