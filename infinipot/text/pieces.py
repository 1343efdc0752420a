"""From token ids to text: an answer piece by piece, and single tokens as they stand in the
vocabulary."""

from __future__ import annotations

import codecs
import weakref
from collections.abc import Collection, Mapping
from typing import Any

from transformers import PreTrainedTokenizerBase

from infinipot.text.special_tokens import special_ids

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
WINDOW = 32
"""Most ids that are decoded for one new id."""
CONTEXT = 16
"""Ids that stay when there were more."""


def one_each(problem: UnicodeError) -> tuple[str, int]:
    """A replacement character for each byte, as decoders with byte fallback write them."""
    assert isinstance(problem, UnicodeDecodeError)
    return REPLACEMENT * (problem.end - problem.start), problem.end


codecs.register_error("infinipot-one-each", one_each)
_byte_ids: weakref.WeakKeyDictionary[PreTrainedTokenizerBase, dict[int, int]]
_byte_ids = weakref.WeakKeyDictionary()


def byte_ids(tokenizer: PreTrainedTokenizerBase) -> Mapping[int, int]:
    """The byte that each id stands for, in vocabularies that spell rare characters in bytes."""
    if tokenizer not in _byte_ids:
        names = [f"<0x{byte:02X}>" for byte in range(256)]
        ids: Any = tokenizer.convert_tokens_to_ids(names)
        found = {number: byte for byte, number in enumerate(ids) if number is not None}
        spelt = len(found) == 256 and tokenizer.convert_ids_to_tokens(list(found)) == names
        if not (spelt and text_of(tokenizer, [ids[0x41]]) == "A"):
            found = {}
        _byte_ids[tokenizer] = found
    return _byte_ids[tokenizer]


def text_of(tokenizer: PreTrainedTokenizerBase, ids: list[int], *, special: bool = False) -> str:
    """special: with special tokens."""
    return str(
        tokenizer.decode(ids, skip_special_tokens=not special, clean_up_tokenization_spaces=False)
    )


def gpt2_bytes() -> dict[str, int]:
    """The byte that each character stands for in byte-level vocabularies: printable characters of
    Latin-1 stand for themselves, the others for those from 256 on, in order."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + place): byte for place, byte in enumerate(others)
    }


GPT2_BYTES = gpt2_bytes()
ANCHOR = "a"
"""What stands before a piece to show its leading space."""


def is_byte_level(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the pieces of the vocabulary are bytes, written as in GPT-2."""
    if not tokenizer.is_fast:
        return hasattr(tokenizer, "byte_decoder")
    decoder = tokenizer.backend_tokenizer.decoder
    return decoder is not None and b'"ByteLevel"' in decoder.__getstate__()


def piece_bytes(tokenizer: PreTrainedTokenizerBase, token: int) -> bytes:
    """What a piece of the vocabulary stands for within a text, in UTF-8: with its leading space, and
    not always whole characters."""
    if token in byte_ids(tokenizer):
        return bytes([byte_ids(tokenizer)[token]])
    piece = tokenizer.convert_ids_to_tokens(token)
    if piece is None or token in special_ids(tokenizer):
        return text_of(tokenizer, [token], special=True).encode()
    if is_byte_level(tokenizer):
        if all(char in GPT2_BYTES for char in piece):
            return bytes(GPT2_BYTES[char] for char in piece)
        return str(piece).encode()
    before = tokenizer.encode(ANCHOR, add_special_tokens=False)
    text = text_of(tokenizer, [*before, token], special=True)
    return text[len(text_of(tokenizer, before, special=True)) :].encode()


