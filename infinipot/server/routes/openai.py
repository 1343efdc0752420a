"""The routes of the OpenAI API, and their neighbours: tokenize, metrics, health."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import PlainTextResponse, Response, StreamingResponse
from fastapi.security import HTTPBearer
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from infinipot import __version__
from infinipot.server.bodies import JsonRoute
from infinipot.server.departure import while_here
from infinipot.server.error_fields import ERRORS, STREAMS
from infinipot.server.errors import APIError
from infinipot.server.events import Done, Event, Piece
from infinipot.server.json_reply import JsonReply
from infinipot.server.requests import Submission, chat_jobs, completion_jobs, policies_of
from infinipot.server.response_form import ResponseForm
from infinipot.server.responses import (
    STREAM_HEADERS,
    ChatForm,
    CompletionForm,
    Form,
    comment,
)
from infinipot.server.schema import ChatRequest, CompletionRequest, TokenizeRequest
from infinipot.server.service import Service, ServiceDep

ALIVE_S = 5.0
"""A stream sends something at least this often. An error within this time gets its HTTP status."""
STUCK_S = 120.0
"""Seconds without progress, while a request waits, after which /health answers 503."""
MAX_TOKENIZED = 1 << 22
"""Characters that /tokenize takes."""

router = APIRouter(
    route_class=JsonRoute,
    responses=ERRORS,
    dependencies=[Depends(HTTPBearer(auto_error=False))],
)


@router.get("/v1/models")
async def models(service: ServiceDep) -> dict[str, Any]:
    """The served model."""
    return {"object": "list", "data": [model_card(service)]}


@router.get("/v1/models/{name:path}")
async def model(name: str, service: ServiceDep) -> dict[str, Any]:
    service.check_model(name)
    return model_card(service)


def model_card(service: Service) -> dict[str, Any]:
    """The model, the pot that it reads into, and how answers are sampled: the defaults of a
    request."""
    config = service.settings.config
    sampling = service.settings.sampling
    return {
        "id": service.name,
        "object": "model",
        "created": 0,
        "owned_by": "infinipot",
        "pot": {
            "size": config.pot_size,
            "distill_to": config.mean_budget,
            "policy": config.policy.name,
            "policies": policies_of(config),
            "options": config.options,
        },
        "sampling": {
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
        },
    }


@router.post("/v1/chat/completions", responses=STREAMS)
async def chat(body: ChatRequest, request: Request, service: ServiceDep) -> Response:
    """Answer the last message. In a conversation that goes on, only what is new is read."""
    tokenizer = service.engine.tokenizer
    form = ChatForm(service.name, tokenizer, bool(body.logprobs), body.n or 1)
    submissions = await chat_jobs(service, body)
    answer = Reply(service, submissions, form, usage=wants_usage(body))
    return await reply(request, answer, bool(body.stream))


@router.post("/v1/completions", responses=STREAMS)
async def completions(body: CompletionRequest, request: Request, service: ServiceDep) -> Response:
    """Continue one or several texts."""
    tokenizer = service.engine.tokenizer
    form = CompletionForm(service.name, tokenizer, body.logprobs is not None, body.n or 1)
    submissions = await completion_jobs(service, body)
    answer = Reply(service, submissions, form, usage=wants_usage(body))
    return await reply(request, answer, bool(body.stream))


@router.post("/tokenize")
async def tokenize(body: TokenizeRequest, service: ServiceDep) -> Response:
    """A text's token ids, as the model would read them."""
    service.check_model(body.model)
    prompts = service.engine.prompts
    text = body.prompt
    if len(text) > MAX_TOKENIZED:
        raise APIError(
            400,
            f"the prompt has {len(text):,} characters: {MAX_TOKENIZED:,} are allowed; "
            "send it in parts, cut behind the end of a line",
            param="prompt",
        )

    def response() -> Response:
        ids = prompts.ids(text)
        content: dict[str, Any] = {"tokens": ids, "count": len(ids)}
        if body.offsets:
            starts = prompts.offsets(text)
            aligned = starts is not None and len(starts) == len(ids)
            content["offsets"] = starts if aligned else None
        return JsonReply(content)

    return await service.tokenize(response)


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(service: ServiceDep) -> Response:
    """Numbers for Prometheus."""
    return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_LATEST)


