"""Encoding a stream equals encoding the whole; decoding shows whole characters and holds back what may be a stop text."""

from __future__ import annotations

import inspect
import pydoc_data.topics
import random

import pytest
from tiny import make_tokenizer

from infinipot.text.pieces import Pieces
from infinipot.text.tokens import encode

SAMPLES = {
    "reference": "\n".join(pydoc_data.topics.topics.values())[:120_000],
    "code": inspect.getsource(inspect),
    "scripts": "Größe naïve — “quotes”… 漢字と仮名。 Привет, мир! 👩‍👩‍👧‍👦 \t tabs\t\tand   runs of  spaces\n\n\nlines 1234567890 3.14159\r\n"
    * 300,
    "no spaces": "漢字" * 20_000,
    "one line": "x" * 50_000,
}


def pieces_of(text: str, seed: int) -> list[str]:
    chance, parts, place = random.Random(seed), [], 0
    while place < len(text):
        size = chance.choice([1, 3, 100, 5000, 40_000])
        parts.append(text[place : place + size])
        place += size
    return parts


@pytest.mark.parametrize("name", SAMPLES)
def test_stream_equals_whole(name: str, smollm2_tokenizer) -> None:
    tokenizer, text = smollm2_tokenizer, SAMPLES[name]
    whole = tokenizer.encode(text, add_special_tokens=False)
    for parts in ([text], pieces_of(text, 1), pieces_of(text, 2)):
        assert [token for ids in encode(tokenizer, parts) for token in ids] == whole


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLES)
def test_stream_equals_whole_for_qwen(name: str, qwen) -> None:
    tokenizer, text = qwen[1], SAMPLES[name]
    assert [
        token for ids in encode(tokenizer, pieces_of(text, 1)) for token in ids
    ] == tokenizer.encode(text, add_special_tokens=False)


def test_a_tokenizer_that_puts_a_space_before_a_text() -> None:
    """SentencePiece's dummy prefix must not double the space where a stream was cut."""
    from tokenizers import Tokenizer, models, normalizers
    from transformers import PreTrainedTokenizerFast

    letters = ["<unk>", "▁", *"abcdefghijklmnopqrstuvwxyz\n."]
    inner = Tokenizer(
        models.BPE(
            vocab={letter: i for i, letter in enumerate(letters)}, merges=[], unk_token="<unk>"
        )
    )
    inner.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>")
    text = "the keeper hid the letter under the step. " * 2000
    assert [token for ids in encode(tokenizer, [text]) for token in ids] == tokenizer.encode(
        text, add_special_tokens=False
    )


def test_pieces_are_whole_characters(smollm2_tokenizer) -> None:
    tokenizer, text = smollm2_tokenizer, "naïve 漢字 👩‍👩‍👧 done."
    pieces = Pieces(tokenizer)
    shown = [pieces.push(token) for token in tokenizer.encode(text, add_special_tokens=False)]
    assert "".join(shown) + pieces.finish() == text
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in shown)


def test_stop_texts_are_never_shown() -> None:
    tokenizer = make_tokenizer()
    pieces, shown = Pieces(tokenizer, ("END", "ENOUGH")), ""
    for token in tokenizer.encode("The EN ENDS. ENOUGH", add_special_tokens=False):
        shown += pieces.push(token)
        if pieces.stopped:
            break
    assert pieces.stopped
    assert shown + pieces.finish() == "The EN "
    held = Pieces(tokenizer, ("END",))
    shown = "".join(
        held.push(token) for token in tokenizer.encode("THE EN", add_special_tokens=False)
    )
    assert shown == "THE "
    assert held.finish() == "EN"
