"""Several replicas of a server on a Ray cluster."""

from __future__ import annotations

import logging
import re
import signal
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ray
from ray import serve
from ray.serve.config import AutoscalingConfig, HTTPOptions, RequestRouterConfig
from ray.serve.experimental.consistent_hash_router import ConsistentHashRouter

from infinipot.server.ray.replica import Replica
from infinipot.server.ray.router import Router
from infinipot.server.service import Service

NAME = "infinipot"
MAX_REQUESTS = 10_000
"""Requests that Ray hands on at once. The engine's queue is the real limit."""


@dataclass(frozen=True)
class Cluster:
    """address: "local" starts a cluster on this machine. replicas: their number; if `most` is
    given, their least number."""

    address: str
    replicas: int = 1
    most: int | None = None
    gpus: bool = True
    """Whether each replica gets a GPU of its own, if the cluster has GPUs."""

    def share(self) -> dict[str, int]:
        """Resources of one replica. Raises ValueError if the cluster has too few for all."""
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        kind = "GPU" if self.gpus and any(node.get("GPU") for node in nodes) else "CPU"
        have = [int(node.get(kind, 0)) for node in nodes]
        count = self.most or self.replicas
        if sum(have) < self.replicas:
            raise ValueError(
                f"{self.replicas} replicas need a {kind} each, "
                f"and this cluster has {sum(have)}: choose fewer --replicas"
            )
        if kind == "GPU":
            return {"num_gpus": 1, "num_cpus": 0}
        for share in range(max(have), 1, -1):
            if sum(cpus // share for cpus in have) >= count:
                return {"num_cpus": share}
        return {"num_cpus": 1}

    def scale(self, busy: int) -> dict[str, Any]:
        """busy: open requests at which Ray adds a replica."""
        if self.most is None:
            return {"num_replicas": self.replicas}
        return {
            "autoscaling_config": AutoscalingConfig(
                min_replicas=self.replicas, max_replicas=self.most, target_ongoing_requests=busy
            )
        }


def deploy(make: Callable[[], Service], cluster: Cluster, busy: int) -> None:
    """Start the replicas, and wait until all are ready. Raises RuntimeError if they fail."""
    replica = serve.deployment(Replica).options(
        name="replica",
        max_ongoing_requests=MAX_REQUESTS,
        ray_actor_options=cluster.share(),
        request_router_config=RequestRouterConfig(request_router_class=ConsistentHashRouter),
        max_constructor_retry_count=1,
        graceful_shutdown_timeout_s=30,
        health_check_period_s=2,
        **cluster.scale(busy),
    )
    router = serve.deployment(Router).options(
        name="door", max_ongoing_requests=MAX_REQUESTS, ray_actor_options={"num_cpus": 0}
    )
    serve.run(router.bind(replica.bind(make), make), name=NAME, route_prefix="/")


def reason(problem: BaseException) -> str:
    """Why a deployment failed: the last line of the replica's traceback."""
    text = "\n".join(
        about.message
        for application in serve.status().applications.values()
        for about in application.deployments.values()
    ) or str(problem)
    return re.split(r"^\s*[\w.]*(?:Error|Exception|BadUse): ", text, flags=re.MULTILINE)[-1].strip()


def connect(address: str) -> None:
    """Connect to a cluster, or start one. Raises ValueError with the reason if that fails."""
    local = address == "local"
    try:
        if match := re.fullmatch(r"(.+):(\d+)", address.removeprefix("ray://")):
            # fails at once, where Ray would try for minutes
            socket.create_connection((match[1], int(match[2])), timeout=5).close()
        ray.init(
            address=address,
            log_to_driver=False,
            logging_level=logging.ERROR,
            **({"include_dashboard": False} if local else {}),
        )
    except (OSError, RuntimeError, ValueError) as problem:
        raise ValueError(
            f"cannot use the Ray cluster {address!r}: {str(problem).splitlines()[0]}"
        ) from None


def run(
    make: Callable[[], Service],
    cluster: Cluster,
    *,
    host: str,
    port: int,
    busy: int,
    ready: Callable[[], None],
) -> None:
    """Serve until a stop signal. Then running requests may end, and the replicas write their pots.

    Raises ValueError if the cluster cannot be used or the replicas cannot start.
    """
    connect(cluster.address)
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    try:
        serve.start(http_options=HTTPOptions(host=host, port=port))
        try:
            deploy(make, cluster, busy)
            ready()
            wait_for_signal()
        except RuntimeError as problem:
            raise ValueError(f"the replicas could not be started: {reason(problem)}") from None
        finally:
            serve.delete(NAME)
    finally:
        ray.shutdown()


def wait_for_signal() -> None:
    """Return on SIGINT or SIGTERM."""
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    while not stop.wait(1):
        pass
