"""The application: routes, lifespan, middleware, and the form of errors."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect

from infinipot import __version__
from infinipot.server.access_log import AccessLog
from infinipot.server.auth import AuthMiddleware
from infinipot.server.errors import APIError
from infinipot.server.invalid import sentence
from infinipot.server.json_reply import JsonReply
from infinipot.server.root_path import RootPath
from infinipot.server.routes import documents, openai, pots, responses, web
from infinipot.server.service import Service, handler_error

ROUTERS = (
    openai.router,
    responses.router,
    pots.router,
    documents.router,
    openai.health_router,
    web.router,
)


def create_app(service: Service) -> FastAPI:
    """The ASGI application.

    The model is loaded in the background. Until then all routes but the page and the documents
    answer 503.
    """

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        loading = asyncio.create_task(asyncio.to_thread(service.start))
        yield
        await loading
        await asyncio.to_thread(service.stop)

    app = FastAPI(
        title="InfiniPot",
        version=__version__,
        summary="An OpenAI-compatible server whose conversations live in pots of fixed size.",
        lifespan=lifespan,
        docs_url=None,  # FastAPI's pages load scripts from other hosts
        redoc_url=None,
        redirect_slashes=False,
        default_response_class=JsonReply,
        telemetry={"tracing": False, "logs": False},  # has queries in it: `tracing` has its own
    )
    app.state.service = service
    for router in ROUTERS:
        app.include_router(router)
    app.mount("/page", web.files, name="page")
    add_layers(app, service)
    app.add_exception_handler(HTTPException, on_http)
    app.add_exception_handler(RequestValidationError, on_invalid)
    app.add_exception_handler(APIError, on_error)
    app.add_exception_handler(ClientDisconnect, on_error)
    describe(app, service)
    return app


def add_layers(app: FastAPI, service: Service) -> None:
    """What each request goes through before its route; the last one added is the first."""
    app.add_middleware(AuthMiddleware, service=service)
    if origins := service.access.origins:  # browsers ask before pages of other sites do
        app.add_middleware(
            CORSMiddleware, allow_origins=origins, allow_methods=["*"], allow_headers=["*"]
        )
    app.add_middleware(RootPath, path=service.settings.root_path)
    app.add_middleware(AccessLog, kind=service.settings.access_log, metrics=service.metrics)


def describe(app: FastAPI, service: Service) -> None:
    """Correct FastAPI's document: no status 422, the model's name, the path behind a proxy."""
    openapi_of_fastapi = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is not None:
            return app.openapi_schema
        document = openapi_of_fastapi()
        for path in document["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)
        schemas = document["components"]["schemas"]
        for name in ("ChatRequest", "CompletionRequest"):
            schemas[name]["properties"]["model"]["enum"] = [service.name]
        if service.settings.root_path:
            document["servers"] = [{"url": service.settings.root_path}]
        return document

    app.openapi = openapi  # type: ignore[method-assign]


# ---------------------------------------------------------------- errors


def error_response(error: APIError) -> JsonReply:
    headers = {"Retry-After": "5"} if error.status in (429, 503) else {}
    return JsonReply(error.body(), error.status, headers)


async def on_error(request: Request, problem: Exception) -> Response:
    return error_response(handler_error(problem))


async def on_http(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, HTTPException)
    response = error_response(APIError(problem.status_code, str(problem.detail)))
    response.headers.update(problem.headers or {})
    return response


async def on_invalid(request: Request, problem: Exception) -> Response:
    """The first thing that is wrong with a request, in a sentence."""
    assert isinstance(problem, RequestValidationError)
    return error_response(sentence(problem.errors()))


__all__ = ["create_app"]
