"""A served model: loaded in the background, then used through the engine."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from urllib.parse import urlsplit

from fastapi import Depends, Request
from starlette.requests import ClientDisconnect

from infinipot.checks import EMBEDDED
from infinipot.server.conversion import Conversions
from infinipot.server.documents import Documents
from infinipot.server.engine import Engine
from infinipot.server.errors import APIError, error_of, shutting_down
from infinipot.server.folder_lock import FolderLock
from infinipot.server.hosts import Hosts
from infinipot.server.metrics import Metrics
from infinipot.server.named_pots import NamedPots
from infinipot.server.response_store import ResponseStore
from infinipot.server.settings import Settings
from infinipot.text.templates import source_of

if TYPE_CHECKING:
    from infinipot.model.runner import ModelRunner

log = logging.getLogger("infinipot")
STOPPING_S = 0.5
"""How soon a request that is being tokenized sees that the server stops."""
T = TypeVar("T")

PATIENCE_S = 60.0


@dataclass(frozen=True)
class Access:
    """Who may use the server, and how much of it one client may take."""

    api_key: str | None = None
    max_body_bytes: int = 1 << 26
    patience_s: float = PATIENCE_S
    """How long a client may keep the server waiting for its request, or not fetch its answer."""
    conversion_s: float = 120.0
    """How long the conversion of a document may take."""
    hosts: Hosts = field(default_factory=Hosts)
    origins: tuple[str, ...] = ()
    """Other sites whose pages may use the server, as browsers name them; `*` is any."""

    def allows(self, origin: str, host: str | None) -> bool:
        """Whether a page may use the server: its own, or one of an allowed site."""
        if urlsplit(origin).netloc == host or "*" in self.origins:
            return True
        return origin.lower() in [allowed.lower().rstrip("/") for allowed in self.origins]

    def __post_init__(self) -> None:
        if self.api_key is not None and not self.api_key.strip():
            raise ValueError("the API key is empty: give one that is not, or none at all")


class Service:
    """A model, its engine and its named pots."""

    def __init__(
        self,
        model: str,
        load: Callable[[], tuple[Any, Any]],
        settings: Settings,
        notify: Callable[[str], None] = lambda text: None,
        **access: Any,
    ) -> None:
        """notify: gets lines for the person who started the server. access: fields of Access."""
        path = Path(model)
        if path.suffix.lower() == ".gguf":
            self.name = path.stem
        elif path.exists():
            self.name = path.name
        else:
            self.name = model
        self.names = {self.name, model}
        if model == EMBEDDED and settings.tool_template is None:
            settings = replace(settings, tool_template=source_of("chatml"))
        self.settings = settings
        self.access = Access(**access)
        conversions = Conversions(self.access.conversion_s, settings.queue)
        self.documents = Documents(conversions, self.access.max_body_bytes)
        self.responses = ResponseStore()
        self.body_bytes = 0
        """Bytes of the bodies of all open requests."""
        config = settings.config
        self.metrics = Metrics(self.name, config.policy.name, config.pot_size)
        self._preparing = 0
        """Requests whose texts are being tokenized."""
        self._failure: Exception | None = None
        self._load = load
        self._notify = notify
        self._engine: Engine | None = None
        self._pots: NamedPots | None = None
        self._folder_lock: FolderLock | None = None

    # ---------------------------------------------------------------- life

    def start(self) -> None:
        """Load the model and start the engine. An exception is kept in `failure`."""
        from infinipot.model.runner import ModelRunner
        from infinipot.server.warm_up import warm_up

        try:
            if self.settings.pot_dir is not None:
                self._folder_lock = FolderLock(self.settings.pot_dir, self.settings.shared)
            model, tokenizer = self._load()
            runner = ModelRunner(model)
            if self.settings.as_many_as_fit:
                self._fit(runner)
            warm_up(runner, tokenizer, self.settings)
            engine = Engine(runner, tokenizer, self.settings, self.metrics)
            engine.start()
            self._pots = NamedPots(engine.scheduler)
            self._engine = engine
            self._notify(f"{self.name} is ready")
        except Exception as problem:
            self._failure = problem

    def _fit(self, runner: ModelRunner) -> None:
        """Let as many pots into memory as fit."""
        from infinipot.server.memory import pot_bytes, sessions_that_fit

        config = self.settings.config
        count = sessions_that_fit(runner, config, self.settings.memory_fraction)
        self.settings = replace(self.settings, max_sessions=count)
        size = pot_bytes(runner, config) / 1e6
        self._notify(f"{count} sessions fit into memory, of {size:,.1f} MB each")

    @property
    def failure(self) -> Exception | None:
        """Why nobody can be served: the model cannot be loaded, or the engine has failed."""
        if self._failure is not None or self._engine is None:
            return self._failure
        return self._engine.failure

    @property
    def loading(self) -> bool:
        return self._engine is None and self._failure is None

    def close(self) -> None:
        """Refuse all jobs. Returns at once."""
        if self._engine is not None:
            self._engine.call(self._engine.close)

    def stop(self) -> None:
        """End all jobs, write all pots, and wait for both."""
        if self._engine is not None:
            self._engine.stop()
        if self._folder_lock is not None:
            self._folder_lock.release()

    # ---------------------------------------------------------------- parts

    @property
    def engine(self) -> Engine:
        """Raises APIError while the model is being loaded, and after a failure."""
        if self.loading:
            message = "the model is being loaded: try again in a moment"
            raise APIError(503, message, code="loading")
        if self._engine is None or self._engine.failure is not None:
            message = "the server has failed and is about to end; its log says why"
            raise APIError(503, message, code="failed")
        return self._engine

    @property
    def pots(self) -> NamedPots:
        """Raises APIError like `engine`."""
        self.engine  # noqa: B018 (raises)
        assert self._pots is not None
        return self._pots

    def check_model(self, model: str | None) -> None:
        if model is not None and model not in self.names:
            raise APIError(
                404,
                f"there is no model {model!r} here; this server has {self.name!r}",
                code="model_not_found",
                param="model",
            )

    async def tokenize(self, act: Callable[..., T], *args: Any) -> T:
        """Run a function in a tokenizer thread. Raises APIError if too many requests wait."""
        engine = self.engine
        engine.scheduler.check()
        if self._preparing >= self.settings.queue + self.settings.max_sessions:
            message = f"{self._preparing} requests are being prepared already: try again later"
            raise APIError(429, message, code="queue_full")
        self._preparing += 1
        result = asyncio.get_running_loop().run_in_executor(engine.prompts.threads, act, *args)
        try:
            while not result.done():
                await asyncio.wait({result}, timeout=STOPPING_S)
                if engine.stopped and not result.done():
                    raise shutting_down()
            return result.result()
        finally:
            result.cancel()
            result.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._preparing -= 1


async def service_of(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


ServiceDep = Annotated[Service, Depends(service_of)]


def handler_error(problem: Exception) -> APIError:
    """The client's error for an exception in a handler. A fault of the server is logged."""
    if isinstance(problem, ClientDisconnect):
        return APIError(400, "the client has left")  # nobody receives it
    error = error_of(problem)
    if error.status >= 500 and not isinstance(problem, APIError):
        log.error("a request failed: %s", problem, exc_info=problem)
    return error
