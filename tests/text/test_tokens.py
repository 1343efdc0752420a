"""Where a stream is cut, which ids are allowed, and what is shown of an answer, on small tokenizers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tiny import make_tokenizer

from infinipot.engine.answer import Answer
from infinipot.text import tokens
from infinipot.text.pieces import Pieces
from infinipot.text.tokens import Place, boundary, checked, encode, fragment, parts

TOKENIZER = make_tokenizer()


class Letters:
    """A tokenizer that notes what it is given: an id a letter, with a space before each text if asked."""

    chat_template = None
    is_fast = False
    bos_token_id = None
    all_special_ids: tuple[int, ...] = ()
    all_special_tokens: tuple[str, ...] = ()

    def __init__(self, dummy: bool = False) -> None:
        self.dummy = dummy
        self.given: list[str] = []
        self.added_tokens_decoder: dict[int, Any] = {}

    def __len__(self) -> int:
        return 256

    def convert_tokens_to_ids(self, names: list[str]) -> list[None]:
        return [None] * len(names)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        assert not add_special_tokens
        self.given.append(text)
        return [ord(letter) for letter in (" " * self.dummy + text)]

    def decode(self, ids: list[int], **_: Any) -> str:
        return bytes(ids).decode("utf-8", errors="replace")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("", 0),
        ("a", 0),
        (" a", 0),
        ("ab", 0),
        ("a b", 1),
        ("a\nb", 2),
        ("a b c", 3),
        ("1 ", 1),
        ("a. b", 0),
        ("a.\n b", 0),
        ("a.\nb", 3),
        (".\n\n", 0),
        (".\n\nx", 3),
        ("a\n\n", 1),
        ("a  b", 1),
        ("\na", 1),
        ("snake_case", 0),
        ("a\tb", 0),
    ],
)
def test_places_to_cut(text: str, place: int) -> None:
    """Before a space or newline behind a letter or digit; or behind a newline, before what is no space."""
    assert boundary(text) == place


def test_a_stream_is_cut_into_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """At safe places, once there is more than a block; each later piece follows a newline."""
    monkeypatch.setattr(tokens, "BLOCK", 10)
    letters = Letters()
    text = "one two three four five six seven"
    lists = list(encode(letters, [text[:4], text[4:30], text[30:]]))
    assert [letter for ids in lists for letter in ids] == [ord(letter) for letter in text]
    read = ["".join(map(chr, ids)) for ids in lists]
    assert read == ["one two three", " four five", " six seven"]
    assert list(encode(letters, [])) == list(encode(letters, [""])) == []
    assert [len(ids) for ids in encode(letters, ["abc def gh"])] == [10], "a block is not cut"


def test_a_text_without_a_place_to_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is looked at again at twice the length, and cut in the end."""
    monkeypatch.setattr(tokens, "BLOCK", 10)
    monkeypatch.setattr(tokens, "LONGEST", 30)
    looked: list[int] = []
    monkeypatch.setattr(tokens, "boundary", lambda text: looked.append(len(text)) or 0)
    lists = list(encode(Letters(), ["x" * 5] * 12))
    assert [len(ids) for ids in lists] == [35, 25]
    assert looked == [15, 35, 15]


def test_streams_are_texts() -> None:
    with pytest.raises(TypeError, match="must yield str, not int: 3"):
        list(encode(TOKENIZER, ["a", 3]))  # type: ignore[list-item]


def test_a_fragment_has_no_space_of_the_tokenizers_own() -> None:
    for dummy in (False, True):
        letters = Letters(dummy)
        assert fragment(letters, "word") == [ord(letter) for letter in "word"]
        assert fragment(letters, "word", "x") == [ord(letter) for letter in "word"]
        assert fragment(letters, " word", "x") == [ord(letter) for letter in " word"]
    assert fragment(Letters(), "", "x") == []
    letters = Letters()
    list(encode(letters, ["a b"], before="x"))
    assert letters.given[-1] == "xa b", "what stands before it is encoded with it"


