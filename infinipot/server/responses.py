"""Replies in OpenAI's formats."""

from __future__ import annotations

import codecs
import itertools
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from infinipot.server.events import Done, Likely, Piece
from infinipot.text.json_text import json_text
from infinipot.text.pieces import piece_bytes

DONE = "data: [DONE]\n\n"
STREAM_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
"""Of server-sent events. The second lets nginx send them on at once."""


def sse(content: dict[str, Any]) -> str:
    return f"data: {json_text(content, nan=False)}\n\n"


def comment(text: str) -> str:
    """A line that clients skip. It keeps the connection alive."""
    return f": {text}\n\n"


def shown(piece: bytes) -> str:
    """A piece of the vocabulary as text; `bytes:` and its bytes, if it is no whole text."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


def places(pieces: Sequence[bytes]) -> list[int]:
    """The character of the text at which each piece begins, or that it continues."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    lengths = [len(decoder.decode(piece)) for piece in pieces]
    return list(itertools.accumulate(lengths, initial=0))[:-1]


class Form(ABC):
    """The format of one request's reply. Chat and completions differ in field names only."""

    kind: str
    chunk_kind: str
    prefix: str

    def __init__(
        self, model: str, tokenizer: PreTrainedTokenizerBase, wants_logprobs: bool
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.wants_logprobs = wants_logprobs
        self.id = f"{self.prefix}-{secrets.token_hex(12)}"
        self.created = int(time.time())

    def bytes_of(self, token: int) -> bytes:
        """What the token stands for in a text, with its spaces."""
        return piece_bytes(self.tokenizer, token)

    def _envelope(self, kind: str, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
            **more,
        }

    def whole(self, answers: Sequence[tuple[str, list[Likely], Done]]) -> dict[str, Any]:
        """A reply that is not streamed. answers: text, probabilities and end of each."""
        choices = [
            {
                "index": number,
                **self.message(text),
                "logprobs": self.logprobs(likely),
                "finish_reason": done.reason,
            }
            for number, (text, likely, done) in enumerate(answers)
        ]
        return self._envelope(
            self.kind, choices, usage=total([done.report for _, _, done in answers])
        )

    def first(self, number: int) -> list[dict[str, Any]]:
        """Chunks before any text."""
        return []

    def piece(self, number: int, piece: Piece) -> dict[str, Any]:
        choice = {
            "index": number,
            **self.delta(piece.text),
            "logprobs": self.logprobs(piece.likely),
            "finish_reason": None,
        }
        return self._envelope(self.chunk_kind, [choice])

    def end(self, number: int, done: Done) -> dict[str, Any]:
        return self._envelope(
            self.chunk_kind,
            [{"index": number, **self.delta(""), "logprobs": None, "finish_reason": done.reason}],
        )

    def usage(self, reports: list[dict[str, Any]]) -> dict[str, Any]:
        return self._envelope(self.chunk_kind, [], usage=total(reports))

    @abstractmethod
    def message(self, text: str) -> dict[str, Any]:
        """The fields of a whole answer."""

    @abstractmethod
    def delta(self, text: str) -> dict[str, Any]:
        """The fields of a piece of an answer."""

    @abstractmethod
    def logprobs(self, likely: list[Likely]) -> dict[str, Any] | None:
        """The log probabilities of an answer's tokens."""


class ChatForm(Form):
    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"
    prefix = "chatcmpl"

    def message(self, text: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text, "refusal": None}}

    def first(self, number: int) -> list[dict[str, Any]]:
        delta = {"role": "assistant", "content": ""}
        return [
            self._envelope(
                self.chunk_kind,
                [{"index": number, "delta": delta, "logprobs": None, "finish_reason": None}],
            )
        ]

    def delta(self, text: str) -> dict[str, Any]:
        return {"delta": {"content": text} if text else {}}

    def logprobs(self, likely: list[Likely]) -> dict[str, Any] | None:
        def entry(token: int, logprob: float | None) -> dict[str, Any]:
            piece = self.bytes_of(token)
            return {"token": shown(piece), "logprob": logprob, "bytes": list(piece)}

        if not self.wants_logprobs:
            return None
        return {
            "content": [
                {**entry(one.token, one.logprob), "top_logprobs": [entry(*top) for top in one.top]}
                for one in likely
            ]
        }


class CompletionForm(Form):
    kind = "text_completion"
    chunk_kind = "text_completion"
    prefix = "cmpl"

    def message(self, text: str) -> dict[str, Any]:
        return {"text": text}

    delta = message

    def logprobs(self, likely: list[Likely]) -> dict[str, Any] | None:
        if not self.wants_logprobs:
            return None
        pieces = [self.bytes_of(one.token) for one in likely]
        return {
            "tokens": [shown(piece) for piece in pieces],
            "token_logprobs": [one.logprob for one in likely],
            "top_logprobs": [self._top(one) for one in likely],
            "text_offset": places(pieces),
        }

    def _top(self, likely: Likely) -> dict[str, float] | None:
        """The likeliest tokens by name. The second of two equal names is the token's number."""
        if likely.logprob is None:
            return None
        top: dict[str, float] = {}
        for token, logprob in likely.top:
            name = shown(self.bytes_of(token))
            if name in top:
                name = f"token_id:{token}"
            top[name] = logprob
        return top


def total(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """The usage of all answers of a request. `pot` describes the last answer's pot."""
    usage = {
        name: sum(report[name] for report in reports)
        for name in ("prompt_tokens", "completion_tokens", "total_tokens")
    }
    cached = sum(report["prompt_tokens_details"]["cached_tokens"] for report in reports)
    return {**usage, "prompt_tokens_details": {"cached_tokens": cached}, "pot": reports[-1]["pot"]}
