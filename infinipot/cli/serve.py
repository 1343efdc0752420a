"""infinipot serve"""

from __future__ import annotations

import ctypes
import os
import platform
from pathlib import Path
from typing import Annotated

from infinipot.cli.console import BadUse, say
from infinipot.cli.options import Given

if TYPE_CHECKING:
    from infinipot.config import PotConfig
    from infinipot.server.ray.deploy import Cluster
    from infinipot.server.service import Service
    from infinipot.server.settings import Settings

MAX_TOKENS = 1024
"""Most tokens of an answer if the request sets no number."""
LIMITS = ("max_body_mb", "patience_s", "allowed_hosts")
"""Options of `access_of`."""
M_ARENA_MAX = -8
"""The constant of glibc's malloc.h."""


def few_heaps() -> None:
    """Let all threads share two heaps. Must run before the first thread starts.

    By default glibc gives threads up to eight heaps for each core. Each heap keeps its largest
    size, so that resident memory grows for hours. MALLOC_ARENA_MAX, if set, decides instead.
    """
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
    from infinipot.server.settings import Settings

    for name, value, least in (
        ("max-sessions", max_sessions, 2),
        ("queue", queue, 1),
        ("max-tokens-limit", most_tokens, 1),
    ):
        within(name, value, least)
    config = config_of(given)
    if pot_dir is not None:
        check_pot_dir(pot_dir)
    sampling = Sampling(**{"max_tokens": MAX_TOKENS, **given.of(Sampling)})
    if sampling.max_tokens > most_tokens:
        raise BadUse(
            f"--max-tokens {sampling.max_tokens} is above --max-tokens-limit {most_tokens}: "
            "lower one or raise the other"
        )
    return Settings(
        config=config,
        sampling=sampling,
        max_sessions=max_sessions,
        queue=queue,
        most_tokens=most_tokens,
        pot_dir=pot_dir,
        shared=shared and pot_dir is not None,
    )


def config_of(given: Given) -> PotConfig:
    """The config of the server's pots. Raises BadUse if a server cannot use it."""
    from infinipot.cli import useful
    from infinipot.config import PotConfig
    from infinipot.policies import POLICIES

    config = PotConfig(**given.of(PotConfig))
    reads = POLICIES[config.policy].reads
    choosable = [name for name, other in POLICIES.items() if other.reads == reads]
    useful.check(given, [config.policy], choosable)
    if config.policy == "truncate":
        raise BadUse(
            "policy 'truncate' reads only the ends of a text, which a conversation has not: "
            "choose another one to serve with"
        )
    return config


def check_pot_dir(pot_dir: Path) -> None:
    """Create the folder. Raises BadUse if it cannot be used."""
    try:
        pot_dir.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise BadUse(f"cannot use --pot-dir {pot_dir}: {problem.strerror}") from None
    if not os.access(pot_dir, os.W_OK):
        raise BadUse(f"cannot use --pot-dir {pot_dir}: it cannot be written to")


def loader(given: Given, model: str) -> Callable[[], tuple[Any, Any]]:
    """A function that loads the model. The server calls it after its start."""

    def load() -> tuple[Any, Any]:
        from infinipot.cli.run import silence
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
    cluster: dict[str, Any],
    **options: Any,
) -> None:
    """cluster: --ray, --replicas and --max-replicas. options: of `access_of` and `settings_of`."""
    few_heaps()
    ray = cluster["ray"]
    if ray is None and (cluster["replicas"], cluster["max_replicas"]) != (None, None):
        raise BadUse("--replicas and --max-replicas are for a Ray cluster: give --ray, too")
    try:
        from infinipot.server.process import bound, serve
        from infinipot.server.service import Service
    except ModuleNotFoundError as problem:
        raise BadUse(
            f"the server needs {problem.name}, which is not installed: "
            "pip install 'infinipot[serve]'"
        ) from None
    logging.basicConfig(format="infinipot: %(message)s", level=logging.ERROR)
    limits = {name: options.pop(name) for name in LIMITS}
    settings = settings_of(given, shared=ray is not None, **options)
    access = access_of(host, api_key, **limits)
    start: Callable[[socket.socket], None]
    if ray is None:
        start = functools.partial(serve, Service(model, loader(given, model), settings, **access))
    else:
        deployment = cluster_of(given, ray, cluster["replicas"], cluster["max_replicas"])
        path, settings = absolute(model, settings)
        make = functools.partial(Service, path, loader(given, path), settings, **access)
        ready = None if given["quiet"] else f"{path} is ready"
        start = functools.partial(on_ray, make, deployment, settings.max_sessions, host, ready)
    place = bound(host, port)
    if not given["quiet"]:
        say_address(place, model, bool(api_key))
    start(place)


def access_of(
    host: str,
    api_key: str | None,
    *,
    max_body_mb: int,
    patience_s: float,
    allowed_hosts: tuple[str, ...],
) -> dict[str, Any]:
    """The fields of the server's Access. Raises BadUse for an empty key."""
    from infinipot.checks import within
    from infinipot.server.hosts import Hosts

    check_api_key(api_key)
    for name, value in (("max-body-mb", max_body_mb), ("client-timeout", patience_s)):
        within(name, value, 1)
    return {
        "api_key": api_key,
        "max_body_bytes": max_body_mb << 20,
        "patience_s": patience_s,
        "hosts": Hosts(host, allowed_hosts),
    }


def check_api_key(api_key: str | None) -> None:
    """Raise BadUse if the option or the environment holds an empty key."""
    if api_key is None:
        api_key = os.environ.get("INFINIPOT_API_KEY", "none")
    if not api_key.strip():
        raise BadUse(
            "the API key is empty, which would let anybody in: "
            "give one, or leave out --api-key and INFINIPOT_API_KEY altogether"
        )


def say_address(place: socket.socket, model: str, has_key: bool) -> None:
    address, number = place.getsockname()[:2]
    shown = f"[{address}]" if ":" in address else address
    say(f"http://{shown}:{number} (loading {model}; Ctrl-C stops)")
    if address not in ("127.0.0.1", "::1") and not has_key:
        say("anybody who can reach this address can use it: --api-key would ask for a key")


def cluster_of(given: Given, address: str, replicas: int | None, most: int | None) -> Cluster:
    from infinipot.checks import within

    replicas = 1 if replicas is None else replicas
    within("replicas", replicas, 1)
    if most is not None:
        within("max-replicas", most, replicas)
    try:
        from infinipot.server.ray.deploy import Cluster
    except ModuleNotFoundError as problem:
        raise BadUse(
            f"--ray needs {problem.name}, which is not installed: "
            "pip install 'infinipot[serve,ray]'"
        ) from None
    return Cluster(address, replicas, most, gpus=str(given["device"] or "cuda").startswith("cuda"))


def absolute(model: str, settings: Settings) -> tuple[str, Settings]:
    """Absolute paths, since replicas start in other folders."""
    if Path(model).exists():
        model = str(Path(model).resolve())
    if settings.pot_dir is not None:
        settings = dataclasses.replace(settings, pot_dir=settings.pot_dir.resolve())
    return model, settings


def on_ray(
    make: Callable[[], Service],
    cluster: Cluster,
    busy: int,
    host: str,
    ready: str | None,
    place: socket.socket,
) -> None:
    """Serve from replicas. busy: see `Cluster.scale`. ready: what to say when they are ready."""
    from infinipot.server.ray.deploy import run

    port = place.getsockname()[1]
    place.close()  # Ray listens there
    run(
        make,
        cluster,
        host=host,
        port=port,
        busy=busy,
        ready=lambda: None if ready is None else say(ready),
    )
