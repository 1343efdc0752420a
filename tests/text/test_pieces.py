"""Decoding id by id equals decoding all at once, for every script; pieces of the vocabulary keep their bytes."""

from __future__ import annotations

import random
import unicodedata
from typing import Any

import pytest

from infinipot.text.pieces import CONTEXT, WINDOW, Characters, Pieces, byte_ids, piece_bytes

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.,!?"


def fallback(kind: str) -> Any:
    """A SentencePiece vocabulary that spells everything but Latin letters in bytes, as Llama-2's does with rare scripts."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers
    from transformers import PreTrainedTokenizerFast

    special = ["<unk>", "<s>", "</s>"]
    pieces = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *LETTERS]
    if kind == "bpe":
        vocabulary = {piece: number for number, piece in enumerate([*pieces, "▁t"])}
        model = models.BPE(
            vocabulary, [("▁", "t")], unk_token="<unk>", byte_fallback=True, fuse_unk=True
        )
    else:
        scored = [(piece, -10.0 * (number > 2)) for number, piece in enumerate(pieces)]
        model = models.Unigram(scored, unk_id=0, byte_fallback=True)
    inner = Tokenizer(model)
    spaces = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    inner.normalizer = normalizers.Sequence(spaces)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    inner.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    inner.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=inner, **names)


def whole(tokenizer: Any, ids: list[int]) -> str:
    return tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def shown(tokenizer: Any, ids: list[int], stop: tuple[str, ...] = ()) -> tuple[list[str], bool]:
    pieces = Pieces(tokenizer, stop)
    out = []
    for token in ids:
        out.append(pieces.push(token))
        if pieces.stopped:
            break
    return [*out, pieces.finish()], pieces.stopped


def scripts() -> list[str]:
    """Some characters of every 128 code points that have any."""
    blocks: dict[int, list[str]] = {}
    for code in range(0x20, 0x110000):
        char = chr(code)
        if unicodedata.category(char) not in ("Cn", "Cs", "Co"):
            blocks.setdefault(code >> 7, []).append(char)
    return ["".join(chars[:: max(1, len(chars) // 4)]) for chars in blocks.values()]


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_every_script_spelt_in_bytes(kind: str) -> None:
    tokenizer = fallback(kind)
    assert byte_ids(tokenizer)[tokenizer.convert_tokens_to_ids("<0xE9>")] == 0xE9
    every = scripts()
    assert len(every) > 1000
    for text in every:
        said = f"the {text} cat {text[:2]}"
        ids = tokenizer.encode(said, add_special_tokens=False)
        out, _ = shown(tokenizer, ids)
        assert "".join(out) == whole(tokenizer, ids) == said
        assert out[-1] == ""  # nothing waits for the end
    for text in ("魑魅魍魉", "한글", "ግዕዝ", "བོད", "ខ្មែរ", "🙂"):
        ids = tokenizer.encode(f"a {text} b", add_special_tokens=False)
        out, stopped = shown(tokenizer, ids, (text[-1],))
        assert stopped
        assert "".join(out) == f"a {text[:-1]}"


@pytest.mark.parametrize("cut", [[0x80], [0xE9], [0xE2, 0x82], [0xF0, 0x9F, 0x98]])
def test_bytes_without_an_end(cut: list[int]) -> None:
    """They are shown as soon as more than three wait, and cost no more the longer it goes on."""
    tokenizer = fallback("bpe")
    ids = tokenizer.convert_tokens_to_ids([f"<0x{byte:02X}>" for byte in cut]) * 200
    characters = Characters(tokenizer)
    done = 0
    for count, token in enumerate(ids, 1):
        done += len(characters.push(token))
        assert count - done <= 3
        assert len(characters.window) <= WINDOW
    assert done + len(characters.finish()) == len(ids)
    assert characters.push(tokenizer.convert_tokens_to_ids("a")) == "a"


def test_byte_level_vocabularies(smollm2_tokenizer) -> None:
    """Any ids, also those that cut characters again and again."""
    tokenizer = smollm2_tokenizer
    chance = random.Random(0)
    cut = [token for token in range(len(tokenizer)) if tokenizer.decode([token]) == "\ufffd"]
    assert len(cut) > 100
    for ids in (
        chance.choices(range(len(tokenizer)), k=300),
        chance.choices(cut, k=300),
        [cut[0]] * 100,
        tokenizer.encode("魑魅魍魉 한글 ግዕዝ 🙂 " * 5),
    ):
        characters = Characters(tokenizer)
        out = []
        for token in ids:
            out.append(characters.push(token))
            assert len(characters.window) <= WINDOW + CONTEXT
        assert "".join(out) + characters.finish() == whole(tokenizer, ids)


def test_what_pieces_stand_for(smollm2_tokenizer) -> None:
    """With leading spaces and cut characters, as in the whole text."""
    for tokenizer in (fallback("bpe"), fallback("unigram"), smollm2_tokenizer):
        text = "the naïve 魑 cat"
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert b"".join(piece_bytes(tokenizer, token) for token in ids).decode().strip() == text
        assert piece_bytes(tokenizer, tokenizer.eos_token_id) == tokenizer.eos_token.encode()