health_router = APIRouter()


@health_router.get("/health", responses={503: ERRORS[503]})
async def health(service: ServiceDep) -> dict[str, str]:
    """Whether the process works: 200 also while the model is loading. 503 after a failure, and if
    nothing has gone on for long although a request waits."""
    if service.loading:
        return {"status": "loading", "model": service.name, "version": __version__}
    stuck_s = service.engine.stuck_s
    if stuck_s > STUCK_S:
        message = f"requests wait, and nothing has gone on for {stuck_s:.0f} seconds"
        raise APIError(503, message, code="stuck")
    return {"status": "ok", "model": service.name, "version": __version__}


@health_router.get("/ready", responses={429: ERRORS[429], 503: ERRORS[503]})
async def ready(service: ServiceDep) -> dict[str, str]:
    """Whether a new request would be taken now: refused while the model is loading, while the
    server stops, and while the queue is full."""
    service.engine.scheduler.check()
    return await health(service)


# ---------------------------------------------------------------- replies


@dataclass(frozen=True)
class Reply:
    """The jobs of a request, and the form of their reply."""

    service: Service
    submissions: list[Submission]
    form: Form | ResponseForm
    usage: bool = False
    """Whether a stream ends with the usage."""

    def working(self) -> contextlib.AbstractAsyncContextManager[None]:
        return self.service.engine.working([job for job, _ in self.submissions])


def wants_usage(body: ChatRequest | CompletionRequest) -> bool:
    return bool(body.stream_options and body.stream_options.include_usage)


async def reply(request: Request, answer: Reply, stream: bool) -> Response:
    if stream:
        events = stream_events(answer)
        first = await anext(events)  # an error that comes soon is an HTTP error, not an event
        return StreamingResponse(
            chain(first, events),
            media_type="text/event-stream",
            headers=STREAM_HEADERS,
        )
    async with answer.working():
        work = asyncio.gather(*(stream.whole() for _, stream in answer.submissions))
        answers = await while_here(request, work)
        return JsonReply(await asyncio.to_thread(answer.form.whole, answers))


async def chain(first: str, rest: AsyncIterator[str]) -> AsyncIterator[str]:
    async with contextlib.aclosing(rest):  # type: ignore[type-var]
        yield first
        async for text in rest:
            yield text


async def stream_events(answer: Reply) -> AsyncIterator[str]:
    """Server-sent events: pieces as they come, comments while there are none, and the end.

    Events that are ready together are sent together.
    """
    form = answer.form
    first_token = FirstToken(answer.service)
    reports = []
    ready = ""
    async with answer.working():
        for number, (job, stream) in enumerate(answer.submissions):
            event: Event | None = await stream.next(ALIVE_S)
            ready += "".join(map(form.line, form.first(number)))
            while not isinstance(event, Done):
                if isinstance(event, Piece):
                    first_token.observe()
                    ready += "".join(map(form.line, form.piece(number, event)))
                else:
                    total = len(job.prompt.ids) - job.cached_tokens
                    ready += comment(f"read {job.tokens_read} of {total} tokens")
                if not stream.events:
                    yield ready
                    ready = ""
                try:
                    event = await stream.next(ALIVE_S)
                except APIError as problem:
                    yield ready + form.line(form.failure(problem))
                    return
            reports.append(event.report)
            ready += "".join(map(form.line, form.end(number, event)))
        if answer.usage and isinstance(form, Form):
            ready += form.line(form.usage(reports))
        yield ready + form.last


class FirstToken:
    """Measures the time from the request to the first token, once."""

    def __init__(self, service: Service) -> None:
        self._histogram = service.metrics.first_token_s
        self._started = time.monotonic()
        self._done = False

    def observe(self) -> None:
        if not self._done:
            self._histogram.observe(time.monotonic() - self._started)
            self._done = True
