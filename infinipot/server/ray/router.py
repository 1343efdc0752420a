"""Before several replicas of a server: which of them a request goes to, and its answer on the way back."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Callable, Iterable
from typing import Any

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from pydantic import BaseModel
from ray.exceptions import RayActorError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from infinipot.server.auth import Guard
from infinipot.server.bodies import parsed, receiving
from infinipot.server.errors import Refusal
from infinipot.server.pot_store import SUFFIX
from infinipot.server.schema import ChatRequest, CompletionRequest, NewPot, Options
from infinipot.server.service import Serving

KINDS: dict[str, type[BaseModel]] = {"/v1/chat/completions": ChatRequest, "/v1/completions": CompletionRequest, "/v1/pots": NewPot}
PATIENCE_S = 30.0
"""How long all replicas may take to say something short."""
Gather = Callable[[dict[str, bytes]], Response]
"""From what the replicas say, by their names, to one answer."""
NAMED = re.compile(r"^/v1/pots/([^/]+)")
SENT = ("type", "asgi", "http_version", "method", "scheme", "path", "raw_path", "query_string", "root_path", "headers", "client", "server")
UNSAVED = "the replica with this conversation cannot name it for the others without a folder: start the server with --pot-dir"
LONG = "a text of more than {:,} bytes cannot be streamed through Ray, which would hold it whole: start the server with a larger --max-body-mb"


def key_of(method: str, path: str, body: bytes, saved: Callable[[str], bool] | None) -> str:
    """What requests share that must come to the same replica; nothing if any will do.

    saved: whether a pot of this name is in the folder that all replicas share; None: there is no folder. Raises Refusal.
    """
    if named := NAMED.match(path):
        return f"pot {named[1]}"
    kind = KINDS.get(path)
    if kind is None or method != "POST":
        return ""
    try:
        given: Any = kind.model_validate(parsed(body))
    except (ValueError, RecursionError, HTTPException):
        return ""  # any replica says what is wrong with it
    if isinstance(given, NewPot):
        if given.session is not None and saved is None:
            raise Refusal(409, UNSAVED, code="no_pot_dir")
        return f"pot {given.name}" if given.session is None else f"session {given.session}"
    return _key_of_question(given, saved)


def _key_of_question(given: Options, saved: Callable[[str], bool] | None) -> str:
    """A pot that only its own replica has is asked there; else conversations are told apart by their label, or by how they begin."""
    if given.pot is not None and not (saved and saved(given.pot)):
        return f"pot {given.pot}"
    if given.session is not None:
        return f"session {given.session}"
    if not isinstance(given, ChatRequest):
        return ""
    beginning: list[Any] = [given.pot]
    for message in given.messages:
        if message.role == "assistant":
            break
        beginning += [message.content] if isinstance(message.content, str) else [part.text for part in message.content]
    return f"talk {hashlib.sha256(json.dumps(beginning).encode()).hexdigest()}"


class Forward(Response):
    """A response that another application makes."""

    def __init__(self, app: Any) -> None:
        super().__init__()
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


class Door:
    """replicas: the handle of the deployment with the model. make: gives the server that was asked for; it is never started here."""

    def __init__(self, replicas: Any, make: Callable[[], Serving]) -> None:
        self.replicas, self.serving = replicas, make()
        self.guarded = Guard(self.forward, self.serving)

    async def __call__(self, request: Request) -> Response:
        return Forward(self.guarded)

    async def forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._forward(scope, receive, send)
        except HTTPException as problem:
            put = scope["method"] == "PUT" and problem.status_code == 413
            message = LONG.format(self.serving.max_body_bytes) if put else str(problem.detail)
            await self._refuse(Refusal(problem.status_code, message), scope, receive, send)
        except Refusal as problem:
            await self._refuse(problem, scope, receive, send)

    async def _refuse(self, problem: Refusal, scope: Scope, receive: Receive, send: Send) -> None:
        await JSONResponse(problem.body(), problem.status)(scope, receive, send)

    async def _forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        sent = {name: scope[name] for name in SENT if name in scope}
        try:
            body = await Request(scope, receiving(receive, self.serving.patience_s, self.serving.max_body_bytes)).body()
        except ClientDisconnect:
            return
        gather = GATHERED.get(sent["path"]) if sent["method"] == "GET" else None
        if gather is not None:
            await (await self._gather(sent, gather))(scope, receive, send)
            return
        folder = self.serving.settings.pot_dir
        saved = (lambda name: (folder / f"{name}{SUFFIX}").is_file()) if folder is not None else None
        key = await asyncio.to_thread(key_of, sent["method"], sent["path"], body, saved)
        if not await self._answer(sent, body, key, send) and not await self._answer(sent, body, key, send):
            raise Refusal(503, "the replica that was asked has ended: try again in a moment", code="replica_ended")

    async def _answer(self, sent: Scope, body: bytes, key: str, send: Send) -> bool:
        """Returns False if the replica has ended before it said anything: another one can be asked."""
        messages = self.replicas.options(method_name="answer", stream=True, session_id=key).remote(sent, body)
        said = False
        try:
            async for message in messages:
                said = True
                await send(message)
        except RayActorError:
            if said:
                raise
        finally:
            messages.cancel()
        return said

    async def _gather(self, sent: Scope, gather: Gather) -> Response:
        """Ask all replicas; one that has ended meanwhile has nothing to say."""
        answers = await self.replicas.broadcast("whole", sent).results_async(timeout_s=PATIENCE_S, return_exceptions=True)
        found = sorted(answer for answer in answers if not isinstance(answer, BaseException))
        bodies = {name: body for name, status, body in found if status == 200}
        if not bodies:
            raise Refusal(503, "no replica is ready: try again in a moment", code="loading")
        return gather(bodies)


def all_pots(bodies: dict[str, bytes]) -> Response:
    """The named pots of all replicas. Of one that several have, what the one says that has it in memory."""
    pots: dict[str, dict[str, Any]] = {}
    for body in bodies.values():
        for pot in json.loads(body)["data"]:
            if pot["name"] not in pots or pots[pot["name"]]["state"] == "on disk":
                pots[pot["name"]] = pot
    return JSONResponse({"object": "list", "data": [pots[name] for name in sorted(pots)]})


class Together:
    """The metrics of all replicas, each with the replica's name."""

    def __init__(self, bodies: dict[str, bytes]) -> None:
        self.families: dict[str, Metric] = {}
        for name, body in bodies.items():
            for family in text_string_to_metric_families(body.decode()):
                into = self.families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for sample in family.samples:
                    into.add_sample(sample.name, {**sample.labels, "replica": name}, sample.value)

    def collect(self) -> Iterable[Metric]:
        return self.families.values()


def all_metrics(bodies: dict[str, bytes]) -> Response:
    registry = CollectorRegistry()
    registry.register(Together(bodies))  # type: ignore[arg-type]
    return PlainTextResponse(generate_latest(registry))


GATHERED: dict[str, Gather] = {"/v1/pots": all_pots, "/metrics": all_metrics}
"""What every replica is asked for, and how their answers become one."""
