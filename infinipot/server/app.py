"""The application: routes, lifespan, middleware, and the form of errors."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from infinipot import __version__
from infinipot.server.access_log import AccessLog
from infinipot.server.auth import AuthMiddleware
from infinipot.server.errors import APIError
from infinipot.server.routes import openai, pots, web
from infinipot.server.service import Service, handler_error

VALIDATION_TEXTS = {
    "extra_forbidden": "is not a field of this request",
    "missing": "is missing",
}


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
    )
    app.state.service = service
    for router in (openai.router, pots.router, openai.health_router, web.router):
        app.include_router(router)
    app.mount("/page", web.files, name="page")
    app.add_middleware(AuthMiddleware, service=service)
    app.add_middleware(AccessLog, kind=service.settings.access_log)
    app.add_exception_handler(HTTPException, on_http)
    app.add_exception_handler(RequestValidationError, on_invalid)
    app.add_exception_handler(APIError, on_error)
    app.add_exception_handler(ClientDisconnect, on_error)
    describe(app, service.name)
    return app


def describe(app: FastAPI, model: str) -> None:
    """Correct FastAPI's document: no status 422, and the model's name."""
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
            schemas[name]["properties"]["model"]["enum"] = [model]
        return document

    app.openapi = openapi  # type: ignore[method-assign]


# ---------------------------------------------------------------- errors


def error_response(error: APIError) -> JSONResponse:
    headers = {"Retry-After": "5"} if error.status in (429, 503) else {}
    return JSONResponse(error.body(), error.status, headers)


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
    errors = problem.errors()
    kind = errors[0]["type"]
    # a part with [ names one of several alternatives
    parts = [str(part) for part in errors[0]["loc"] if part not in ("body", "query", "path")]
    place = ".".join(part for part in parts if "[" not in part)[:200]
    text = VALIDATION_TEXTS.get(kind, errors[0]["msg"])
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    message = f"{place}: {text}{more}" if place else f"the body cannot be used: {text}"
    return error_response(
        APIError(400, printable(message), code=kind, param=printable(place) or None)
    )


def printable(text: str) -> str:
    """Replace what UTF-8 cannot hold: a request may contain it."""
    return text.encode("utf-8", "replace").decode()


__all__ = ["create_app"]
