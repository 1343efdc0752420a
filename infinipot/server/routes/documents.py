"""The route that converts a document, for the page."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from fastapi.security import HTTPBearer

from infinipot.server.documents import body_text, whole_text
from infinipot.server.error_fields import ERRORS
from infinipot.server.service import ServiceDep

ANY_BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}

router = APIRouter(responses=ERRORS, dependencies=[Depends(HTTPBearer(auto_error=False))])


@router.post("/v1/documents", openapi_extra=ANY_BODY)
async def text_of(
    request: Request,
    service: ServiceDep,
    name: Annotated[str, Query(max_length=1000)] = "the text",
) -> dict[str, Any]:
    """The text of a document (PDF, HTML, DOCX, EPUB, e-mail) or of a UTF-8 file, with marks of its
    pages. Nothing is read into a pot. name: of the file; it may end in .html or .eml."""
    pieces = body_text(request, name, service.documents)
    return await whole_text(pieces, service.access.max_body_bytes)
