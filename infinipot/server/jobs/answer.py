"""A prompt and its answer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from infinipot.cache.pot import Mark
from infinipot.config import PotConfig
from infinipot.engine.passes import Passes
from infinipot.engine.sampling import Sampler
from infinipot.sampling import Sampling
from infinipot.server.answer_form import PLAIN, AnswerForm
from infinipot.server.events import Done, Likely, Piece, Send, likely, pot_of
from infinipot.server.jobs.base import Job
from infinipot.server.jobs.spoken import Spoken
from infinipot.server.pot_store import PotStore
from infinipot.server.prompts import Prompts
from infinipot.server.stored_pot import StoredPot, digests, scope_of, unknown_pot
from infinipot.server.text_prompts import PotContext, Prompt
from infinipot.session import Session
from infinipot.text.calls.base import Part


@dataclass(frozen=True)
class Question:
    """What a request asks for."""

    config: PotConfig
    prompt: Prompt
    sampling: Sampling
    top: int | None = None
    """How many likeliest tokens to report with each token; None: no probabilities."""
    pot: str | None = None
    """The named pot before the prompt."""
    label: str | None = None
    """The conversation's label."""
    keep: bool = True
    """Whether the pot stays for the conversation's next request."""
    salt: str = ""
    """A secret that the next request must know."""
    form: AnswerForm = PLAIN
    """How tokens are chosen beside the sampling, and how the text is read."""


