"""The application: routes that the OpenAI API has, and how all of them refuse."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from fastapi.security import HTTPBearer
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from infinipot import __version__
from infinipot.server.auth import Guard
from infinipot.server.bodies import JsonRoute
from infinipot.server.errors import Refusal
from infinipot.server.events import Done, Event
from infinipot.server.jobs.answer import Answering
from infinipot.server.responses import DONE, ChatForm, CompletionForm, Form, comment, sse
from infinipot.server.routes import pots, web
from infinipot.server.schema import (
    REFUSALS,
    STREAMS,
    ChatRequest,
    CompletionRequest,
    TokenizeRequest,
)
from infinipot.server.service import Served, Serving, refused
from infinipot.server.stream import Mailbox, running

ALIVE_S = 5.0
"""A stream says something at least so often, and an error that comes within this time has an HTTP status of its own."""

STUCK_S = 120.0
"""A server that does nothing for so long, though somebody waits, cannot serve."""
MOST_TOKENIZED = 1 << 22
"""Characters that /tokenize takes."""

router = APIRouter(route_class=JsonRoute, responses=REFUSALS, dependencies=[Depends(HTTPBearer(auto_error=False))])


Work = tuple[Answering, Mailbox]


@router.get("/v1/models")
async def models(serving: Served) -> dict[str, Any]:
    """The model that is served."""
    return {"object": "list", "data": [model_card(serving)]}


@router.get("/v1/models/{name:path}")
async def model(name: str, serving: Served) -> dict[str, Any]:
    serving.check_model(name)
    return model_card(serving)


def model_card(serving: Serving) -> dict[str, Any]:
    config = serving.settings.config
    pot = {"size": config.pot_size, "distill_to": config.survivors, "policy": config.policy.name}
    return {"id": serving.name, "object": "model", "created": 0, "owned_by": "infinipot", "pot": pot}


@router.post("/v1/chat/completions", responses=STREAMS)
async def chat(body: ChatRequest, request: Request, serving: Served) -> Response:
    """Answer the last message. A conversation that goes on reads only what is new."""
    form = ChatForm(serving.name, serving.engine.words.tokenizer, bool(body.logprobs))
    usage = bool(body.stream_options and body.stream_options.include_usage)
    return await reply(request, serving, [await serving.chat(body)], form, bool(body.stream), usage)


@router.post("/v1/completions", responses=STREAMS)
async def completions(body: CompletionRequest, request: Request, serving: Served) -> Response:
    """Continue one or several texts."""
    form = CompletionForm(serving.name, serving.engine.words.tokenizer, body.logprobs is not None)
    usage = bool(body.stream_options and body.stream_options.include_usage)
    return await reply(request, serving, await serving.completions(body), form, bool(body.stream), usage)


@router.post("/tokenize")
async def tokenize(body: TokenizeRequest, serving: Served) -> Response:
    """A text's token ids, as they would be read."""
    serving.check_model(body.model)
    words, prompt = serving.engine.words, body.prompt
    if len(prompt) > MOST_TOKENIZED:
        message = f"the prompt has {len(prompt):,} characters: {MOST_TOKENIZED:,} are allowed; send it in parts, cut behind the end of a line"
        raise Refusal(400, message, param="prompt")

    def told() -> Response:
        ids = words.ids(prompt)
        starts = words.offsets(prompt) if body.offsets else None
        offsets = starts if starts is not None and len(starts) == len(ids) else None
        return JSONResponse({"tokens": ids, "count": len(ids), **({"offsets": offsets} if body.offsets else {})})

    return await serving.prepared(told)


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(serving: Served) -> Response:
    """Numbers for Prometheus."""
    return Response(generate_latest(serving.metrics.registry), media_type=CONTENT_TYPE_LATEST)


health_router = APIRouter()


@health_router.get("/health", responses={503: REFUSALS[503]})
async def health(serving: Served) -> dict[str, str]:
    """Whether requests are served: 503 while the model is loading, and when nothing has gone on for long though something should."""
    if serving.engine.stuck_s > STUCK_S:
        raise Refusal(503, f"requests wait, and nothing has gone on for {serving.engine.stuck_s:.0f} seconds", code="stuck")
    return {"status": "ok", "model": serving.name, "version": __version__}


# ---------------------------------------------------------------- replies


