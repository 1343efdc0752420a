"""The outermost layer of the application: request ids, one log line and the metrics of each
request, and an answer whatever happens inside."""

from __future__ import annotations

import asyncio
import datetime
import json
import logging
import re
import sys
import time
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from infinipot.server.errors import APIError, shutting_down
from infinipot.server.metrics import Metrics, method_label
from infinipot.server.request_record import RequestRecord, id_of, working_for
from infinipot.server.service import handler_error
from infinipot.server.tracing import find_tracer, write_span

KINDS = ("text", "json", "off")
HEADER = "x-request-id"
LONGEST_PATH = 200
"""Characters of a path in a log line."""
LEFT = 499
"""The status in the log if the client left before an answer, as in nginx."""
UNPRINTABLE = re.compile(r"[^!-~]")

log = logging.getLogger("infinipot.access")


def write_access_log(kind: str) -> None:
    """Let the lines go to stderr; kind "off": nowhere."""
    log.propagate = False
    log.setLevel(logging.INFO)
    log.handlers.clear()
    if kind == "off":
        log.addHandler(logging.NullHandler())
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    log.addHandler(handler)


@dataclass
class Reply:
    """What has been sent. status: None before the head."""

    status: int | None = None
    complete: bool = False
    client_left: bool = False


class AccessLog:
    """kind: the form of the lines, from KINDS."""

    def __init__(self, app: ASGIApp, kind: str, metrics: Metrics) -> None:
        self.app = app
        self.kind = kind
        self.metrics = metrics
        self.tracer = find_tracer()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = time.monotonic()
        start_ns = time.time_ns()
        record = RequestRecord(id_of(Headers(scope=scope).get(HEADER)))
        MutableHeaders(scope=scope)[HEADER] = record.request_id  # for replicas
        reply = Reply()

        async def noted_receive() -> Message:
            message = await receive()
            reply.client_left |= message["type"] == "http.disconnect" and not reply.complete
            return message

        async def noted_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[HEADER] = record.request_id
                reply.status = message["status"]
                self.metrics.requests.labels(*labels_of(scope), reply.status).inc()
            elif not message.get("more_body", False):
                reply.complete = True
            await send(message)

        with working_for(record):
            try:
                await self._answer(scope, noted_receive, noted_send, reply)
            finally:
                seconds = time.monotonic() - started
                self._measure(scope, record, seconds)
                fields = line_of(scope, record, reply, seconds)
                if self.kind != "off":
                    log.info("%s", written(fields, self.kind))
                if self.tracer is not None:
                    self._trace(fields, scope, start_ns)
                record.jobs.clear()  # the context outlives the request, and would keep their pots

    async def _answer(self, scope: Scope, receive: Receive, send: Send, reply: Reply) -> None:
        """Run the application. What it raises becomes an answer, or ends the one that has begun."""
        try:
            await self.app(scope, receive, send)
        except asyncio.CancelledError:  # the server ends, and waits for this answer
            if reply.status is None:
                await refuse(shutting_down(), scope, receive, send)
        except Exception as problem:
            error = handler_error(problem)
            if reply.status is None:
                await refuse(error, scope, receive, send)

    def _trace(self, fields: dict[str, Any], scope: Scope, start_ns: int) -> None:
        assert self.tracer is not None
        method, route = labels_of(scope)
        headers = dict(Headers(scope=scope))
        write_span(self.tracer, {**fields, "method": method}, route, headers, start_ns)

    def _measure(self, scope: Scope, record: RequestRecord, seconds: float) -> None:
        self.metrics.duration_s.labels(*labels_of(scope)).observe(seconds)
        jobs = [job for job in record.jobs if job.admitted_s]
        if jobs:
            tokens = sum(job.prompt_tokens for job in jobs)
            self.metrics.request_prompt_tokens.observe(tokens)
        answers = [job for job in jobs if job.asks]
        if answers:
            tokens = sum(job.tokens_generated for job in answers)
            self.metrics.request_generated_tokens.observe(tokens)


def labels_of(scope: Scope) -> tuple[str, str]:
    """Method and route. Paths that are no route share a label."""
    return method_label(scope["method"]), getattr(scope.get("route"), "path", "other")


async def refuse(error: APIError, scope: Scope, receive: Receive, send: Send) -> None:
    await JSONResponse(error.body(), error.status)(scope, receive, send)


# ---------------------------------------------------------------- lines


def line_of(scope: Scope, record: RequestRecord, reply: Reply, seconds: float) -> dict[str, Any]:
    """The fields of a line. Neither texts, keys nor queries are among them."""
    now = datetime.datetime.now(datetime.timezone.utc)
    path = scope.get("raw_path") or scope["path"].encode("utf-8", "replace")
    client = "-"
    if scope.get("client"):
        client = ":".join(map(str, scope["client"]))
    status = reply.status
    if status is None or (reply.client_left and status == 400):
        status = LEFT
    return {
        "time": now.isoformat(timespec="milliseconds"),
        "request_id": record.request_id,
        "client": client,
        "method": scope["method"],
        "path": UNPRINTABLE.sub("?", path.decode("ascii", "replace"))[:LONGEST_PATH],
        "status": status,
        "seconds": round(seconds, 3),
        **work_of(record, reply),
    }


def work_of(record: RequestRecord, reply: Reply) -> dict[str, Any]:
    """What the request's jobs did. Times and counts are None for a request without jobs."""
    jobs = record.jobs
    finish = None
    if jobs:
        finish = jobs[-1].finish_reason
    if finish is None and reply.client_left:
        finish = "left"
    if not jobs:
        return {
            "queue_seconds": None,
            "prompt_tokens": None,
            "cached_tokens": None,
            "answer_tokens": None,
            "finish": finish,
        }
    return {
        "queue_seconds": round(max(job.queue_s() for job in jobs), 3),
        "prompt_tokens": sum(job.prompt_tokens for job in jobs),
        "cached_tokens": sum(job.tokens_cached for job in jobs),
        "answer_tokens": sum(job.tokens_generated for job in jobs),
        "finish": finish,
    }


def written(fields: dict[str, Any], kind: str) -> str:
    if kind == "json":
        return json.dumps(fields)
    known = {name: value for name, value in fields.items() if value is not None}
    return " ".join(
        str(known[name]) if name == "time" else f"{name}={known[name]}" for name in known
    )
