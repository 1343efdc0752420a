"""A prompt and its answer, and the pot that both leave behind."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from infinipot.cache.pot import Mark
from infinipot.config import PotConfig, Sampling
from infinipot.engine.sampling import Sampler
from infinipot.server.events import Done, Likely, Piece, Send, likely, pot_of
from infinipot.server.jobs.base import Work
from infinipot.server.pot_store import Held, Shelf, digests, scope_of, unknown
from infinipot.server.prompts import Behind, Prompt, Words
from infinipot.session import Session
from infinipot.text.tokens import Pieces


class Answering(Work):
    """Reads a prompt, then answers.

    reserved: whether the pot is distilled beforehand if prompt and max_tokens do not fit; else only when it is full. top: how many likeliest
    tokens are wanted with each of the answer's; None for no probabilities. pot: the named pot that stands before the prompt. label: the
    conversation's. kept: whether its pot stays, for what continues it. salt: only what knows it continues it.
    """

    def __init__(
        self,
        config: PotConfig,
        prompt: Prompt,
        sampling: Sampling,
        words: Words,
        send: Send,
        *,
        reserved: bool = True,
        top: int | None = None,
        pot: str | None = None,
        label: str | None = None,
        kept: bool = True,
        salt: str = "",
    ) -> None:
        super().__init__(config, send, system=prompt.system, templated=prompt.templated)
        self.prompt, self.sampling, self.words = prompt, sampling, words
        self.reserved, self.top, self.pot, self.label, self.kept = reserved, top, pot, label, kept
        self.salt = salt
        self.scope = ""
        self.parent: Held | None = None
        self.before_tokens = self.cached_tokens = 0
        """Tokens that the named pot had read; tokens of the prompt that the conversation's own pot had read."""
        self.sampler = Sampler(sampling)
        self.pieces = Pieces(words.tokenizer, sampling.stop)
        self.said: list[int] = []
        self.text = ""
        self.likely: list[Likely] = []
        self._shown = 0
        self._mark: Mark | None = None

    # ---------------------------------------------------------------- before

    def find(self, shelf: Shelf) -> Held | Path | None:
        """The conversation's own pot, else the named one that the request is about."""
        content, named = "", None
        if self.pot is not None:
            named = shelf.named(self.pot)
            if named is None:
                path = shelf.file(self.pot)
                if path is None:
                    raise unknown(self.pot)
                return path
            content, self.before_tokens = named.content, named.session.stats.tokens_read
        self.scope = scope_of(self.config, self.templated, content, self.label or "", self.salt)
        return (shelf.find(self.scope, self.prompt.ids, self.passed) if self.kept else None) or named

    def start(self, session: Session, source: Held | None, shelf: Shelf) -> None:
        self.session = session
        if source is not None and source.name is None:
            self.parent, self.cached_tokens = source, source.key[0]
        ids = self.prompt.ids
        first = self.cached_tokens or len(self.prompt.head)  # an empty session reads the head by itself
        split = max(first, len(ids) - len(self.prompt.question))
        text, question = ids[first:split], ids[split:]
        turn = self.prompt.turn
        if text and turn and source is not None and source.behind.answered:  # the session itself leads from an answer to the next text
            if text[: len(turn)] == turn and len(text) > len(turn):
                text = text[len(turn) :]
            else:
                text, question = [], text + question
        self.question = question
        if text:
            self.pending.append(text)

    # ---------------------------------------------------------------- reading and answering

    @property
    def readable(self) -> bool:
        return bool(self.pending) or (self.turn is None and not self.ended)

    @property
    def answering(self) -> bool:  # type: ignore[override]
        return self.turn is not None

    def read(self, most_tokens: int) -> None:
        """Read a slice of the text; when there is none left, the question."""
        if self.pending:
            super().read(most_tokens)
            return
        wanted = self.sampling.max_tokens if self.reserved else max(self.sampling.max_tokens, self.config.pot_size)
        self.turn = self.own.turn(self.question, max_tokens=wanted, pick=self._pick, keep=True)
        self.turn.begin()
        self.tokens_read += len(self.question or ())

    def _pick(self, logits: Tensor) -> int:
        if self._mark is None:
            self._mark = self.own.pot.mark()
        token = self.sampler(logits)
        if self.top is not None:
            self.likely.append(likely(logits[0].float().log_softmax(dim=-1), token, self.top))
        return token

    def take(self, token: int | None) -> None:
        """The answer's next token; None: it has ended."""
        if token is not None:
            self.said.append(token)
            self.tokens_said += 1
            self._show(self.pieces.push(token))
        if token is None or self.pieces.stopped or len(self.said) >= self.sampling.max_tokens:
            self.end_turn()
            self._show(self.pieces.finish())
            self.ended = True
            self.send(Done("stop" if token is None or self.pieces.stopped else "length", self.usage()))

    def _show(self, text: str) -> None:
        if text:
            self.text += text
            new = len(self.said) - self._shown
            self.send(Piece(text, self.likely[:new]))
            self.likely = self.likely[new:]
            self._shown = len(self.said)

    def usage(self) -> dict[str, object]:
        """Tokens as OpenAI counts them: those of the prompt that some pot had read before are `cached`."""
        prompt = self.before_tokens + len(self.prompt.ids)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": len(self.said),
            "total_tokens": prompt + len(self.said),
            "prompt_tokens_details": {"cached_tokens": self.before_tokens + self.cached_tokens},
            "pot": pot_of(self.own),
        }

    # ---------------------------------------------------------------- afterwards

    def keep(self, shelf: Shelf) -> None:
        if not self.kept or not self._settle():
            return
        ids = self.prompt.ids + self.words.said(self.text, self.prompt.place)
        (key,) = digests(self.scope, ids, [len(ids)])
        behind = Behind(self.system, self.templated, in_text=False, answered=True)
        shelf.put(Held(self.own, key, behind, label=self.label, salt=self.salt))
        if self.parent is not None:
            self.parent.spent = True

    def _settle(self) -> bool:
        """See to it that the pot has read what the client will send back. Returns whether it has.

        What was generated may stand for the same text in other ids, or go on behind a stop text. Then the answer is read again as the client
        will send it, unless a distillation has mixed it with the rest.
        """
        ids = self.words.said(self.text, self.prompt.place)
        if ids == self.said:
            return True
        pot, mark = self.own.pot, self._mark
        if mark is None or mark.distillations != pot.distillations:
            return False
        pot.rollback(mark)
        for _ in self.own.stream_ids(ids, max_tokens=1, pick=lambda _: -1, stop_ids={-1}, keep=True, aware=False):
            pass
        return True
