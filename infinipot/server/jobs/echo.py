"""Completions that repeat their prompt, with what the model thought of each of its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from infinipot.cache.pot import Pot
from infinipot.engine.cuda_graphs import graph_cache
from infinipot.model.runner import ModelRunner, Observer
from infinipot.server.events import Done, Likely, Piece, likely
from infinipot.server.jobs.answer import Answering

ROWS = 64
"""Logits computed at a time."""


class Listening(ModelRunner):
    """A host that notes the hidden states of every pass, and how many tokens the pot had read before it. The model is that of the host it
    is made from. A recording would pass it by."""

    def __init__(self, host: ModelRunner) -> None:
        self.__dict__.update(host.__dict__)
        graph_cache(self).record_nothing()
        self.heard: list[tuple[int, Tensor, Tensor]] = []

    def read(self, ids: Tensor, pots: Sequence[Pot], observe: Observer | None = None) -> Tensor:
        before = pots[0].tokens_read
        hidden = super().read(ids, pots, observe)
        self.heard.append((before, ids, hidden))
        return hidden


class Echoing(Answering):
    """Like Answering; the prompt comes first, as one piece. silent: no answer follows."""

    host: Listening

    def __init__(self, *args: Any, host: ModelRunner, silent: bool, **options: Any) -> None:
        super().__init__(*args, kept=False, **options)
        self.host, self.silent = Listening(host), silent
        self._last: Tensor | None = None
        self._prompt_likely: list[Likely] = []

    def read(self, most_tokens: int) -> None:
        if not self.pending and self.silent:
            question = self.prompt.question
            self.own.append(question, question=question)
            self.tokens_read += len(question)
            self._listen()
            self._say_prompt()
            self.ended = True
            self.send(Done("length", self.usage()))
        else:
            super().read(most_tokens)
            self._listen()
            if self.turn is not None:
                self._say_prompt()

    def _listen(self) -> None:
        """From hidden states to the probabilities of the prompt's tokens; the first is predicted by nothing."""
        heard, self.host.heard = self.host.heard, []
        ends = [before for before, _, _ in heard[1:]] + [self.own.pot.tokens_read]
        for (start, every, states), end in zip(heard, ends, strict=True):
            if start == end:
                continue  # nothing but a catalyst
            ids, hidden = every[:, : end - start], states[:, : end - start]  # a catalyst may have ridden behind them
            before = hidden[:, :0] if self._last is None else self._last
            rows, self._last = torch.cat((before, hidden[:, :-1]), dim=1), hidden[:, -1:].clone()
            tokens = ids[0].tolist()
            if rows.shape[1] < len(tokens):
                self._prompt_likely.append(Likely(tokens.pop(0), None, []))
            if self.top is None:
                continue
            for start in range(0, len(tokens), ROWS):
                logprobs = self.host.head(rows[:, start : start + ROWS])[0].float().log_softmax(dim=-1)
                self._prompt_likely += [likely(row, token, self.top) for row, token in zip(logprobs, tokens[start : start + ROWS], strict=True)]

    def take(self, token: int | None) -> None:
        self.host.heard = []  # the answer's own tokens, and those of others in the same pass
        super().take(token)

    def _say_prompt(self) -> None:
        whole = self.words.tokenizer.decode(self.prompt.ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        self.send(Piece(str(whole), self._prompt_likely[: len(self.prompt.ids)] if self.top is not None else []))
