"""What /metrics shows, in a registry of its own: several servers may live in one process."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    Info,
    Metric,
    PlatformCollector,
    ProcessCollector,
)

from infinipot import __version__

FIRST_TOKEN_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 100, 300)
INTER_TOKEN_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
DURATION_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 100, 300, 1000, 3600)
QUEUE_S = (0.001, 0.0025, 0.01, 0.025, 0.1, 0.25, 1, 2.5, 10, 30, 100, 300)
PROMPT_TOKENS = tuple(4.0**power for power in range(2, 13))
"""16 to 16,777,216: a text may be of any length."""
GENERATED_TOKENS = tuple(4.0**power for power in range(9))
"""1 to 65,536."""
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH")
"""Methods that are labels. A client may invent others, and each would be a time series."""


def method_label(method: str) -> str:
    if method in METHODS:
        return method
    return "other"


class Registry(CollectorRegistry):
    """Leaves out the time at which each series began, which would double their number."""

    def collect(self) -> Iterable[Metric]:
        for family in super().collect():
            family.samples = [one for one in family.samples if not one.name.endswith("_created")]
            yield family


class Metrics:
    """model: the name of the served model. policy: that of its pots. pot_size: their entries."""

    def __init__(self, model: str, policy: str, pot_size: int) -> None:
        self.registry = own = Registry()
        ProcessCollector(registry=own)
        PlatformCollector(registry=own)
        GCCollector(registry=own)
        about = {
            "model": model,
            "policy": policy,
            "pot_size": str(pot_size),
            "version": __version__,
        }
        Info("infinipot", "The served model, in labels.", registry=own).info(about)
        self._count_requests(own)
        self._count_tokens(own)
        self.failures = Counter(
            "infinipot_failures", "Requests that failed inside.", ["code"], registry=own
        )
        self.disk_failures = Counter(
            "infinipot_disk_failures", "Pots that could not be written or read.", registry=own
        )
        self.held = Gauge("infinipot_pots_in_memory", "Pots that wait in memory.", registry=own)
        self.bytes = Gauge("infinipot_pot_bytes", "Bytes of all pots in memory.", registry=own)

    def _count_requests(self, own: Registry) -> None:
        self.requests = Counter(
            "infinipot_requests", "Requests answered.", ["method", "path", "status"], registry=own
        )
        self.running = Gauge("infinipot_running", "Requests being read or answered.", registry=own)
        self.waiting = Gauge("infinipot_waiting", "Requests in the queue.", registry=own)
        self.duration_s = Histogram(
            "infinipot_request_duration_seconds",
            "From the head of a request to the end of its answer.",
            ["method", "path"],
            registry=own,
            buckets=DURATION_S,
        )
        self.queue_s = Histogram(
            "infinipot_request_queue_seconds",
            "In the queue, of prompts and texts that got a place.",
            registry=own,
            buckets=QUEUE_S,
        )

    def _count_tokens(self, own: Registry) -> None:
        self.read = Counter("infinipot_tokens_read", "Tokens read into pots.", registry=own)
        self.cached = Counter(
            "infinipot_tokens_cached", "Prompt tokens that a pot had read before.", registry=own
        )
        self.generated = Counter("infinipot_tokens_generated", "Tokens of answers.", registry=own)
        self.request_prompt_tokens = Histogram(
            "infinipot_request_prompt_tokens",
            "Tokens before the answer, of each request that got a place.",
            registry=own,
            buckets=PROMPT_TOKENS,
        )
        self.request_generated_tokens = Histogram(
            "infinipot_request_generated_tokens",
            "Tokens of the answer, of each request that asked and got a place.",
            registry=own,
            buckets=GENERATED_TOKENS,
        )
        self.first_token_s = Histogram(
            "infinipot_first_token_seconds",
            "From request to first text, of streamed answers.",
            registry=own,
            buckets=FIRST_TOKEN_S,
        )
        self.inter_token_s = Histogram(
            "infinipot_inter_token_seconds",
            "Between two tokens of an answer.",
            registry=own,
            buckets=INTER_TOKEN_S,
        )
