"""What /metrics shows, in a registry of its own: several servers may live in one process."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

FIRST_TOKEN_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 100, 300)
INTER_TOKEN_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)


class Metrics:
    def __init__(self) -> None:
        self.registry = own = CollectorRegistry()
        self.requests = Counter(
            "infinipot_requests", "Requests answered.", ["path", "status"], registry=own
        )
        self.read = Counter("infinipot_tokens_read", "Tokens read into pots.", registry=own)
        self.cached = Counter(
            "infinipot_tokens_cached", "Prompt tokens that a pot had read before.", registry=own
        )
        self.generated = Counter("infinipot_tokens_generated", "Tokens of answers.", registry=own)
        self.failures = Counter(
            "infinipot_failures", "Requests that failed inside.", ["code"], registry=own
        )
        self.disk_failures = Counter(
            "infinipot_disk_failures", "Pots that could not be written or read.", registry=own
        )
        self.running = Gauge("infinipot_running", "Requests being read or answered.", registry=own)
        self.waiting = Gauge("infinipot_waiting", "Requests in the queue.", registry=own)
        self.held = Gauge("infinipot_pots_in_memory", "Pots that wait in memory.", registry=own)
        self.bytes = Gauge("infinipot_pot_bytes", "Bytes of all pots in memory.", registry=own)
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
