"""Replies of POST /v1/responses, whole and as events."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from infinipot.server.errors import APIError
from infinipot.server.events import Done, Piece
from infinipot.server.response_fields import ResponseRequest
from infinipot.server.stream import Whole
from infinipot.text.calls.base import Part
from infinipot.text.json_text import json_text
from infinipot.text.reply import Call, Reply

Event = dict[str, Any]
SHOWN = ("instructions", "max_output_tokens", "metadata", "previous_response_id", "temperature")
SHOWN_TOO = ("top_p", "truncation", "user", "store", "service_tier", "prompt_cache_key")


def new_id(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(16)}"


class Open:
    """An item of the output that is being written."""

    def __init__(self, kind: str, place: int) -> None:
        """kind: message, reasoning, function_call."""
        self.kind = kind
        self.place = place
        self.text = ""
        self.call: Call | None = None
        self.id = new_id({"message": "msg", "reasoning": "rs", "function_call": "fc"}[kind])

    def item(self, status: str) -> dict[str, Any]:
        """The item as it is now."""
        head = {"id": self.id, "type": self.kind, "status": status}
        if self.call is not None:
            call = {"call_id": self.call.id, "name": self.call.name}
            return {**head, **call, "arguments": self.text}
        content = [self.part()] if self.text or status != "in_progress" else []
        if self.kind == "reasoning":
            return {**head, "summary": [], "content": content}
        return {**head, "role": "assistant", "content": content}

    def part(self) -> dict[str, Any]:
        if self.kind == "reasoning":
            return {"type": "reasoning_text", "text": self.text}
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": []}

    @property
    def name(self) -> str:
        """Of its events."""
        return {
            "message": "output_text",
            "reasoning": "reasoning_text",
            "function_call": "function_call_arguments",
        }[self.kind]

    @property
    def where(self) -> dict[str, Any]:
        where: dict[str, Any] = {"item_id": self.id, "output_index": self.place}
        if self.kind != "function_call":
            where["content_index"] = 0
        return where


class ResponseForm:
    """The format of one reply. settled: gets id and reply at the end."""

    last = ""
    """What ends a stream."""

    def __init__(
        self, model: str, body: ResponseRequest, settled: Callable[[str, Reply], None]
    ) -> None:
        self.id = new_id("resp")
        self.model = model
        self.body = body
        self.settled = settled
        self.created = int(time.time())
        self.reply = Reply()
        self.output: list[dict[str, Any]] = []
        self._open: Open | None = None
        self._number = 0

    # ---------------------------------------------------------------- whole

    def whole(self, answers: Sequence[Whole]) -> dict[str, Any]:
        """A reply that is not streamed."""
        (answer,) = answers
        parts = [Part(reasoning=answer.reply.reasoning), Part(content=answer.reply.content)]
        for number, call in enumerate(answer.reply.calls):
            parts.append(Part(call=number, name=call.name, id=call.id, arguments=call.arguments))
        empty = [part for part in parts if part != Part()] or [Part()]
        self.piece(0, Piece("", [], tuple(empty)))
        return self.end(0, answer.done)[-1]["response"]  # type: ignore[no-any-return]

    def state(self, status: str, done: Done | None = None) -> dict[str, Any]:
        """The response as it is now."""
        body = self.body
        given = body.model_dump(include={*SHOWN, *SHOWN_TOO})
        cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
        text = body.text.model_dump(by_alias=True, exclude_none=True) if body.text else {}
        choice: Any = body.tool_choice or "auto"
        return {
            **given,
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": None,
            "incomplete_details": cut,
            "model": self.model,
            "output": list(self.output),
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "reasoning": {"effort": body.reasoning.effort if body.reasoning else None},
            "text": {"format": {"type": "text"}, **text},
            "tool_choice": choice if isinstance(choice, str) else choice.model_dump(),
            "tools": [tool.model_dump() for tool in body.tools or ()],
            "usage": usage_of(done.report) if done is not None else None,
        }

    # ---------------------------------------------------------------- events

    def line(self, event: Event) -> str:
        return f"event: {event['type']}\ndata: {json_text(event, nan=False)}\n\n"

    def event(self, kind: str, **fields: Any) -> Event:
        self._number += 1
        return {"type": f"response.{kind}", "sequence_number": self._number - 1, **fields}

    def first(self, number: int) -> list[Event]:
        state = self.state("in_progress")
        return [self.event("created", response=state), self.event("in_progress", response=state)]

    def piece(self, number: int, piece: Piece) -> list[Event]:
        return [event for part in piece.all_parts for event in self._part(part)]

    def _part(self, part: Part) -> Iterator[Event]:
        self.reply.add(part)
        if part.call is not None:
            if part.name is not None:
                yield from self._begin("function_call", Call(part.id, part.name))
            yield from self._write(part.arguments)
            return
        if part.reasoning:
            yield from self._continue("reasoning", part.reasoning)
        if part.content or part == Part():
            yield from self._continue("message", part.content)

    def _continue(self, kind: str, text: str) -> Iterator[Event]:
        if self._open is None or self._open.kind != kind:
            yield from self._begin(kind, None)
        yield from self._write(text)

    def _begin(self, kind: str, call: Call | None) -> Iterator[Event]:
        yield from self._close("completed")
        item = Open(kind, len(self.output))
        item.call = call
        self._open = item
        added = item.item("in_progress")
        yield self.event("output_item.added", output_index=item.place, item=added)
        if kind != "function_call":
            yield self.event("content_part.added", part=item.part(), **item.where)

    def _write(self, text: str) -> Iterator[Event]:
        item = self._open
        if item is None or not text:
            return
        item.text += text
        more: dict[str, Any] = {"logprobs": []} if item.kind == "message" else {}
        yield self.event(f"{item.name}.delta", delta=text, **item.where, **more)

    def _close(self, status: str) -> Iterator[Event]:
        item = self._open
        if item is None:
            return
        self._open = None
        more: dict[str, Any] = {"text": item.text}
        if item.call is not None:
            more = {"arguments": item.text, "name": item.call.name}
        if item.kind == "message":
            more["logprobs"] = []
        yield self.event(f"{item.name}.done", **item.where, **more)
        if item.call is None:
            yield self.event("content_part.done", part=item.part(), **item.where)
        whole = item.item(status)
        self.output.append(whole)
        yield self.event("output_item.done", output_index=item.place, item=whole)

    def end(self, number: int, done: Done) -> list[Event]:
        status = "incomplete" if done.reason == "length" else "completed"
        events = list(self._close(status))
        self.settled(self.id, self.reply)
        return [*events, self.event(status, response=self.state(status, done))]

    def failure(self, problem: APIError) -> Event:
        error = problem.body()["error"]
        told = {"code": error["code"] or "server_error", "message": error["message"]}
        return self.event("failed", response={**self.state("failed"), "error": told})


def usage_of(report: dict[str, Any]) -> dict[str, Any]:
    cached = report["prompt_tokens_details"]["cached_tokens"]
    return {
        "input_tokens": report["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": cached},
        "output_tokens": report["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": report["total_tokens"],
        "pot": report["pot"],
    }