class Merges(Letters):
    """Merges these pairs of letters; writes a newline as two ids."""

    def __init__(self, *pairs: str) -> None:
        super().__init__()
        self.pairs = pairs

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        ids = [ord(letter) for letter in text]
        for place, pair in enumerate(self.pairs):
            if text[:2] == pair:
                ids = [1000 + place, *ids[2:]]
        return [0, *ids] if text == "\n" else ids


def test_a_fragment_stands_behind_what_does_not_merge_with_it() -> None:
    assert fragment(Merges(), "bc", "a") == [98, 99]
    assert fragment(Merges("ab"), "bc", "a") == [98, 99]
    merged = Merges("ab", "bc", "\nb")
    assert merged.encode("bc") == [1001]
    assert fragment(merged, "bc", "a") == [98, 99], "behind a full stop"
    assert fragment(Merges("ab", "bc", "\nb", ".b"), "bc", "a") == [1001], "behind nothing"
    assert fragment(Letters(), "bc", "\n") == [98, 99]
    assert fragment(Merges("bc"), "bc", "\n") == [98, 99], "a newline of two ids is no safe place"


def test_ids_are_checked() -> None:
    assert checked([0, 96], 97) == [0, 96]
    assert checked(torch.tensor([3, 4]), 97) == [3, 4]
    for wrong in (-1, 97, True, 1.0, "1", None):
        with pytest.raises(ValueError, match=f"{wrong!r} is not a token id.*from 0 to 96"):
            checked([0, wrong], 97)  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("text", "lists", "raw"),
    [
        ("ab", [[66, 67]], False),
        ("", [], False),
        ([], [], True),
        ([1, 2], [[1, 2]], True),
        (iter([1, 2]), [[1, 2]], True),
        (iter(["a", "b"]), [[66, 67]], False),
        (torch.tensor([1, 2]), [[1, 2]], True),
        (torch.tensor([[1, 2]]), [[1, 2]], True),
        (np.array([1, 2]), [[1, 2]], True),
        (np.array([[1, 2]], dtype=np.uint8), [[1, 2]], True),
        (np.array(["a", "b"]), [[66, 67]], False),
    ],
)
def test_texts_of_every_kind(text: Any, lists: list[list[int]], raw: bool) -> None:
    got, was_raw = parts(text, TOKENIZER, 97)
    shift = TOKENIZER.encode("a")[0] - 66
    assert [list(ids) for ids in got] == (
        [[i + shift for i in ids] for ids in lists] if not raw else lists
    )
    assert was_raw == raw


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (b"ab", TypeError),
        (bytearray(b"ab"), TypeError),
        ({"a": 1}, TypeError),
        (3, TypeError),
        (None, TypeError),
        (torch.tensor([0.5]), ValueError),
        (torch.tensor([True]), ValueError),
        (torch.zeros(1, 1, 2, dtype=torch.long), ValueError),
        (torch.zeros(2, 1, dtype=torch.long), ValueError),
        ([1, 97], ValueError),
        (["a", "b"], None),
    ],
)
def test_what_is_no_text_is_refused(text: Any, error: type[Exception] | None) -> None:
    if error is not None:
        with pytest.raises(error):
            parts(text, TOKENIZER, 97)
        return
    with pytest.raises(ValueError, match="has no tokenizer to encode this text"):
        parts(text, None, 97)


def test_a_place_is_asked_for_when_it_is_needed() -> None:
    """The template around a text is not known before the first ids are wanted."""
    asked: list[bool] = []
    lists, _ = parts("b", Letters(), 256, lambda: asked.append(True) or Place("x", "  "))
    assert not asked
    assert [ord(letter) for letter in "  b"] == next(lists)
    assert asked == [True]


