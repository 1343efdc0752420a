"""The web pages at / and /docs. They load nothing from other hosts."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import FileResponse
from starlette.staticfiles import StaticFiles

FOLDER = Path(__file__).parents[1] / "web"
POLICY = "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"

router = APIRouter()
files = StaticFiles(directory=FOLDER)


@router.get("/", include_in_schema=False)
async def index() -> FileResponse:
    return own("index.html")


@router.get("/docs", include_in_schema=False)
async def docs() -> FileResponse:
    return own("docs.html")


def own(name: str) -> FileResponse:
    return FileResponse(
        FOLDER / name, headers={"Content-Security-Policy": POLICY, "Cache-Control": "no-cache"}
    )
