"""Completions that repeat their prompt with the probabilities of its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from infinipot.cache.pot import Pot
from infinipot.engine.cuda_graphs import graph_cache, unrecorded
from infinipot.engine.passes import Passes
from infinipot.model.runner import ModelRunner, Observer
from infinipot.server.events import Done, Likely, Piece, Send, likely
from infinipot.server.jobs.answer import AnswerJob, Question
from infinipot.server.prompts import Prompts

ROWS = 64
"""Logits computed at a time."""


class RecordingRunner(ModelRunner):
    """A runner that keeps the ids and hidden states of every pass. It shares the model of another
    runner.

    CUDA graphs would skip the recording, so it uses none.
    """

    def __init__(self, runner: ModelRunner) -> None:
        self.__dict__.update(runner.__dict__)
        graph_cache(self).record_nothing()
        if runner.followers is not None:
            name = f"{unrecorded.__module__}:{unrecorded.__name__}"
            runner.followers.run(name, lambda: self, (runner,), {})
        self.passes: list[tuple[int, Tensor, Tensor]] = []
        """Tokens that the pot had read before the pass, ids, hidden states."""

    def read(
        self,
        ids: Tensor,
        pots: Sequence[Pot],
        observe: Observer | None = None,
        counts: Sequence[int] | None = None,
    ) -> Tensor:
        before = pots[0].tokens_read
        hidden = super().read(ids, pots, observe, counts)
        self.passes.append((before, ids, hidden))
        return hidden


class EchoJob(AnswerJob):
    """An AnswerJob that sends the prompt first, as one piece. silent: no answer follows."""

    runner: RecordingRunner

    def __init__(
        self, question: Question, prompts: Prompts, send: Send, *, runner: ModelRunner, silent: bool
    ) -> None:
        super().__init__(question, prompts, send)
        self.runner = RecordingRunner(runner)
        self.silent = silent
        self._last_hidden: Tensor | None = None
        self._prompt_likely: list[Likely] = []

    def passes(self, max_tokens: int) -> Passes[None]:
        if self.pending or not self.silent:
            yield from super().passes(max_tokens)
            self._score_passes()
            if self.generation is not None:
                self._send_prompt()
            return
        question = self.prompt.question
        self.own_session.append(question, question=question)
        self.tokens_read += len(question)
        self._score_passes()
        self._send_prompt()
        self.ended = True
        self.finish_reason = "length"
        self.send(Done("length", self.usage()))

    def _score_passes(self) -> None:
        """Turn the recorded hidden states into probabilities of the prompt's tokens."""
        passes = self.runner.passes
        self.runner.passes = []
        if not passes:  # a distillation that needed none
            return
        ends = [before for before, _, _ in passes[1:]] + [self.own_session.pot.tokens_read]
        for (start, ids, hidden), end in zip(passes, ends, strict=True):
            if start != end:  # else the pass read a catalyst only
                count = end - start  # a catalyst may follow in the same pass
                self._score(ids[0, :count].tolist(), hidden[:, :count])

    def _score(self, tokens: list[int], hidden: Tensor) -> None:
        before = hidden[:, :0] if self._last_hidden is None else self._last_hidden
        rows = torch.cat((before, hidden[:, :-1]), dim=1)
        self._last_hidden = hidden[:, -1:].clone()
        if rows.shape[1] < len(tokens):  # nothing predicts the first token
            self._prompt_likely.append(Likely(tokens.pop(0), None, []))
        if self.request.top is None:
            return
        for start in range(0, len(tokens), ROWS):
            logits = self.runner.head(rows[:, start : start + ROWS])[0]
            block = tokens[start : start + ROWS]
            for logprobs, token in zip(logits.float().log_softmax(dim=-1), block, strict=True):
                self._prompt_likely.append(likely(logprobs, token, self.request.top))

    def take(self, token: int | None) -> None:
        self.runner.passes = []  # the answer's own tokens, and other answers' in the same pass
        super().take(token)

    def _send_prompt(self) -> None:
        decode: Any = self.prompts.tokenizer.decode
        ids = self.prompt.ids
        text = decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        probabilities = self._prompt_likely[: len(ids)] if self.request.top is not None else []
        self.send(Piece(str(text), probabilities))
