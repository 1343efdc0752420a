"""Completions that repeat their prompt, with what the model thought of each of its tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from infinipot.host import Host, Observer
from infinipot.server.answering import Answering
from infinipot.server.events import Done, Likely, Piece, likely

ROWS = 64
"""Logits computed at a time."""


class Listening(Host):
    """A host that notes the hidden states of what is read, catalysts aside. The model is that of the host it is made from."""

    def __init__(self, host: Host) -> None:
        self.__dict__.update(host.__dict__)
        self.heard: list[tuple[Tensor, Tensor]] = []

    def read(self, ids: Tensor, pot: Any, observe: Observer | None = None) -> Tensor:
        hidden = super().read(ids, pot, observe)
        if observe is None:
            self.heard.append((ids, hidden))
        return hidden


class Echoing(Answering):
    """Like Answering; the prompt comes first, as one piece. silent: no answer follows."""

    host: Listening

    def __init__(self, *args: Any, host: Host, silent: bool, **options: Any) -> None:
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
        elif not self.pending:
            super().read(most_tokens)
        else:
            super().read(most_tokens)
            self._listen()

    def _listen(self) -> None:
        """From hidden states to the probabilities of the prompt's tokens; the first is predicted by nothing."""
        heard, self.host.heard = self.host.heard, []
        for ids, hidden in heard:
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
        if not self.said:
            self._listen()
            self._say_prompt()
        self.host.heard = []
        super().take(token)

    def _say_prompt(self) -> None:
        whole = self.words.tokenizer.decode(self.prompt.ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        self.send(Piece(str(whole), self._prompt_likely[: len(self.prompt.ids)] if self.top is not None else []))
