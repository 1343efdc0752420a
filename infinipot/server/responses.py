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

from infinipot.server.errors import APIError
from infinipot.server.events import Done, Likely, Piece
from infinipot.server.stream import Whole
from infinipot.text.calls.base import Part
from infinipot.text.json_text import json_text
from infinipot.text.pieces import piece_bytes
from infinipot.text.reply import Reply

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
    last = DONE
    """What ends a stream."""

    def __init__(
        self,
        model: str,
        tokenizer: PreTrainedTokenizerBase,
        wants_logprobs: bool,
        answers: int = 1,
    ) -> None:
        """answers: to each prompt."""
        self.answers = answers
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

    def whole(self, answers: Sequence[Whole]) -> dict[str, Any]:
        """A reply that is not streamed."""
        choices = [
            {
                "index": number,
                **self.message(answer.reply),
                "logprobs": self.logprobs(answer.likely),
                "finish_reason": answer.done.reason,
            }
            for number, answer in enumerate(answers)
        ]
        reports = [answer.done.report for answer in answers]
        return self._envelope(self.kind, choices, usage=total(reports, self.answers))

    def first(self, number: int) -> list[dict[str, Any]]:
        """Chunks before any text."""
        return []

    def piece(self, number: int, piece: Piece) -> list[dict[str, Any]]:
        """The chunks of a piece; its probabilities are in the first one."""
        deltas = [delta for part in piece.all_parts for delta in self.deltas(part)]
        chunks = []
        for place, delta in enumerate(deltas or self.deltas(Part())):
            logprobs = None if place else self.logprobs(piece.likely)
            choice = {"index": number, **delta, "logprobs": logprobs, "finish_reason": None}
            chunks.append(self._envelope(self.chunk_kind, [choice]))
        return chunks

    def end(self, number: int, done: Done) -> list[dict[str, Any]]:
        (delta,) = self.deltas(Part())
        choice = {"index": number, **delta, "logprobs": None, "finish_reason": done.reason}
        return [self._envelope(self.chunk_kind, [choice])]

    def line(self, event: dict[str, Any]) -> str:
        """A chunk as an event of a stream."""
        return sse(event)

    def failure(self, problem: APIError) -> dict[str, Any]:
        """What ends a stream that fails."""
        return problem.body()

    def usage(self, reports: list[dict[str, Any]]) -> dict[str, Any]:
        return self._envelope(self.chunk_kind, [], usage=total(reports, self.answers))

    @abstractmethod
    def message(self, reply: Reply) -> dict[str, Any]:
        """The fields of a whole answer."""

    @abstractmethod
    def deltas(self, part: Part) -> list[dict[str, Any]]:
        """The fields of the chunks for a part of an answer; of one chunk for an empty part."""

    @abstractmethod
    def logprobs(self, likely: list[Likely]) -> dict[str, Any] | None:
        """The log probabilities of an answer's tokens."""


class ChatForm(Form):
    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"
    prefix = "chatcmpl"

    def message(self, reply: Reply) -> dict[str, Any]:
        message: dict[str, Any] = {
            "role": "assistant",
            "content": reply.content,
            "refusal": None,
        }
        if reply.reasoning:
            message["reasoning_content"] = reply.reasoning
        if reply.calls:
            message["content"] = reply.content or None
            message["tool_calls"] = [call.message() for call in reply.calls]
        return {"message": message}

    def first(self, number: int) -> list[dict[str, Any]]:
        delta = {"role": "assistant", "content": ""}
        return [
            self._envelope(
                self.chunk_kind,
                [{"index": number, "delta": delta, "logprobs": None, "finish_reason": None}],
            )
        ]

    def deltas(self, part: Part) -> list[dict[str, Any]]:
        """A call comes with its name first, then with pieces of its arguments."""
        deltas: list[dict[str, Any]] = []
        if part.reasoning:
            deltas.append({"reasoning_content": part.reasoning})
        if part.content:
            deltas.append({"content": part.content})
        if part.name is not None:
            function = {"name": part.name, "arguments": ""}
            call = {"index": part.call, "id": part.id, "type": "function", "function": function}
            deltas.append({"tool_calls": [call]})
        if part.arguments:
            function = {"arguments": part.arguments}
            deltas.append({"tool_calls": [{"index": part.call, "function": function}]})
        return [{"delta": delta} for delta in deltas or [{}]]

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

    def message(self, reply: Reply) -> dict[str, Any]:
        return {"text": reply.content}

    def deltas(self, part: Part) -> list[dict[str, Any]]:
        return [{"text": part.content}]

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


def total(reports: list[dict[str, Any]], answers: int = 1) -> dict[str, Any]:
    """The usage of all answers of a request. answers: to each prompt, which counts once. `pot`
    describes the last answer's pot."""
    firsts = reports[::answers]
    prompts = sum(report["prompt_tokens"] for report in firsts)
    completions = sum(report["completion_tokens"] for report in reports)
    cached = sum(report["prompt_tokens_details"]["cached_tokens"] for report in firsts)
    return {
        "prompt_tokens": prompts,
        "completion_tokens": completions,
        "total_tokens": prompts + completions,
        "prompt_tokens_details": {"cached_tokens": cached},
        "pot": reports[-1]["pot"],
    }
