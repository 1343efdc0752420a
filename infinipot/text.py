"""Text in and out of tokens, piece by piece: a stream is never held whole."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from torch import Tensor
from transformers import PreTrainedTokenizerBase

Text = str | Tensor | Iterable[str] | Iterable[int]

BLOCK = 1 << 14
"""Characters encoded at a time."""


def boundary(text: str) -> int:
    """The last place at which a text may be cut so that its two parts encode to what the whole would: 0 if there is none.

    Every tokenizer in use splits, or never merges, between a letter or digit and the space or newline that follows it.
    """
    for place in range(len(text) - 1, 0, -1):
        if text[place] in " \n" and text[place - 1].isalnum():
            return place
    return 0


def swallows_space(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the tokenizer puts a space of its own before a text (SentencePiece's dummy prefix)."""
    apart = [*tokenizer.encode("a", add_special_tokens=False), *tokenizer.encode("b", add_special_tokens=False)]
    return bool(list(tokenizer.encode("a b", add_special_tokens=False)) == apart)


def encode(tokenizer: PreTrainedTokenizerBase, pieces: Iterable[str]) -> Iterator[list[int]]:
    """Token ids of the pieces' concatenation, in lists, the same as if it had been encoded at once; no special tokens are added."""
    drop_space = swallows_space(tokenizer)
    held, first = "", True

    def ids(text: str) -> list[int]:
        # a part that starts where the text was cut starts with the space that a dummy prefix would double
        part = text[1:] if drop_space and not first and text.startswith(" ") else text
        return list(tokenizer.encode(part, add_special_tokens=False))

    for piece in pieces:
        if not isinstance(piece, str):
            raise TypeError(f"a stream of text must yield str, not {type(piece).__name__}: {piece!r:.60}")
        held += piece
        while len(held) > BLOCK:
            cut = boundary(held[:BLOCK]) or boundary(held)
            if not cut:
                break
            yield ids(held[:cut])
            held, first = held[cut:], False
    if held:
        yield ids(held)


def checked(ids: Iterable[int], vocabulary: int) -> list[int]:
    """The ids as a list; ValueError if one is not an id of this model."""
    listed = list(ids)
    wrong = next((i for i in listed if not isinstance(i, int) or not 0 <= i < vocabulary), None)
    if wrong is not None:
        raise ValueError(f"{wrong!r} is not a token id of this model: ids are whole numbers from 0 to {vocabulary - 1}")
    return listed


def parts(text: Text, tokenizer: PreTrainedTokenizerBase | None, vocabulary: int) -> tuple[Iterator[list[int]], bool]:
    """The text as lists of ids, and whether it came as ids. A stream of str is encoded as it comes."""
    if isinstance(text, Tensor):
        if text.is_floating_point() or text.dim() > 2 or (text.dim() == 2 and text.shape[0] != 1):
            raise ValueError(f"token ids must be whole numbers of shape [T] or [1, T], not {text.dtype} {tuple(text.shape)}")
        return iter([checked(text.flatten().tolist(), vocabulary)]), True
    pieces = iter([text]) if isinstance(text, str) else iter(text)
    first = next(pieces, "")
    whole = itertools.chain([first], pieces)
    if not isinstance(first, str):
        return iter([checked(whole, vocabulary)]), True  # type: ignore[arg-type]
    if tokenizer is None:
        raise ValueError("a text is given, but the session has no tokenizer: pass one, or token ids")
    return encode(tokenizer, whole), False  # type: ignore[arg-type]


class Pieces:
    """Turns generated ids into text as they come: whole characters only, held back while a stop text might be beginning."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stop: tuple[str, ...] = ()) -> None:
        self.tokenizer, self.stop = tokenizer, stop
        self.ids: list[int] = []
        self.done = 0
        """How many ids are wholly in `text`; earlier ones give the tokenizer its context."""
        self.held = ""
        self.stopped = False

    def _decode(self, ids: list[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def push(self, token: int) -> str:
        """Text that may be shown now that `token` has come."""
        self.ids.append(token)
        start = max(0, self.done - 4)  # a few ids of context: a tokenizer may treat the first one otherwise
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
            out, self.held = self.held[: min(found)], ""
            return out
        keep = max((n for text in self.stop for n in range(1, len(text)) if self.held.endswith(text[:n])), default=0)
        cut = len(self.held) - keep
        out, self.held = self.held[:cut], self.held[cut:]
        return out

    def finish(self) -> str:
        """What was held back, when nothing more will come."""
        out = self.held
        if not self.stopped and self.done < len(self.ids):
            start = max(0, self.done - 4)
            out += self._decode(self.ids[start:])[len(self._decode(self.ids[start : self.done])) :]
        self.held = ""
        return out
