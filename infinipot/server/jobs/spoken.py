"""What an answer says so far: its tokens as text, its text as reasoning, calls and the rest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from transformers import PreTrainedTokenizerBase

from infinipot.server.answer_form import AnswerForm
from infinipot.text.calls.base import Part
from infinipot.text.exchange import new_id
from infinipot.text.pieces import Pieces
from infinipot.text.reply import Reply


class Spoken:
    """Turns the tokens of an answer into parts."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, form: AnswerForm, stop: tuple[str, ...]
    ) -> None:
        self.reply = Reply()
        self._form = form
        self._pieces = Pieces(tokenizer, stop, form.spelled)
        self._reader = form.reader()
        self._over = False
        """Whether something followed the only call asked for."""

    @property
    def is_read(self) -> bool:
        """Whether the text may hold more than text."""
        return self._reader is not None

    @property
    def stopped(self) -> bool:
        """Whether the answer ends here: at a stop text, or where something follows the only call
        asked for."""
        return self._pieces.stopped or self._over

    def push(self, token: int) -> list[Part]:
        """The parts that can be shown after `token`."""
        return self._parts(self._pieces.push(token), last=False)

    def finish(self) -> list[Part]:
        """What still waits, at the end of the answer."""
        return self._parts(self._pieces.finish(), last=True)

    def _parts(self, text: str, last: bool) -> list[Part]:
        if self._reader is None:
            parts = [Part(content=text)] if text else []
        else:
            parts = self._reader.push(text, last)
        if self._form.single_call:
            kept = list(up_to_one_call(parts, bool(self.reply.calls)))
            self._over = self._over or len(kept) < len(parts)
            parts = kept
        if self._form.hides_reasoning:
            parts = [part for part in parts if not part.reasoning]
        named = [replace(part, id=new_id()) if part.name is not None else part for part in parts]
        for part in named:
            self.reply.add(part)
        return named


def up_to_one_call(parts: Sequence[Part], called: bool) -> Iterator[Part]:
    """The parts without second calls, and without text behind a call. called: whether there was one
    before."""
    for part in parts:
        called = called or part.call is not None
        if part.call == 0 or not called:
            yield part