async def reply(request: Request, serving: Serving, works: list[Work], form: Form, stream: bool, usage: bool) -> Response:
    if stream:
        events = streamed(serving, works, form, usage)
        first = await anext(events)  # a refusal that comes soon is an HTTP error, not an event
        return StreamingResponse(chained(first, events), media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
    async with running(serving.engine, [work for work, _ in works]):
        answers = asyncio.gather(*(mailbox.whole() for _, mailbox in works))
        gone = asyncio.create_task(left(request))
        either: set[asyncio.Future[Any]] = {answers, gone}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if answers.done():
                return JSONResponse(await asyncio.to_thread(form.whole, answers.result()))
            raise Refusal(400, "the client has left")  # nobody hears it
        finally:
            gone.cancel()
            answers.cancel()


async def left(request: Request) -> None:
    """Returns when the client has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def chained(first: str, rest: AsyncIterator[str]) -> AsyncIterator[str]:
    async with contextlib.aclosing(rest):  # type: ignore[type-var]
        yield first
        async for text in rest:
            yield text


async def streamed(serving: Serving, works: list[Work], form: Form, usage: bool) -> AsyncIterator[str]:
    """Server-sent events: pieces as they come, comments while there are none, [DONE]. What is there at once, is sent at once."""
    started, reports, ready = time.monotonic(), [], ""
    async with running(serving.engine, [work for work, _ in works]):
        for number, (work, mailbox) in enumerate(works):
            event: Event | None = await mailbox.next(ALIVE_S)
            ready += "".join(map(sse, form.first(number)))
            while not isinstance(event, Done):
                if event is None:
                    ready += comment(f"read {work.tokens_read} of {len(work.prompt.ids) - work.cached_tokens} tokens")
                else:
                    if started:
                        serving.metrics.first_token_s.observe(time.monotonic() - started)
                        started = 0.0
                    ready += sse(form.piece(number, event))  # type: ignore[arg-type]
                if not mailbox.events:
                    yield ready
                    ready = ""
                try:
                    event = await mailbox.next(ALIVE_S)
                except Refusal as problem:
                    yield ready + sse(problem.body())
                    return
            reports.append(event.report)
            ready += sse(form.end(number, event))
        yield ready + (sse(form.usage(reports)) if usage else "") + DONE


# ---------------------------------------------------------------- refusing


def refuse(refusal: Refusal) -> JSONResponse:
    headers = {"Retry-After": "5"} if refusal.status in (429, 503) else {}
    return JSONResponse(refusal.body(), refusal.status, headers)


async def on_refusal(request: Request, problem: Exception) -> Response:
    return refuse(refused(problem))


async def on_http(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, HTTPException)
    answer = refuse(Refusal(problem.status_code, str(problem.detail)))
    answer.headers.update(problem.headers or {})
    return answer


async def on_invalid(request: Request, problem: Exception) -> Response:
    """The first thing that is wrong with a request, in a sentence."""
    assert isinstance(problem, RequestValidationError)
    error = problem.errors()[0]
    where = [str(part) for part in error["loc"] if part not in ("body", "query", "path") and "[" not in str(part)]  # [: one of several kinds
    place = ".".join(where)[:200]
    text = {"extra_forbidden": "is not a field of this request", "missing": "is missing"}.get(error["type"], error["msg"])
    more = f" (and {len(problem.errors()) - 1} more)" if len(problem.errors()) > 1 else ""
    message = f"{place}: {text}{more}" if place else f"the body cannot be used: {text}"
    return refuse(Refusal(400, printable(message), code=error["type"], param=printable(place) or None))


def printable(text: str) -> str:
    """Without what UTF-8 cannot hold: a request may name it."""
    return text.encode("utf-8", "replace").decode()


def create_app(serving: Serving) -> FastAPI:
    """The ASGI application. The model is loaded in the background; until then all but /health, the page and the documents answer 503."""

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        loading = asyncio.create_task(asyncio.to_thread(serving.start))
        yield
        await loading
        await asyncio.to_thread(serving.stop)

    app = FastAPI(
        title="InfiniPot",
        version=__version__,
        summary="An OpenAI-compatible server whose conversations live in pots of fixed size.",
        lifespan=lifespan,
        docs_url=None,  # FastAPI's pages take their scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.serving = serving
    for routes in (router, pots.router, health_router, web.router):
        app.include_router(routes)
    app.mount("/page", web.files, name="page")
    app.add_middleware(Guard, serving=serving)
    app.add_exception_handler(HTTPException, on_http)
    app.add_exception_handler(RequestValidationError, on_invalid)
    app.add_exception_handler(Refusal, on_refusal)
    app.add_exception_handler(ClientDisconnect, on_refusal)
    app.add_exception_handler(Exception, on_refusal)
    made = app.openapi

    def openapi() -> dict[str, Any]:
        """FastAPI's document, less the status that it would refuse with and this server does not, and with the model's name."""
        fresh, document = app.openapi_schema is None, made()
        if fresh:
            for path in document["paths"].values():
                for operation in path.values():
                    operation["responses"].pop("422", None)
            for schema in ("ChatRequest", "CompletionRequest"):
                document["components"]["schemas"][schema]["properties"]["model"]["enum"] = [serving.name]
        return document

    app.openapi = openapi  # type: ignore[method-assign]
    return app


__all__ = ["create_app"]
