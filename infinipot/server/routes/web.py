"""The web pages at / and /docs. They load nothing from other hosts."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

FOLDER = Path(__file__).parents[1] / "web"
POLICY = (
    "default-src 'self'; object-src 'none'; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'none'; require-trusted-types-for 'script'; trusted-types dompurify"
)
HEADERS = {"Cache-Control": "no-cache", "X-Content-Type-Options": "nosniff"}
"""A browser asks whether a file has changed, so the files of one version stay together."""


class Files(StaticFiles):
    """The files of the pages, with our headers."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers.update(HEADERS)
        return response


router = APIRouter()
files = Files(directory=FOLDER)


@router.get("/", include_in_schema=False)
async def index() -> FileResponse:
    return own("index.html")


@router.get("/docs", include_in_schema=False)
async def docs() -> FileResponse:
    return own("docs.html")


def own(name: str) -> FileResponse:
    return FileResponse(FOLDER / name, headers={"Content-Security-Policy": POLICY, **HEADERS})
