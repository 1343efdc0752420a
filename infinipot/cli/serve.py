"""`infinipot serve`: from options to a server process."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import logging
import os
import platform
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infinipot.cli.console import BadUse, say
from infinipot.cli.options import Given

if TYPE_CHECKING:
    from infinipot.server.engine import Settings
    from infinipot.server.ray.deploy import Cluster

MAX_TOKENS = 1024
"""Most tokens of an answer whose request names no number."""


M_ARENA_MAX = -8
"""The number that glibc's malloc.h has for it."""


def few_heaps() -> None:
    """Let all threads share two heaps, before there are any threads. glibc would give them up to
    eight for each core, and every one keeps what it once needed, so that resident memory creeps for
    hours. Whoever sets MALLOC_ARENA_MAX has decided otherwise."""
    if platform.libc_ver()[0] == "glibc" and "MALLOC_ARENA_MAX" not in os.environ:
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 2)


def settings_of(
    given: Given,
    *,
    max_sessions: int,
    queue: int,
    pot_dir: Path | None,
    most_tokens: int,
    shared: bool,
) -> Settings:
    from infinipot.checks import within
    from infinipot.config import Sampling
    from infinipot.server.engine import Settings

    for name, value, least in (
        ("max-sessions", max_sessions, 2),
        ("queue", queue, 1),
        ("max-tokens-limit", most_tokens, 1),
    ):
        within(name, value, least)
    config = given.config()
    if config.policy.cuts:
        raise BadUse(
            "policy 'truncate' reads only the ends of a text, which a conversation has not: choose another one to serve with"
        )
    if pot_dir is not None:
        try:
            pot_dir.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise BadUse(f"cannot use --pot-dir {pot_dir}: {problem.strerror}") from None
        if not os.access(pot_dir, os.W_OK):
            raise BadUse(f"cannot use --pot-dir {pot_dir}: it cannot be written to")
    sampling = Sampling(**{"max_tokens": MAX_TOKENS, **given.of(Sampling)})
    if sampling.max_tokens > most_tokens:
        raise BadUse(
            f"--max-tokens {sampling.max_tokens} is above --max-tokens-limit {most_tokens}: lower one or raise the other"
        )
    bounds = {"max_sessions": max_sessions, "queue": queue, "most_tokens": most_tokens}
    return Settings(
        config=config,
        sampling=sampling,
        pot_dir=pot_dir,
        shared=shared and pot_dir is not None,
        **bounds,
    )


def loader(given: Given, model: str) -> Callable[[], tuple[Any, Any]]:
    """What loads the model when the server is up."""

    def load() -> tuple[Any, Any]:
        from infinipot.cli.session import silence
        from infinipot.model.load import load

        if not given["debug"]:
            silence(bool(given["quiet"]))
        try:
            loaded = load(
                model, **{name: given[name] for name in ("device", "dtype") if given[name]}
            )
        except OSError as problem:
            raise BadUse(str(problem)) from problem
        if not given["quiet"]:
            say(f"{model} is ready")
        return loaded

    return load


def run(
    given: Given,
    model: str,
    *,
    host: str,
    port: int,
    api_key: str | None,
    max_body_mb: int,
    patience_s: float,
    allowed_hosts: tuple[str, ...],
    cluster: dict[str, Any],
    **options: Any,
) -> None:
    """cluster: the options --ray, --replicas and --max-replicas, by name."""
    few_heaps()
    ray = cluster["ray"]
    replicas = cluster["replicas"]
    most = cluster["max_replicas"]
    if ray is None and (replicas, most) != (None, None):
        raise BadUse("--replicas and --max-replicas are for a Ray cluster: give --ray, too")
    try:
        from infinipot.checks import within
        from infinipot.server.hosts import Hosts
        from infinipot.server.process import bound, serve
        from infinipot.server.service import Serving
    except ModuleNotFoundError as problem:
        raise BadUse(
            f"the server needs {problem.name}, which is not installed: pip install 'infinipot[serve]'"
        ) from None
    logging.basicConfig(format="infinipot: %(message)s", level=logging.ERROR)
    settings = settings_of(given, shared=ray is not None, **options)
    if not (os.environ.get("INFINIPOT_API_KEY", "none") if api_key is None else api_key).strip():
        raise BadUse(
            "the API key is empty, which would let anybody in: give one, or leave out --api-key and INFINIPOT_API_KEY altogether"
        )
    for name, value in (("max-body-mb", max_body_mb), ("client-timeout", patience_s)):
        within(name, value, 1)
    limits: dict[str, Any] = {
        "api_key": api_key,
        "max_body_bytes": max_body_mb << 20,
        "patience_s": patience_s,
    }
    limits["hosts"] = Hosts(host, allowed_hosts)
    start: Callable[[socket.socket], None]
    if ray is None:
        start = functools.partial(serve, Serving(model, loader(given, model), settings, **limits))
    else:
        where = cluster_of(given, ray, 1 if replicas is None else replicas, most)
        start = functools.partial(on_ray, given, model, settings, limits, where, host)
    place = bound(host, port)
    if not given["quiet"]:
        address, number = place.getsockname()[:2]
        say(
            f"http://{f'[{address}]' if ':' in address else address}:{number} (loading {model}; Ctrl-C stops)"
        )
        if address not in ("127.0.0.1", "::1") and not api_key:
            say("anybody who can reach this address can use it: --api-key would ask for a key")
    start(place)


def cluster_of(given: Given, address: str, replicas: int, most: int | None) -> Cluster:
    from infinipot.checks import within

    within("replicas", replicas, 1)
    if most is not None:
        within("max-replicas", most, replicas)
    try:
        from infinipot.server.ray.deploy import Cluster
    except ModuleNotFoundError as problem:
        raise BadUse(
            f"--ray needs {problem.name}, which is not installed: pip install 'infinipot[serve,ray]'"
        ) from None
    return Cluster(address, replicas, most, gpus=str(given["device"] or "cuda").startswith("cuda"))


def on_ray(
    given: Given,
    model: str,
    settings: Settings,
    limits: dict[str, Any],
    cluster: Cluster,
    host: str,
    place: socket.socket,
) -> None:
    """Serve from replicas, whose processes have other folders to start from."""
    from infinipot.server.ray.deploy import run
    from infinipot.server.service import Serving

    port = place.getsockname()[1]
    place.close()  # it is free: Ray listens there
    if Path(model).exists():
        model = str(Path(model).resolve())
    else:
        model = model
    if settings.pot_dir is not None:
        settings = dataclasses.replace(settings, pot_dir=settings.pot_dir.resolve())
    make = functools.partial(Serving, model, loader(given, model), settings, **limits)
    if given["quiet"]:
        ready = ""
    else:
        ready = f"{model} is ready"
    run(
        make,
        cluster,
        host=host,
        port=port,
        busy=settings.max_sessions,
        ready=lambda: say(ready) if ready else None,
    )