class AnswerJob(Job):
    """Reads a prompt, then answers."""

    asks = True
    leader: AnswerJob | None = None
    """The job that reads the same prompt for this one, too; None: it reads for itself."""

    def __init__(self, question: Question, prompts: Prompts, send: Send) -> None:
        prompt = question.prompt
        super().__init__(question.config, send, system=prompt.system, templated=prompt.templated)
        self.request = question
        self.prompt = prompt
        self.prompts = prompts
        self.scope = ""
        self.parent: StoredPot | None = None
        self.pot_tokens = 0
        """Tokens that the named pot has read."""
        self.cached_tokens = 0
        """Tokens of the prompt that the conversation's pot has read."""
        form = question.form
        self.spoken = Spoken(prompts.tokenizer, form, question.sampling.stop)
        self.constraint = form.constraint()
        self.followers: list[AnswerJob] = []
        """Other answers to the same prompt that wait for its reading."""
        self.answer_ids: list[int] = []
        self.likely: list[Likely] = []
        self._sent_ids = 0
        self._mark: Mark | None = None

    # ---------------------------------------------------------------- before

    def find(self, store: PotStore) -> StoredPot | Path | None:
        """The conversation's pot, else the named pot."""
        content = ""
        named = None
        request = self.request
        if request.pot is not None:
            named = store.named(request.pot)
            if named is None:
                path = store.file(request.pot)
                if path is None:
                    raise unknown_pot(request.pot)
                return path
            content = named.content
            self.pot_tokens = named.session.stats.tokens_read
        label = request.label or ""
        if self.waits:
            return None
        self.scope = scope_of(self.config, self.templated, content, label, request.salt)
        if not request.keep:
            return named
        return store.find(self.scope, self.prompt.ids, self.skipped_files) or named

    def start(self, session: Session, source: StoredPot | None, store: PotStore) -> None:
        self.session = session
        if self.waits:
            return
        if source is None and self.prompt.exchange is not None:
            session.use_head(
                self.prompt.head
            )  # also with tools, of which the session knows nothing
        if source is not None and source.name is None:
            self.parent = source
            self.cached_tokens = source.key[0]
        ids = self.prompt.ids
        # an empty session reads the head by itself
        first = self.cached_tokens or len(self.prompt.head)
        split = max(first, len(ids) - len(self.prompt.question))
        text = ids[first:split]
        self.question = ids[split:]
        if source is not None and source.context.answered:
            text = self._without_opening(text)
        if text:
            self.pending.append(text)

    def _without_opening(self, text: list[int]) -> list[int]:
        """The text that follows an answer. The session itself reads the ids between both."""
        opening = self.prompt.opening
        if not text or not opening:
            return text
        if text[: len(opening)] == opening and len(text) > len(opening):
            return text[len(opening) :]
        self.own_session.go_on()  # the text has the template's ids for what it is
        return text

    @property
    def tokens_cached(self) -> int:
        return self.pot_tokens + self.cached_tokens

    @property
    def prompt_tokens(self) -> int:
        return self.pot_tokens + len(self.prompt.ids)

    # ---------------------------------------------------------------- reading and answering

    @property
    def waits(self) -> bool:
        """Whether another job still reads the prompt for this one."""
        return self.leader is not None

    @property
    def readable(self) -> bool:
        if self.waits:
            return False
        return bool(self.pending) or (self.generation is None and not self.ended)

    @property
    def remaining_tokens(self) -> int:
        return super().remaining_tokens + len(self.question or ())

    @property
    def answering(self) -> bool:  # type: ignore[override]
        return self.generation is not None

    def passes(self, max_tokens: int) -> Passes[None]:
        """Read a slice of the text; after the text, the question."""
        if self.pending or self.distils:
            yield from super().passes(max_tokens)
            return
        self.share()
        self.generation = yield from self.own_session.generation_passes(
            self.question,
            max_tokens=self.request.sampling.max_tokens,
            keep=True,
            **self._pick(),
        )
        yield from self.generation.passes()
        self._mark = self.own_session.pot.mark()
        self.tokens_read += len(self.question or ())

    def share(self) -> None:
        """Give the session as it is now to those that wait for it."""
        for job in self.followers:
            job.leader = None
            if job.session is None:
                continue  # it has no place yet, and will read for itself
            job.session = self.own_session.fork()
            job.scope = self.scope
            job.question = self.question
            job.pot_tokens = self.pot_tokens
            job.cached_tokens = len(self.prompt.ids) - len(self.question or ())
        self.followers = []

    def _pick(self) -> dict[str, Any]:
        """How tokens are picked: together with those of other answers, unless probabilities must be
        reported."""
        sampler = Sampler(self.request.sampling, self.constraint)
        top = self.request.top
        if top is None:
            return {"pick": sampler}

        def pick(logits: Tensor) -> int:
            token = sampler(logits)
            self.likely.append(likely(logits[0].log_softmax(dim=-1), token, top))
            return token

        return {"pick": pick, "sampler": sampler}

    def take(self, token: int | None) -> None:
        """Take the answer's next token; None: the answer has ended."""
        if token is not None:
            self.answer_ids.append(token)
            self.tokens_generated += 1
            self._send_parts(self.spoken.push(token))
        stopped = token is None or self.spoken.stopped
        if stopped or len(self.answer_ids) >= self.request.sampling.max_tokens:
            self.end_generation()
            self._send_parts(self.spoken.finish(), last=True)
            self.ended = True
            self.finish_reason = self._reason(stopped)
            self.send(Done(self.finish_reason, self.usage()))

    def _reason(self, stopped: bool) -> str:
        """Why the answer ended. Raises APIError if its form was to blame."""
        if self.constraint is not None and self.constraint.problem is not None:
            raise RuntimeError(f"the answer left its form: {self.constraint.problem}")
        if not stopped:
            return "length"
        return "tool_calls" if self.spoken.reply.calls else "stop"

    def _send_parts(self, parts: list[Part], last: bool = False) -> None:
        if parts or (last and self.likely):
            new = len(self.answer_ids) - self._sent_ids
            text = ""
            if not self.spoken.is_read:
                text = "".join(part.content for part in parts)
                parts = []
            self.send(Piece(text, self.likely[:new], tuple(parts)))
            self.likely = self.likely[new:]
            self._sent_ids = len(self.answer_ids)

    def usage(self) -> dict[str, object]:
        """Token counts as OpenAI reports them. Tokens that a pot had read before are `cached`."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": len(self.answer_ids),
            "total_tokens": self.prompt_tokens + len(self.answer_ids),
            "prompt_tokens_details": {"cached_tokens": self.tokens_cached},
            "pot": pot_of(self.own_session),
        }

    # ---------------------------------------------------------------- afterwards

    def keep(self, store: PotStore) -> None:
        if not self.request.keep or not self._match_text():
            return
        ids = self.prompt.ids + self.prompts.reply_ids(self.spoken.reply, self.prompt)
        (key,) = digests(self.scope, ids, [len(ids)])
        context = PotContext(self.system, self.templated, in_text=False, answered=True)
        label = self.request.label
        store.add(StoredPot(self.own_session, key, context, label=label, salt=self.request.salt))
        if self.parent is not None:
            self.parent.superseded = True

    def _match_text(self) -> bool:
        """Make the pot hold the ids that the client will send back. Returns whether it does.

        The generated ids may spell the same text in another way, or go on after a stop text. Then
        the answer is read again as the client will send it, unless a distillation has mixed it in.
        """
        ids = self.prompts.reply_ids(self.spoken.reply, self.prompt)
        if ids == self.answer_ids:
            return True
        pot = self.own_session.pot
        mark = self._mark
        if mark is None:
            return False
        if mark.distillations != pot.distillations:
            # reasoning, and how a call was spelled, may stay mixed in: what the answer says is there
            return not self.spoken.reply.is_text
        pot.rollback(mark)
        reading = self.own_session.stream_ids(
            ids, max_tokens=1, pick=lambda _: -1, stop_ids={-1}, keep=True, aware=False
        )
        for _ in reading:
            pass
        return True
