"""An answer as text, piece by piece."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing

from infinipot.text.pieces import Pieces


class Answer(Iterator[str]):
    """An answer as an iterator of text pieces. The session is free again once it is dropped, at any
    piece.

    ids: its tokens so far. finish_reason: None while it runs, then `stop` (an end token or a stop
    text) or `length` (max_tokens).
    """

    def __init__(self, tokens: Generator[int, None, None], pieces: Pieces, max_tokens: int) -> None:
        self.ids: list[int] = []
        self.reasons: list[str] = []
        """Empty while the answer runs, then its finish_reason. Whoever keeps this list does not keep
        the answer."""
        self._run = _decode(tokens, pieces, max_tokens, self.ids, self.reasons)

    @property
    def finish_reason(self) -> str | None:
        return next(iter(self.reasons), None)

    def __next__(self) -> str:
        return next(self._run)

    def close(self) -> None:
        """Stop here: the session is free again."""
        self._run.close()


def _decode(
    tokens: Generator[int, None, None],
    pieces: Pieces,
    max_tokens: int,
    ids: list[int],
    reasons: list[str],
) -> Generator[str, None, None]:
    """Yield the pieces, and append to `ids` and `reasons`. A function of its own, so that no
    reference cycle keeps a dropped `Answer` alive."""
    with closing(tokens):
        for token in tokens:
            ids.append(token)
            if piece := pieces.push(token):
                yield piece
            if pieces.stopped:
                break
        if len(ids) == max_tokens and not pieces.stopped:
            reasons.append("length")
        else:
            reasons.append("stop")
    if piece := pieces.finish():
        yield piece
