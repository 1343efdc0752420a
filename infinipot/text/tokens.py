"""Text in and out of tokens, piece by piece: a stream is never held whole."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

Text = str | Tensor | Iterable[str] | Iterable[int]

BLOCK = 1 << 14
"""Characters encoded at a time."""
LONGEST = 1 << 20
"""A text without any place to cut is cut after so many characters all the same; two tokens there
may differ from the whole's."""


def boundary(text: str) -> int:
    """The last place at which a text may be cut so that its two parts encode to what the whole
    would: 0 if there is none.

    Every tokenizer in use splits, or never merges, between a letter or digit and the space or
    newline behind it, and between a newline and what is no white space.
    """
    for place in range(len(text) - 1, 0, -1):
        here = text[place]
        before = text[place - 1]
        if (here in " \n" and before.isalnum()) or (before == "\n" and not here.isspace()):
            return place
    return 0


def fragment(tokenizer: PreTrainedTokenizerBase, text: str, before: str = "\n") -> list[int]:
    """The ids of a text that stands behind another, as they are in the whole: without the space
    that some tokenizers (SentencePiece) put before a text, with the one that they put behind a
    special token."""
    ids = list(tokenizer.encode(text, add_special_tokens=False))
    # then nothing is put before a text
    if not ids or (before == "\n" and len(tokenizer.encode("\n", add_special_tokens=False)) < 2):
        return ids
    for other in (before, "\n", "."):  # the first with which it does not merge
        lead = list(tokenizer.encode(other, add_special_tokens=False))
        behind = list(tokenizer.encode(other + text, add_special_tokens=False))
        if behind[: len(lead)] == lead:
            return behind[len(lead) :]
    return ids


def encode(
    tokenizer: PreTrainedTokenizerBase, pieces: Iterable[str], before: str = ""
) -> Iterator[list[int]]:
    """Token ids of the pieces' concatenation, in lists, the same as if it had been encoded at once;
    no special tokens are added.

    before: what the text stands behind; nothing if empty. Not more than LONGEST characters are
    held.
    """

    def ids(text: str) -> list[int]:
        if before:
            return fragment(tokenizer, text, before)
        return list(tokenizer.encode(text, add_special_tokens=False))

    held: list[str] = []
    count = 0
    enough = BLOCK
    for piece in pieces:
        if not isinstance(piece, str):
            raise TypeError(
                f"a stream of text must yield str, not {type(piece).__name__}: {piece!r:.60}"
            )
        for start in range(0, len(piece), BLOCK):
            held.append(piece[start : start + BLOCK])
            count += len(held[-1])
            if count <= enough:
                continue
            text = "".join(held)
            cut = boundary(text) or (len(text) if count > LONGEST else 0)
            if cut:
                yield ids(text[:cut])
                before = "\n"
                enough = BLOCK
            else:
                enough = 2 * count  # look again when there is twice as much: not at every piece
            held = [text[cut:]]
            count = len(held[0])
    if count:
        yield ids("".join(held))


def checked(ids: Iterable[int], vocabulary: int) -> list[int]:
    """The ids as a list; ValueError if one is not an id of this model."""
    listed = [
        i if isinstance(i, bool) or not hasattr(i, "__index__") else operator.index(i) for i in ids
    ]
    wrong = next((i for i in listed if type(i) is not int or not 0 <= i < vocabulary), None)
    if wrong is not None:
        raise ValueError(
            f"{wrong!r} is not a token id of this model: ids are whole numbers from 0 to {vocabulary - 1}"
        )
    return listed


def parts(
    text: Text,
    tokenizer: PreTrainedTokenizerBase | None,
    vocabulary: int,
    place: Callable[[], tuple[str, str]] = lambda: ("\n", ""),
) -> tuple[Iterator[list[int]], bool]:
    """The text as lists of ids, and whether it came as ids. A stream of str is encoded as it comes.

    place: asked when the first ids are, what the text stands behind and with which spaces it
    begins.
    """
    if isinstance(text, (bytes, bytearray, Mapping)) or not hasattr(text, "__iter__"):
        raise TypeError(
            f"a text must be str, token ids, or an iterator of str, not {type(text).__name__}"
        )
    if isinstance(text, Tensor):
        if (
            text.dtype is torch.bool
            or text.is_floating_point()
            or text.dim() > 2
            or (text.dim() == 2 and text.shape[0] != 1)
        ):
            raise ValueError(
                f"token ids must be whole numbers of shape [T] or [1, T], not {text.dtype} {tuple(text.shape)}"
            )
        return iter([checked(text.flatten().tolist(), vocabulary)]), True
    if isinstance(text, str):
        pieces = iter([text])
    else:
        pieces = iter(text)
    first = next(pieces, None)
    if first is None:
        return iter([]), not isinstance(text, str)
    whole = itertools.chain([first], pieces)
    if not isinstance(first, str):
        return iter([checked(whole, vocabulary)]), True  # type: ignore[arg-type]
    if tokenizer is None:
        raise ValueError(
            "a text is given, but the session has no tokenizer: pass one, or token ids"
        )

    def placed() -> Iterator[list[int]]:
        before, spaces = place()
        yield from encode(tokenizer, itertools.chain([spaces], whole) if text else [], before)  # type: ignore[arg-type]

    return placed(), False


class Pieces:
    """Turns generated ids into text as they come: whole characters only, held back while a stop
    text might be beginning."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stop: tuple[str, ...] = ()) -> None:
        self.tokenizer = tokenizer
        self.stop = stop
        self.ids: list[int] = []
        self.done = 0
        """How many ids are wholly in `text`; earlier ones give the tokenizer its context."""
        self.held = ""
        self.stopped = False

    def _decode(self, ids: list[int]) -> str:
        return str(
            self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        )

    def push(self, token: int) -> str:
        """Text that may be shown now that `token` has come."""
        self.ids.append(token)
        # a few ids of context: a tokenizer may treat the first one otherwise
        start = max(0, self.done - 4)
        shown = self._decode(self.ids[start : self.done])
        text = self._decode(self.ids[start:])
        if text.endswith("\N{REPLACEMENT CHARACTER}"):
            return ""  # in the middle of a character
        self.done = len(self.ids)
        return self._release(text[len(shown) :])

    def _release(self, new: str) -> str:
        self.held += new
        found = [self.held.index(text) for text in self.stop if text in self.held]
        if found:
            self.stopped = True
            out = self.held[: min(found)]
            self.held = ""
            return out
        keep = max(
            (n for text in self.stop for n in range(1, len(text)) if self.held.endswith(text[:n])),
            default=0,
        )
        cut = len(self.held) - keep
        out = self.held[:cut]
        self.held = self.held[cut:]
        return out

    def finish(self) -> str:
        """What was held back, when nothing more will come."""
        out = self.held
        if not self.stopped and self.done < len(self.ids):
            start = max(0, self.done - 4)
            out += self._decode(self.ids[start:])[len(self._decode(self.ids[start : self.done])) :]
        self.held = ""
        return out
