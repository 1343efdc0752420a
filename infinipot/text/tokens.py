"""Text to tokens and back, piece by piece: a stream is never in memory as a whole."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

Text = str | Tensor | Iterable[str] | Iterable[int]

BLOCK = 1 << 14
"""Characters encoded at a time."""
LONGEST = 1 << 20
"""A text without a safe place to cut is cut after this many characters. The two tokens at that cut
may differ from those of the whole text."""


def boundary(text: str) -> int:
    """The last place where a text can be cut without a change of its tokens; 0 if there is none.

    Two places are safe: between a letter or digit and a following space or newline, and between a
    newline and a following character that is not white space. No tokenizer in use merges across
    them.
    """
    for place in range(len(text) - 1, 0, -1):
        here = text[place]
        before = text[place - 1]
        if (here in " \n" and before.isalnum()) or (before == "\n" and not here.isspace()):
            return place
    return 0


def fragment(tokenizer: PreTrainedTokenizerBase, text: str, before: str = "\n") -> list[int]:
    """The ids of a text that follows `before`, equal to its ids in the whole text.

    Some tokenizers (SentencePiece) add a space in front of every text they encode, and after every
    special token. The first space is wrong in the middle of a text, so it is left out here. The
    second is kept.
    """
    ids = list(tokenizer.encode(text, add_special_tokens=False))
    # a newline of one token: this tokenizer adds no space
    if not ids or (before == "\n" and len(tokenizer.encode("\n", add_special_tokens=False)) < 2):
        return ids
    for other in (before, "\n", "."):  # use the first one that does not merge with the text
        lead = list(tokenizer.encode(other, add_special_tokens=False))
        behind = list(tokenizer.encode(other + text, add_special_tokens=False))
        if behind[: len(lead)] == lead:
            return behind[len(lead) :]
    return ids


def encode(
    tokenizer: PreTrainedTokenizerBase, pieces: Iterable[str], before: str = ""
) -> Iterator[list[int]]:
    """The token ids of all pieces together, in lists.

    The ids are the same as if the pieces were joined and encoded at once, without special tokens.
    before: the text that the pieces follow, empty for none. At most LONGEST characters are in
    memory.
    """

    def ids(text: str) -> list[int]:
        if before:
            return fragment(tokenizer, text, before)
        return list(tokenizer.encode(text, add_special_tokens=False))

    waiting: list[str] = []
    count = 0
    enough = BLOCK
    for block in _blocks(pieces):
        waiting.append(block)
        count += len(block)
        if count <= enough:
            continue
        text = "".join(waiting)
        cut = boundary(text)
        if not cut and count > LONGEST:
            cut = len(text)
        if cut:
            yield ids(text[:cut])
            before = "\n"
            enough = BLOCK
        else:
            enough = 2 * count  # search again at twice the length, not at every piece
        waiting = [text[cut:]]
        count = len(waiting[0])
    if count:
        yield ids("".join(waiting))


def _blocks(pieces: Iterable[str]) -> Iterator[str]:
    """The pieces, none longer than BLOCK."""
    for piece in pieces:
        if not isinstance(piece, str):
            raise TypeError(
                f"a stream of text must yield str, not {type(piece).__name__}: {piece!r:.60}"
            )
        for start in range(0, len(piece), BLOCK):
            yield piece[start : start + BLOCK]


def checked(ids: Iterable[int], vocabulary: int) -> list[int]:
    """The ids as a list. Raises ValueError for an id that the model does not have."""
    whole = [_as_int(i) for i in ids]
    for i in whole:
        if type(i) is not int or not 0 <= i < vocabulary:
            raise ValueError(
                f"{i!r} is not a token id of this model: ids are whole numbers from 0 to "
                f"{vocabulary - 1}"
            )
    return whole


def _as_int(value: Any) -> Any:
    """A whole number of any type (NumPy, torch) as int; everything else unchanged."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        return value
    return operator.index(value)


def parts(
    text: Text,
    tokenizer: PreTrainedTokenizerBase | None,
    vocabulary: int,
    place: Callable[[], tuple[str, str]] = lambda: ("\n", ""),
) -> tuple[Iterator[list[int]], bool]:
    """The text as lists of ids, and whether it was ids already. A stream is encoded as it arrives.

    place: returns the string before the text and the spaces at the text's start. It is called when
    the first ids are requested.
    """
    if isinstance(text, (bytes, bytearray, Mapping)) or not hasattr(text, "__iter__"):
        raise TypeError(
            f"a text must be str, token ids, or an iterator of str, not {type(text).__name__}"
        )
    if isinstance(text, Tensor):
        return iter([checked(_flat(text), vocabulary)]), True
    pieces: Iterator[Any] = iter([text]) if isinstance(text, str) else iter(text)
    first = next(pieces, None)
    if first is None:
        return iter([]), True
    whole = itertools.chain([first], pieces)
    if not isinstance(first, str):
        return iter([checked(whole, vocabulary)]), True
    if tokenizer is None:
        raise ValueError(
            "the session has no tokenizer to encode this text: pass a tokenizer, or pass token ids"
        )
    if isinstance(text, str) and not text:
        return iter([]), False
    return _encoded(tokenizer, whole, place), False


def _flat(ids: Tensor) -> list[int]:
    """The ids of a tensor [T] or [1, T]."""
    whole = ids.dtype is not torch.bool and not ids.is_floating_point()
    if not whole or ids.dim() > 2 or (ids.dim() == 2 and ids.shape[0] != 1):
        raise ValueError(
            "token ids must be whole numbers of shape [T] or [1, T], not "
            f"{ids.dtype} {tuple(ids.shape)}"
        )
    return ids.flatten().tolist()


def _encoded(
    tokenizer: PreTrainedTokenizerBase, pieces: Iterable[str], place: Callable[[], tuple[str, str]]
) -> Iterator[list[int]]:
    """The ids of a text at its place. `place` is called when the first ids are requested."""
    before, spaces = place()
    yield from encode(tokenizer, itertools.chain([spaces], pieces), before)


class Pieces:
    """Turns generated ids into text, one id at a time.

    It returns whole characters only. Text that may be the start of a stop text waits.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stop: tuple[str, ...] = ()) -> None:
        self.tokenizer = tokenizer
        self.stop = stop
        self.ids: list[int] = []
        self.done = 0
        """How many ids have been decoded to whole characters."""
        self._waiting = ""
        self.stopped = False

    def _decode(self, ids: list[int]) -> str:
        return str(
            self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        )

    def push(self, token: int) -> str:
        """The text that can be shown after `token`."""
        self.ids.append(token)
        # decode with a few ids of context: a tokenizer may decode the first id differently
        start = max(0, self.done - 4)
        before = self._decode(self.ids[start : self.done])
        text = self._decode(self.ids[start:])
        if text.endswith("\N{REPLACEMENT CHARACTER}"):
            return ""  # in the middle of a character
        self.done = len(self.ids)
        return self._release(text[len(before) :])

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
        out = self._waiting
        if not self.stopped and self.done < len(self.ids):
            start = max(0, self.done - 4)
            before = self._decode(self.ids[start : self.done])
            out += self._decode(self.ids[start:])[len(before) :]
        self._waiting = ""
        return out
