"""A span for each request, where OpenTelemetry's SDK is installed."""

from __future__ import annotations

import importlib.util
import time
from typing import Any

import pytest
from live import live

from infinipot.server.tracing import find_tracer

HELLO = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 5}
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_without_the_sdk_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert find_tracer() is None
    monkeypatch.setattr(importlib.util, "find_spec", missing)
    assert find_tracer() is None


def test_a_span_says_what_a_request_took(monkeypatch: pytest.MonkeyPatch) -> None:
    """The only span of it, FastAPI's own included."""
    pytest.importorskip("opentelemetry.sdk", reason="OpenTelemetry's SDK is not installed")
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    spans, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    trace.set_tracer_provider(provider)  # for the whole process: shut down below

    def asked() -> list[Any]:
        return [span for span in spans.get_finished_spans() if not span.name.endswith("/ready")]

    def newest(count: int) -> Any:
        until = time.monotonic() + 30
        while len(asked()) < count:
            assert time.monotonic() < until
            time.sleep(0.01)
        return asked()[-1]

    with live() as here:
        before = time.time_ns()
        reply = here.http.post(
            "/v1/chat/completions?a=secret", json=HELLO, headers={"traceparent": PARENT}
        )
        span = newest(1)
        usage = reply.json()["usage"]
        assert span.name == "POST /v1/chat/completions"
        assert span.kind.name == "SERVER"
        assert f"{span.context.trace_id:032x}" in PARENT and f"{span.parent.span_id:016x}" in PARENT
        assert before <= span.start_time < span.end_time <= time.time_ns()
        told = dict(span.attributes)
        assert 0 <= told.pop("infinipot.queue_seconds") <= (span.end_time - span.start_time) / 1e9
        assert told == {
            "http.request.method": "POST",
            "http.route": "/v1/chat/completions",
            "url.path": "/v1/chat/completions",
            "http.response.status_code": 200,
            "gen_ai.usage.input_tokens": usage["prompt_tokens"],
            "gen_ai.usage.output_tokens": 5,
            "infinipot.cached_tokens": 0,
            "infinipot.finish": "length",
            "infinipot.request_id": reply.headers["x-request-id"],
        }
        assert span.status.status_code.name != "ERROR"
        here.http.get("/v1/pots/mine")
        span = newest(2)
        assert (span.name, span.parent) == ("GET /v1/pots/{name}", None)
        assert "gen_ai.usage.input_tokens" not in span.attributes

        def broken(*args: object) -> None:
            raise RuntimeError("broken")

        monkeypatch.setattr(here.service, "check_model", broken)
        here.http.post("/tokenize", json={"prompt": "x"})
        assert newest(3).status.status_code.name == "ERROR"
        here.http.put("/v1/pots/book?question=secret", content=b"The keeper hid the letter.")
        assert newest(4).attributes["infinipot.finish"] == "filled"
    assert len(asked()) == 4
    assert not any(word in span.to_json() for span in asked() for word in ("secret", "Hello"))
    provider.shutdown()
