"""Text to token ids, piece by piece: a stream is never in memory as a whole."""

from __future__ import annotations

import functools
import itertools
import operator
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from infinipot.text.files import files_text, warn_of_name
from infinipot.text.special_tokens import holds_control, plain_encoder, raw_ids

Path = os.PathLike[str]
Text = str | Tensor | Path | Iterable[str] | Iterable[int] | Iterable[Path]

BLOCK = 1 << 14
"""Characters encoded at a time."""
LONGEST = 1 << 20
"""A text without a safe place to cut is cut after this many characters. The two tokens at that cut
may differ from those of the whole text."""


@dataclass(frozen=True)
class Place:
    """Where a text stands."""

    before: str
    """The template's string before the text; empty at the very start."""
    spaces: str
    """The spaces at the text's start, which go with it: a tokenizer merges them with the first
    word."""
    split: Collection[int] | None = None
    """As in `fragment`."""
    start: tuple[int, ...] = ()
    """Ids that stand before the text already."""

    def after_start(self, ids: list[int]) -> list[int]:
        """The first ids of the text, without those that stand before it already."""
        count = len(self.start)
        if count and ids[:count] == list(self.start):
            return ids[count:]
        return ids


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


def fragment(
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    before: str = "\n",
    split: Collection[int] | None = None,
) -> list[int]:
    """The ids of a text that follows `before`, equal to its ids in the whole text.

    before: of the chat template; empty: the text stands alone. split: ids of special tokens that
    are text where `text` spells them; None: all control tokens; empty: none.

    Some tokenizers (SentencePiece) add a space in front of every text they encode, and after every
    special token. The first space is wrong in the middle of a text, so it is left out here. The
    second is kept.
    """
    ids_of: Callable[[str], list[int]] = functools.partial(raw_ids, tokenizer)
    ids = ids_of(text)
    if holds_control(tokenizer, ids, split):
        plain = plain_encoder(tokenizer)
        ids_of = plain.encode
        before = plain.mask(before)
        ids = ids_of(text)
    # a newline of one token: this tokenizer adds no space
    if not ids or not before or (before == "\n" and len(ids_of("\n")) < 2):
        return ids
    for other in (before, "\n", "."):  # use the first one that does not merge with the text
        lead = ids_of(other)
        behind = ids_of(other + text)
        if behind[: len(lead)] == lead:
            return behind[len(lead) :]
    return ids


def encode(
    tokenizer: PreTrainedTokenizerBase,
    pieces: Iterable[str],
    before: str = "",
    split: Collection[int] | None = None,
) -> Iterator[list[int]]:
    """The token ids of all pieces together, in lists.

    The ids are the same as if the pieces were joined and encoded at once. before, split: as in
    `fragment`. At most LONGEST characters are in memory.
    """

    def ids(text: str) -> list[int]:
        return fragment(tokenizer, text, before, split)

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


def check_embedded(ids: Sequence[int], embeddings: int) -> None:
    """Raise ValueError for an id from a tokenizer that the model has no embedding for. embeddings:
    how many it has."""
    if ids and max(ids) >= embeddings:
        raise ValueError(
            f"the tokenizer gives the id {max(ids)}, but the model knows only ids below "
            f"{embeddings}: use the model's own tokenizer, or call "
            "model.resize_token_embeddings(len(tokenizer)) and train the new rows"
        )


def _as_int(value: Any) -> Any:
    """A whole number of any type (NumPy, torch) as int; everything else unchanged."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        return value
    try:
        return operator.index(value)
    except TypeError:  # an array of several numbers
        return value


def parts(
    text: Text,
    tokenizer: PreTrainedTokenizerBase | None,
    vocabulary: int,
    place: Callable[[], Place] = lambda: Place("\n", ""),
) -> tuple[Iterator[list[int]], bool]:
    """The text as lists of ids, and whether it was ids already. A stream is encoded as it arrives,
    and paths stand for their files.

    place: where the text stands. It is called when the first ids are requested.
    """
    if isinstance(text, Tensor) or is_array(text):
        return iter([checked(flat(text), vocabulary)]), True  # type: ignore[arg-type]
    pieces = pieces_of(text)
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
    if isinstance(text, str):  # a stream is checked while it is read
        _check_whole(text, tokenizer, vocabulary)
    return _encoded(tokenizer, whole, place), False


def _check_whole(text: str, tokenizer: PreTrainedTokenizerBase, vocabulary: int) -> None:
    """Raise ValueError for a text with a token that has no embedding, before anything is read."""
    largest = max([len(tokenizer) - 1, *tokenizer.added_tokens_decoder])
    if largest >= vocabulary:
        for ids in encode(tokenizer, [text]):
            check_embedded(ids, vocabulary)


def pieces_of(text: Any) -> Iterator[Any]:
    """The strings or the ids of a text; paths stand for their files. Raises TypeError for anything
    else."""
    if isinstance(text, os.PathLike):
        text = (text,)
    if isinstance(text, (bytes, bytearray, Mapping)) or not hasattr(text, "__iter__"):
        raise TypeError(
            "a text must be str, a Path, token ids, or an iterator of str, "
            f"not {type(text).__name__}"
        )
    if isinstance(text, str):
        warn_of_name(text)
        return iter([text])
    pieces = iter(text)
    first = next(pieces, None)
    if isinstance(first, bytes):
        raise TypeError(
            "a text must be str, but this iterator yields bytes: open the file as text, "
            "open(path, encoding='utf-8'), or give its Path"
        )
    if first is None:
        return pieces
    whole = itertools.chain([first], pieces)
    if isinstance(first, os.PathLike):
        return files_text(whole)
    return whole


def is_array(ids: Any) -> bool:
    """Whether this is a NumPy array of numbers. An array of texts is a stream of them."""
    return isinstance(ids, np.ndarray) and ids.dtype.kind in "biuf"


def flat(ids: Tensor | Iterable[int]) -> list[int]:
    """The ids of a list, or of a tensor or array [T] or [1, T]. Raises ValueError for other shapes,
    and for what is not a whole number."""
    if is_array(ids):
        ids = torch.as_tensor(ids)
    if not isinstance(ids, Tensor):
        whole_ids = [_as_int(i) for i in ids]
        wrong = next((i for i in whole_ids if type(i) is not int), None)
        if wrong is not None:
            raise ValueError(f"{wrong!r} is not a token id: ids are whole numbers")
        return whole_ids
    whole = ids.dtype is not torch.bool and not ids.is_floating_point()
    if not whole or not 1 <= ids.dim() <= 2 or (ids.dim() == 2 and ids.shape[0] != 1):
        raise ValueError(
            "token ids must be whole numbers of shape [T] or [1, T], not "
            f"{ids.dtype} {tuple(ids.shape)}"
        )
    return ids.flatten().tolist()


def _encoded(
    tokenizer: PreTrainedTokenizerBase, pieces: Iterable[str], place: Callable[[], Place]
) -> Iterator[list[int]]:
    """The ids of a text at its place, which is asked for when the first ids are requested."""
    here = place()
    ids = encode(tokenizer, itertools.chain([here.spaces], pieces), here.before, here.split)
    yield here.after_start(next(ids, []))
    yield from ids
