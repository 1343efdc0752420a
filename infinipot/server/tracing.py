"""An OpenTelemetry span for each request, where OpenTelemetry's SDK is installed.

Whoever starts the process sets the SDK up, as `opentelemetry-instrument` does. Texts, keys and
queries are in no span.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

ATTRIBUTES = {
    "method": "http.request.method",
    "path": "url.path",
    "status": "http.response.status_code",
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "answer_tokens": "gen_ai.usage.output_tokens",
    "cached_tokens": "infinipot.cached_tokens",
    "queue_seconds": "infinipot.queue_seconds",
    "finish": "infinipot.finish",
    "request_id": "infinipot.request_id",
}
"""Names of the fields of a line of the access log, as OpenTelemetry has them where it does."""


def find_tracer() -> Tracer | None:
    """What spans come from; None without the SDK, since they would go nowhere."""
    try:
        if importlib.util.find_spec("opentelemetry.sdk") is None:
            return None
        from opentelemetry import trace
    except ModuleNotFoundError:
        return None
    return trace.get_tracer("infinipot")


def write_span(
    tracer: Tracer, fields: Mapping[str, Any], route: str, headers: Mapping[str, str], start_ns: int
) -> None:
    """The span of a request that has ended.

    fields: those of its line in the access log. headers: a span of the client's may be in them.
    start_ns: when it began, Unix time.
    """
    from opentelemetry.propagate import extract
    from opentelemetry.trace import SpanKind, StatusCode

    known = {ATTRIBUTES[name]: fields[name] for name in ATTRIBUTES if fields[name] is not None}
    span = tracer.start_span(
        f"{fields['method']} {route}",
        context=extract(headers),
        kind=SpanKind.SERVER,
        attributes={**known, "http.route": route},
        start_time=start_ns,
    )
    if fields["status"] >= 500:
        span.set_status(StatusCode.ERROR)
    span.end()