class Characters:
    """The whole characters of ids that come one by one. Together they are what one decoding of all
    ids gives. Each id costs the same, whatever came before."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, spelled: Collection[int] = ()) -> None:
        """spelled: special tokens that are not left out."""
        self.tokenizer = tokenizer
        self.spelled = spelled
        self.byte_ids = byte_ids(tokenizer)
        self.special = special_ids(tokenizer)
        self.window: list[int] = []
        """The newest ids. They begin where no character is cut."""
        self.clean = 0
        """Ids of the window up to the last place at which no character was cut."""
        self.clean_text = 0
        """Characters of the window's text up to there."""
        self.shown = 0
        """Characters of the window's text that were returned."""
        self._bytes = codecs.getincrementaldecoder("utf-8")("infinipot-one-each")
        self._bytes_wait = False

    def push(self, token: int) -> str:
        """The characters that are whole after `token`."""
        if token in self.special:
            if token in self.spelled:
                out = self.finish() + text_of(self.tokenizer, [token], special=True)
                self._restart()
                return out
            if not text_of(self.tokenizer, [token]):
                return ""
        if token in self.byte_ids:
            return self._push_byte(token)
        out = self._flush_bytes()
        self.window.append(token)
        text = text_of(self.tokenizer, self.window)
        whole = max(self.shown, len(text) - text.endswith(REPLACEMENT))
        out += text[self.shown : whole]
        self.shown = whole
        if whole < len(text):
            self._shorten(len(text))
        elif whole > self.clean_text:
            self._begin_window()
        elif len(self.window) > WINDOW:
            self.window.pop()  # it has no text
        return out

    def _restart(self) -> None:
        """A special token has been shown: what follows stands alone."""
        self.window = []
        self.clean = 0
        self.clean_text = 0
        self.shown = 0

    def _push_byte(self, token: int) -> str:
        out = ""
        if not self._bytes_wait:
            out = self.finish()
        self.window.append(token)
        out += self._bytes.decode(bytes([self.byte_ids[token]]))
        self._bytes_wait = bool(self._bytes.getstate()[0])
        if not self._bytes_wait:
            self._begin_window()
        elif len(self.window) > WINDOW:
            self.window = self.window[-CONTEXT:]
            self.clean = 0
        return out

    def _begin_window(self) -> None:
        """All is shown: the ids since the last clean place are enough to decode what follows."""
        self.window = self.window[self.clean :]
        self.clean = len(self.window)
        self.shown = len(text_of(self.tokenizer, self.window))
        self.clean_text = self.shown

    def _shorten(self, length: int) -> None:
        """Bound a window in which every id cuts a character. length: of its text."""
        if len(self.window) > WINDOW:
            waiting = length - self.shown
            self.window = self.window[-CONTEXT:]
            self.clean = 0
            self.clean_text = 0
            self.shown = max(0, len(text_of(self.tokenizer, self.window)) - waiting)

    def _flush_bytes(self) -> str:
        """Bytes that no byte follows are no character."""
        if not self._bytes_wait:
            return ""
        self._bytes_wait = False
        text = self._bytes.decode(b"", final=True)
        self._bytes.reset()
        self.shown = len(text_of(self.tokenizer, self.window))
        return text

    def finish(self) -> str:
        """What is left at the end: characters that are not whole."""
        out = self._flush_bytes()
        text = text_of(self.tokenizer, self.window)
        out += text[self.shown :]
        self.shown = len(text)
        return out


class Pieces:
    """Turns generated ids into text, one id at a time.

    It returns whole characters only. Text that may be the start of a stop text waits.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        stop: tuple[str, ...] = (),
        spelled: Collection[int] = (),
    ) -> None:
        """spelled: special tokens that are not left out."""
        self.stop = stop
        self.stopped = False
        self._characters = Characters(tokenizer, spelled)
        self._waiting = ""

    def push(self, token: int) -> str:
        """The text that can be shown after `token`."""
        return self._release(self._characters.push(token))

    def _release(self, new: str) -> str:
        text = self._waiting + new
        self._waiting = ""
        places = [text.index(stop) for stop in self.stop if stop in text]
        if places:
            self.stopped = True
            return text[: min(places)]
        starts = [
            length
            for stop in self.stop
            for length in range(1, len(stop))
            if text.endswith(stop[:length])
        ]
        cut = len(text) - max(starts, default=0)
        self._waiting = text[cut:]
        return text[:cut]

    def finish(self) -> str:
        """The text that still waits, at the end of the answer."""
        if self.stopped:
            return ""
        text = self._release(self._characters.finish())
        text += self._waiting
        self._waiting = ""
        return text
