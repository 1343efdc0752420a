"""POST /v1/responses: a conversation in OpenAI's newer form."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from fastapi.security import HTTPBearer

from infinipot.server.bodies import JsonRoute
from infinipot.server.error_fields import ERRORS, STREAMS
from infinipot.server.requests import chat_jobs
from infinipot.server.response_fields import ResponseRequest
from infinipot.server.response_form import ResponseForm
from infinipot.server.response_requests import answer_message, chat_request
from infinipot.server.routes.openai import Reply, reply
from infinipot.server.service import ServiceDep
from infinipot.text.reply import Reply as Said

router = APIRouter(
    route_class=JsonRoute,
    responses=ERRORS,
    dependencies=[Depends(HTTPBearer(auto_error=False))],
)


@router.post("/v1/responses", responses=STREAMS)
async def create(body: ResponseRequest, request: Request, service: ServiceDep) -> Response:
    """Answer an input. The conversation goes on behind `previous_response_id`."""
    store = service.responses
    chat, new = chat_request(body, store)

    def settled(identity: str, said: Said) -> None:
        if body.store is not False:
            store.add(identity, [*new, answer_message(said)], body.previous_response_id)

    form = ResponseForm(service.name, body, settled)
    submissions = await chat_jobs(service, chat)
    return await reply(request, Reply(service, submissions, form), bool(body.stream))
