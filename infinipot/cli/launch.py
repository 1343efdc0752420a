"""From the flags of `infinipot serve` to a server process."""

from __future__ import annotations

import dataclasses
import functools
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infinipot.cli.command_options import CommandOptions
from infinipot.cli.console import BadUse
from infinipot.optional import extra

if TYPE_CHECKING:
    from infinipot.server.ray.deploy import Cluster
    from infinipot.server.settings import Settings

LEVELS = ("debug", "info", "warning", "error", "critical")
MAX_TOKENS = 1024
"""Most tokens of an answer whose request names no number."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags:
    """The flags that only `serve` has."""

    host: str
    port: int
    api_key: str | None
    pot_dir: Path | None
    max_sessions: int | None
    memory_fraction: float | None
    max_stall_ms: float
    queue: int
    max_body_mb: int
    max_tokens_limit: int
    client_timeout: float
    document_timeout: float
    allowed_hosts: tuple[str, ...]
    allowed_origins: tuple[str, ...]
    root_path: str
    tool_parser: str | None
    tool_template: str | None
    access_log: str | None
    log_level: str
    log_format: str
    ray: str | None
    replicas: int | None
    max_replicas: int | None


def launch(options: CommandOptions, model: str, flags: Flags) -> None:
    """Check everything, bind the port, say where the server is, and serve."""
    if flags.ray is None and (flags.replicas, flags.max_replicas) != (None, None):
        raise BadUse("--replicas and --max-replicas are for a Ray cluster: give --ray, too")
    try:
        from infinipot.server import process, service  # noqa: F401
    except ModuleNotFoundError as problem:
        raise BadUse(
            f"the server needs {problem.name}, which is not installed: pip install {extra('serve')}"
        ) from None
    flags = set_up_logs(flags)
    settings = server_settings(options, flags)
    start = starter(options, model, settings, flags)
    place = process.bound(flags.host, flags.port)
    if not options.quiet:
        greet(place, model, flags)
    start(place)


def set_up_logs(flags: Flags) -> Flags:
    """Let all messages go to stderr. Returns the flags with the form of the access log."""
    from infinipot.checks import known
    from infinipot.server.access_log import KINDS, write_access_log
    from infinipot.server.logs import FORMATS, write_logs

    known("log-level", flags.log_level, LEVELS)
    known("log-format", flags.log_format, FORMATS)
    access_log = flags.access_log or flags.log_format
    known("access-log", access_log, KINDS)
    write_logs(flags.log_level, flags.log_format)
    write_access_log(access_log)
    return dataclasses.replace(flags, access_log=access_log)


def greet(place: socket.socket, model: str, flags: Flags) -> None:
    from infinipot.server.logs import say

    address, port = place.getsockname()[:2]
    host = address
    if ":" in address:
        host = f"[{address}]"
    say(f"http://{host}:{port} (loading {model}; Ctrl-C stops)")
    if address not in ("127.0.0.1", "::1") and not flags.api_key:
        say("anybody who can reach this address can use it: --api-key would ask for a key")


def server_settings(options: CommandOptions, flags: Flags) -> Settings:
    from infinipot.checks import within
    from infinipot.sampling import Sampling
    from infinipot.server.root_path import checked
    from infinipot.server.settings import Settings

    check_memory(flags)
    within("queue", flags.queue, 1)
    within("max-stall-ms", flags.max_stall_ms, 1)
    within("max-tokens-limit", flags.max_tokens_limit, 1)
    config = options.config()
    if config.policy.cuts:
        raise BadUse(
            "policy 'truncate' reads only the ends of a text, and a conversation has no end yet: "
            "choose another one to serve with"
        )
    if flags.pot_dir is not None:
        make_folder(flags.pot_dir)
    sampling = Sampling(**{"max_tokens": MAX_TOKENS, **options.fields_of(Sampling)})
    if sampling.max_tokens > flags.max_tokens_limit:
        raise BadUse(
            f"--max-tokens {sampling.max_tokens} is above --max-tokens-limit "
            f"{flags.max_tokens_limit}: lower one or raise the other"
        )
    bounds: dict[str, Any] = {
        "as_many_as_fit": flags.max_sessions is None and flags.ray is None,
        "memory_fraction": flags.memory_fraction,
        "queue": flags.queue,
        "max_stall_s": flags.max_stall_ms / 1000,
        "most_tokens": flags.max_tokens_limit,
        "access_log": flags.access_log,
        "root_path": checked(flags.root_path),
        **tool_settings(flags),
    }
    if flags.max_sessions is not None:
        bounds["max_sessions"] = flags.max_sessions
    shared = flags.ray is not None and flags.pot_dir is not None
    return Settings(
        config=config, sampling=sampling, pot_dir=flags.pot_dir, shared=shared, **bounds
    )


def tool_settings(flags: Flags) -> dict[str, Any]:
    """How functions are told of, and how their calls are read."""
    from infinipot.text.calls.registry import family_of
    from infinipot.text.templates import source_of

    if flags.tool_parser is not None:
        family_of("", flags.tool_parser)
    source = None if flags.tool_template is None else source_of(flags.tool_template)
    return {"tool_parser": flags.tool_parser, "tool_template": source}


def check_memory(flags: Flags) -> None:
    from infinipot.checks import within

    if flags.max_sessions is not None:
        within("max-sessions", flags.max_sessions, 2)
    if flags.memory_fraction is None:
        return
    if not 0 < flags.memory_fraction <= 1:
        raise BadUse(
            f"memory-fraction={flags.memory_fraction} is not allowed: "
            "it must be above 0 and at most 1"
        )
    if flags.max_sessions is not None or flags.ray is not None:
        raise BadUse("--memory-fraction does nothing with --max-sessions or --ray: leave it out")


def make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise BadUse(f"cannot use --pot-dir {path}: {problem.strerror}") from None
    if not os.access(path, os.W_OK):
        raise BadUse(f"cannot use --pot-dir {path}: it cannot be written to")


def limits(flags: Flags) -> dict[str, Any]:
    """Who may use the server, and how much of it a request may take."""
    from infinipot.checks import within
    from infinipot.server.hosts import Hosts

    key = flags.api_key
    if key is None:
        key = os.environ.get("INFINIPOT_API_KEY", "none")
    if not key.strip():
        raise BadUse(
            "the API key is empty, which would let anybody in: give one, "
            "or leave out --api-key and INFINIPOT_API_KEY altogether"
        )
    for origin in flags.allowed_origins:
        if origin != "*" and "://" not in origin:
            raise BadUse(
                f"--allowed-origin {origin!r} is not an origin: give scheme and name, "
                f"https://{origin}, as the browser shows them"
            )
    within("max-body-mb", flags.max_body_mb, 1)
    within("client-timeout", flags.client_timeout, 1)
    within("document-timeout", flags.document_timeout, 1)
    return {
        "api_key": flags.api_key,
        "max_body_bytes": flags.max_body_mb << 20,
        "patience_s": flags.client_timeout,
        "conversion_s": flags.document_timeout,
        "hosts": Hosts(flags.host, flags.allowed_hosts),
        "origins": flags.allowed_origins,
    }


def starter(
    options: CommandOptions, model: str, settings: Settings, flags: Flags
) -> Callable[[socket.socket], None]:
    """What serves at a bound socket: one process, or replicas on a cluster."""
    from infinipot.server.logs import say
    from infinipot.server.process import serve
    from infinipot.server.service import Service

    bounds = limits(flags)
    if flags.ray is None:
        if not options.quiet:
            bounds["notify"] = say
        service = Service(model, loader(options, model, flags), settings, **bounds)
        return functools.partial(serve, service)
    for name in ("tensor_parallel", "spread"):
        if options[name]:
            raise BadUse(f"{options.origins[name]} is for a server without --ray: leave one out")
    where = cluster(options, flags)
    if Path(model).exists():  # processes of a cluster start in other folders
        model = str(Path(model).resolve())
    if settings.pot_dir is not None:
        settings = dataclasses.replace(settings, pot_dir=settings.pot_dir.resolve())
    make = functools.partial(Service, model, loader(options, model, flags), settings, **bounds)

    def ready() -> None:
        if not options.quiet:
            say(f"{model} is ready")

    def start(place: socket.socket) -> None:
        from infinipot.server.ray.deploy import run

        port = place.getsockname()[1]
        place.close()  # the port is free: Ray listens there
        busy = settings.max_sessions
        run(make, where, host=flags.host, port=port, busy=busy, ready=ready)

    return start


def cluster(options: CommandOptions, flags: Flags) -> Cluster:
    from infinipot.checks import within

    replicas = 1
    if flags.replicas is not None:
        replicas = flags.replicas
    within("replicas", replicas, 1)
    if flags.max_replicas is not None:
        within("max-replicas", flags.max_replicas, replicas)
    try:
        from infinipot.server.ray.deploy import Cluster
    except ModuleNotFoundError as problem:
        raise BadUse(
            f"--ray needs {problem.name}, which is not installed: pip install {extra('serve,ray')}"
        ) from None
    gpus = str(options["device"] or "cuda").startswith("cuda")
    return Cluster(str(flags.ray), replicas, flags.max_replicas, gpus=gpus)


def loader(options: CommandOptions, model: str, flags: Flags) -> Callable[[], tuple[Any, Any]]:
    """What loads the model when the server is up."""

    def load() -> tuple[Any, Any]:
        from infinipot.cli.console import silence
        from infinipot.model.load import load
        from infinipot.server.logs import log_others

        if not options["debug"]:
            silence(options.quiet)
        if flags.log_format == "json":
            log_others()
        try:
            return load(model, **options.loading)
        except OSError as problem:
            raise BadUse(str(problem)) from problem

    return load
