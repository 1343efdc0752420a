"""A span for each request, where OpenTelemetry's SDK is installed."""

from __future__ import annotations

import importlib.util
import time
from typing import Any

import pytest
from live import live

from infinipot.server import access_log
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
    pytest.importorskip("opentelemetry.sdk", reason="OpenTelemetry's SDK is not installed")
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    spans, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    monkeypatch.setattr(access_log, "find_tracer", lambda: provider.get_tracer("infinipot"))

    def newest(count: int) -> Any:
        until = time.monotonic() + 30
        while len(spans.get_finished_spans()) < count:
            assert time.monotonic() < until
            time.sleep(0.01)
        return spans.get_finished_spans()[-1]

    with live() as here:
        before = time.time_ns()
        seen = len(spans.get_finished_spans())
        reply = here.http.post(
            "/v1/chat/completions?a=secret", json=HELLO, headers={"traceparent": PARENT}
        )
        span = newest(seen + 1)
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
        span = newest(seen + 2)
        assert (span.name, span.parent) == ("GET /v1/pots/{name}", None)
        assert "gen_ai.usage.input_tokens" not in span.attributes

        def broken(*args: object) -> None:
            raise RuntimeError("broken")

        monkeypatch.setattr(here.service, "check_model", broken)
        here.http.post("/tokenize", json={"prompt": "x"})
        assert newest(seen + 3).status.status_code.name == "ERROR"