@pytest.mark.parametrize(
    ("stop", "most", "said", "reason"),
    [
        ((), 9, "abcdef", "stop"),
        ((), 6, "abcdef", "length"),
        (("cd",), 9, "ab", "stop"),
        (("ef",), 6, "abcd", "stop"),
    ],
)
def test_why_an_answer_ends(stop: tuple[str, ...], most: int, said: str, reason: str) -> None:
    ended: list[bool] = []

    def ids() -> Any:
        try:
            yield from b"abcdef"
        finally:
            ended.append(True)

    answer = Answer(ids(), Pieces(Letters(), stop), most)  # type: ignore[arg-type]
    assert answer.finish_reason is None
    assert next(answer) == "a"
    assert answer.ids == [97]
    assert "a" + "".join(answer) == said
    assert (answer.finish_reason, ended) == (reason, [True])
    closed = Answer(ids(), Pieces(Letters()), 9)  # type: ignore[arg-type]
    next(closed)
    closed.close()
    assert (len(ended), closed.finish_reason) == (2, None)


def shown(text: str, stop: tuple[str, ...] = ()) -> tuple[list[str], Pieces]:
    pieces = Pieces(Letters(), stop)  # type: ignore[arg-type]
    said = []
    for byte in text.encode():
        said.append(pieces.push(byte))
        if pieces.stopped:
            break
    return said, pieces


def test_characters_are_shown_whole() -> None:
    said, pieces = shown("aé漢b")
    assert said == ["a", "", "é", "", "", "漢", "b"]
    assert pieces.finish() == ""
    said, pieces = shown("abcdefgh")
    assert said == list("abcdefgh")
    cut = Pieces(Letters())  # type: ignore[arg-type]
    assert [cut.push(byte) for byte in "a漢".encode()[:-1]] == ["a", "", ""]
    assert cut.finish() == "\N{REPLACEMENT CHARACTER}"
    long = Pieces(Letters())  # type: ignore[arg-type]
    assert "".join(long.push(byte) for byte in b"abcdefgh\xe6") == "abcdefgh"
    assert long.finish() == "\N{REPLACEMENT CHARACTER}"
    twice = Pieces(Letters())  # type: ignore[arg-type]
    # the second byte shows that the first is no character
    assert [twice.push(byte) for byte in b"a\xe6\xe6"] == ["a", "", "\N{REPLACEMENT CHARACTER}"]
    assert twice.finish() == "\N{REPLACEMENT CHARACTER}"
    once = Pieces(Letters())  # type: ignore[arg-type]
    assert [once.push(byte) for byte in b"\xe6\xe6a"] == [
        "",
        "\N{REPLACEMENT CHARACTER}",
        "\N{REPLACEMENT CHARACTER}a",
    ]


def test_of_several_stops_the_first_counts() -> None:
    """Also where one id brings them all."""
    pieces = Pieces(Letters(), ("STOP", "END", "x"))  # type: ignore[arg-type]
    assert pieces._release("abENDcdSTOPENDx") == "ab"
    assert pieces.stopped
    held = Pieces(Letters(), ("STOP", "PS"))  # type: ignore[arg-type]
    assert held._release("aSTOP"[:4]) == "a"
    assert held._release("x") == "STOx"
    assert held._release("yP") == "y"
    assert held.finish() == "P"


def test_what_may_be_a_stop_waits() -> None:
    said, pieces = shown("xSTx STOP more", ("STOP", "NOW"))
    assert said == ["x", "", "", "STx", " ", "", "", "", ""]
    assert pieces.stopped
    assert pieces.finish() == ""
    said, pieces = shown("aST", ("STOP",))
    assert said == ["a", "", ""]
    assert not pieces.stopped
    assert pieces.finish() == "ST"
    assert pieces.finish() == ""
    said, pieces = shown("abSTOPcd", ("dx", "b", "STOP"))
    assert said == ["a", ""], "the first stop that is there"
    said, pieces = shown("aSSTOP", ("STOP",))
    assert "".join(said) == "aS"


def test_a_text_with_an_id_that_the_model_lacks_is_refused_whole() -> None:
    """Before anything of it is read; other texts of the same tokenizer are read."""
    last = TOKENIZER.decode([96])
    assert next(list(ids) for ids in parts(f"ab{last}", TOKENIZER, 97)[0])[-1] == 96
    with pytest.raises(ValueError, match="the tokenizer gives the id 96, .* only ids below 96"):
        parts(f"ab{last}", TOKENIZER, 96)
    assert [len(ids) for ids in parts("ab", TOKENIZER, 96)[0]] == [2]
