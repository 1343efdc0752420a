"""Sends each request to one of several replicas, and its answer back."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from pydantic import BaseModel
from ray.exceptions import RayActorError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from infinipot.server.access_log import AccessLog
from infinipot.server.auth import AuthMiddleware
from infinipot.server.bodies import limited_receive, parse
from infinipot.server.errors import APIError
from infinipot.server.json_reply import JsonReply
from infinipot.server.root_path import RootPath
from infinipot.server.schema import ChatRequest, CompletionRequest, NewPot, Options
from infinipot.server.service import Service
from infinipot.server.stored_pot import SUFFIX

KINDS: dict[str, type[BaseModel]] = {
    "/v1/chat/completions": ChatRequest,
    "/v1/completions": CompletionRequest,
    "/v1/pots": NewPot,
}
PATIENCE_S = 30.0
"""How long the replicas may take for a short answer."""
Gather = Callable[[dict[str, bytes]], Response]
"""Merges the replicas' bodies, by the replicas' names, into one response."""
POT_PATH = re.compile(r"^/v1/pots/([^/]+)")
SCOPE_KEYS = (
    "type",
    "asgi",
    "http_version",
    "method",
    "scheme",
    "path",
    "raw_path",
    "query_string",
    "root_path",
    "headers",
    "client",
    "server",
)
UNSAVED = (
    "the replica with this conversation cannot name it for the others without a folder: "
    "start the server with --pot-dir"
)
LONG = (
    "a text of more than {:,} bytes cannot be streamed through Ray, which would hold it whole: "
    "start the server with a larger --max-body-mb"
)


def key_of(method: str, path: str, body: bytes, saved: Callable[[str], bool] | None) -> str:
    """The key of the replica for a request; empty: any replica. Equal keys lead to the same
    replica.

    saved: whether a pot of this name is in the shared folder; None: there is no folder. Raises
    APIError.
    """
    if match := POT_PATH.match(path):
        return f"pot {match[1]}"
    kind = KINDS.get(path)
    if kind is None or method != "POST":
        return ""
    try:
        options: Any = kind.model_validate(parse(body))
    except (ValueError, RecursionError, HTTPException):
        return ""  # any replica can refuse it
    if isinstance(options, NewPot):
        if options.session is not None and saved is None:
            raise APIError(409, UNSAVED, code="no_pot_dir")
        if options.session is None:
            return f"pot {options.name}"
        return f"session {options.session}"
    return _key_of_question(options, saved)


def _key_of_question(options: Options, saved: Callable[[str], bool] | None) -> str:
    """A pot without a file is asked at its replica. Other conversations are identified by their
    label, or by their beginning."""
    if options.pot is not None and not (saved and saved(options.pot)):
        return f"pot {options.pot}"
    if options.session is not None:
        return f"session {options.session}"
    if not isinstance(options, ChatRequest):
        return ""
    beginning: list[Any] = [options.pot]
    for message in options.messages:
        if message.role == "assistant":
            break
        beginning += message.texts
    return f"talk {hashlib.sha256(json.dumps(beginning).encode()).hexdigest()}"


def has_file(folder: Path, name: str) -> bool:
    return (folder / f"{name}{SUFFIX}").is_file()


class Forward(Response):
    """A response made by another application."""

    def __init__(self, app: Any) -> None:
        super().__init__()
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


class Router:
    """replicas: the handle of the replicas' deployment. make: creates the service, which is never
    started here."""

    def __init__(self, replicas: Any, make: Callable[[], Service]) -> None:
        self.replicas = replicas
        self.service = make()
        self.access = self.service.access
        checked = AuthMiddleware(self.forward, self.service)
        rooted = RootPath(checked, self.service.settings.root_path)
        self.app = AccessLog(rooted, "off", self.service.metrics)

    async def __call__(self, request: Request) -> Response:
        return Forward(self.app)

    async def forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._forward(scope, receive, send)
        except HTTPException as problem:
            message = str(problem.detail)
            if scope["method"] == "PUT" and problem.status_code == 413:
                message = LONG.format(self.access.max_body_bytes)
            await self._refuse(APIError(problem.status_code, message), scope, receive, send)
        except APIError as problem:
            await self._refuse(problem, scope, receive, send)

    async def _refuse(self, problem: APIError, scope: Scope, receive: Receive, send: Send) -> None:
        await JsonReply(problem.body(), problem.status)(scope, receive, send)

    async def _forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        sent = {name: scope[name] for name in SCOPE_KEYS if name in scope}
        try:
            limited = limited_receive(receive, self.access.patience_s, self.access.max_body_bytes)
            body = await Request(scope, limited).body()
        except ClientDisconnect:
            return
        gather = GATHERED.get(sent["path"]) if sent["method"] == "GET" else None
        if gather is not None:
            await (await self._gather(sent, gather))(scope, receive, send)
            return
        folder = self.service.settings.pot_dir
        saved = functools.partial(has_file, folder) if folder is not None else None
        key = await asyncio.to_thread(key_of, sent["method"], sent["path"], body, saved)
        answered = await self._answer(sent, body, key, send)
        if not answered and not await self._answer(sent, body, key, send):
            raise APIError(
                503,
                "the replica that was asked has ended: try again in a moment",
                code="replica_ended",
            )

    async def _answer(self, sent: Scope, body: bytes, key: str, send: Send) -> bool:
        """Returns False if the replica ended before its first message: another one can be asked."""
        messages = self.replicas.options(method_name="answer", stream=True, session_id=key).remote(
            sent, body
        )
        begun = False
        try:
            async for message in messages:
                begun = True
                await send(message)
        except RayActorError:
            if begun:
                raise
        finally:
            messages.cancel()
        return begun

    async def _gather(self, sent: Scope, gather: Gather) -> Response:
        """Ask all replicas, and merge the answers of those that have not ended."""
        answers = await self.replicas.broadcast("whole", sent).results_async(
            timeout_s=PATIENCE_S, return_exceptions=True
        )
        replies = sorted(answer for answer in answers if not isinstance(answer, BaseException))
        bodies = {name: body for name, status, body in replies if status == 200}
        if not bodies:
            raise APIError(503, "no replica is ready: try again in a moment", code="loading")
        return gather(bodies)


def all_pots(bodies: dict[str, bytes]) -> Response:
    """The named pots of all replicas. If several replicas know a pot, one that has it in memory
    describes it."""
    pots: dict[str, dict[str, Any]] = {}
    for body in bodies.values():
        for pot in json.loads(body)["data"]:
            if pot["name"] not in pots or pots[pot["name"]]["state"] == "on disk":
                pots[pot["name"]] = pot
    return JsonReply({"object": "list", "data": [pots[name] for name in sorted(pots)]})


class ReplicaMetrics:
    """The metrics of all replicas, each with the replica's name."""

    def __init__(self, bodies: dict[str, bytes]) -> None:
        self.families: dict[str, Metric] = {}
        for name, body in bodies.items():
            for family in text_string_to_metric_families(body.decode()):
                into = self.families.setdefault(
                    family.name, Metric(family.name, family.documentation, family.type)
                )
                for sample in family.samples:
                    into.add_sample(sample.name, {**sample.labels, "replica": name}, sample.value)

    def collect(self) -> Iterable[Metric]:
        return self.families.values()


def all_metrics(bodies: dict[str, bytes]) -> Response:
    registry = CollectorRegistry()
    registry.register(ReplicaMetrics(bodies))  # type: ignore[arg-type]
    return PlainTextResponse(generate_latest(registry))


GATHERED: dict[str, Gather] = {"/v1/pots": all_pots, "/metrics": all_metrics}
"""Paths that all replicas answer together."""
