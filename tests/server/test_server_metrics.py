"""What /metrics shows is what the replies say."""

from __future__ import annotations

import itertools
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import openai
import pytest
from live import Live, live
from prometheus_client.parser import text_string_to_metric_families

from infinipot import __version__
from infinipot.server.metrics import FIRST_TOKEN_S, INTER_TOKEN_S
from infinipot.session import Session

LONG = "The keeper hid the letter under the third step. Nobody saw it. " * 10
CACHED = "infinipot_tokens_cached_total"


@pytest.fixture
def server() -> Iterator[Live]:
    with live({"max_sessions": 4}) as here:
        yield here


def cached(server: Live, *said: str, **options: str) -> tuple[str, int]:
    """An answer, and the tokens that usage calls cached."""
    reply = server.chat(*said, **options)
    return reply.choices[0].message.content, reply.usage.prompt_tokens_details.cached_tokens


def test_cached_tokens_are_those_of_usage(server: Live) -> None:
    assert server.gauge(CACHED) == 0
    answer, first = cached(server, LONG)
    assert server.gauge(CACHED) == first == 0
    _, second = cached(server, LONG, answer, "And when?")
    assert server.gauge(CACHED) == second > 500
    server.http.post("/v1/pots", json={"name": "book", "text": LONG}).raise_for_status()
    assert server.gauge(CACHED) == second
    answer, named = cached(server, "Who?", pot="book")
    assert server.gauge(CACHED) == second + named > second + 500
    _, more = cached(server, "Who?", answer, "Why?", pot="book")
    assert server.gauge(CACHED) == second + named + more > second + 2 * named


def test_a_request_that_fails_counts_what_its_pot_had_read(
    server: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, _ = cached(server, LONG)

    def broken(*args: object, **options: object) -> None:
        raise RuntimeError("broken")

    with monkeypatch.context() as patch:
        patch.setattr(Session, "generation_passes", broken)
        with pytest.raises(openai.InternalServerError):
            cached(server, LONG, answer, "And when?")
    failed = server.gauge(CACHED)
    _, again = cached(server, LONG, answer, "And when?")
    assert server.gauge(CACHED) - failed == again == failed > 500


def test_times_between_tokens_are_those_of_all_answers(server: Live) -> None:
    server.chat("Hello", max_tokens=7)
    server.chat("Hello you", max_tokens=1)
    assert server.gauge("infinipot_inter_token_seconds_count") == 6
    assert 0 < server.gauge("infinipot_inter_token_seconds_sum") < 60
    assert server.gauge("infinipot_first_token_seconds_count") == 0  # nothing was streamed
    list(
        server.openai.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "Hi"}], max_tokens=3, stream=True
        )
    )
    assert server.gauge("infinipot_first_token_seconds_count") == 1
    assert server.gauge("infinipot_inter_token_seconds_count") == 8


@pytest.mark.parametrize(
    ("buckets", "low", "high"), [(FIRST_TOKEN_S, 0.01, 300), (INTER_TOKEN_S, 0.001, 10)]
)
def test_buckets_have_even_widths(buckets: tuple[float, ...], low: float, high: float) -> None:
    assert (buckets[0], buckets[-1]) == (low, high)
    assert all(1.9 <= next_one / one <= 4 for one, next_one in itertools.pairwise(buckets))


# ---------------------------------------------------------------- names


def families(text: str) -> dict[str, str]:
    """The kind of each family that /metrics shows."""
    return {family.name: family.type for family in text_string_to_metric_families(text)}


def documented() -> dict[str, str]:
    """The kind of each name in the table of docs/server.md."""
    text = (Path(__file__).parents[2] / "docs" / "server.md").read_text()
    table = text[text.index("**Metrics.**") :].split("\n\n")[1]
    rows = re.findall(r"^\| `(\w+)` \| (\w+)", table, re.MULTILINE)
    assert len(rows) == len(table.splitlines()) - 2
    return {name.removesuffix("_total"): kind for name, kind in rows}


@pytest.mark.skipif(sys.platform != "linux", reason="process_ names are those of /proc")
def test_the_table_has_every_name_and_no_other(server: Live) -> None:
    shown = server.http.get("/metrics").text
    assert families(shown) == documented()
    assert "_created" not in shown


def test_names_follow_the_conventions_of_prometheus() -> None:
    for name, kind in documented().items():
        assert not re.search(r"_(ms|seconds_total|mb|count|sum|bucket)$", name)
        if kind == "histogram":
            assert name.endswith(("_seconds", "_tokens"))


# ---------------------------------------------------------------- requests


def buckets(server: Live, name: str, **labels: str) -> tuple[float, float]:
    """Count and sum of a histogram. labels: of its series."""
    found = {"_count": 0.0, "_sum": 0.0}
    for family in text_string_to_metric_families(server.http.get("/metrics").text):
        for sample in family.samples:
            end = sample.name.removeprefix(name)
            if family.name == name and end in found and sample.labels == labels:
                found[end] = sample.value
    return found["_count"], found["_sum"]


def until(met: Callable[[], bool]) -> None:
    """A request is measured when its answer has ended, which its client may see earlier."""
    last = time.monotonic() + 30
    while not met():
        assert time.monotonic() < last
        time.sleep(0.01)


def test_a_request_is_measured_once(server: Live) -> None:
    route = {"method": "POST", "path": "/v1/chat/completions"}
    prompt, generated = "infinipot_request_prompt_tokens", "infinipot_request_generated_tokens"
    started = time.monotonic()
    usage = server.chat(LONG, max_tokens=7).usage
    took = time.monotonic() - started
    until(lambda: buckets(server, "infinipot_request_duration_seconds", **route)[0] == 1)
    assert 0 < buckets(server, "infinipot_request_duration_seconds", **route)[1] <= took + 1
    assert buckets(server, prompt) == (1, usage.prompt_tokens)
    assert buckets(server, generated) == (1, 7)
    waited = buckets(server, "infinipot_request_queue_seconds")
    assert waited[0] == 1 and 0 <= waited[1] < took
    server.openai.completions.create(model="tiny", prompt=["One", "Two"], max_tokens=3)
    until(lambda: buckets(server, generated) == (2, 7 + 6))
    assert buckets(server, "infinipot_request_queue_seconds")[0] == 3  # two prompts, two places
    made = server.http.put("/v1/pots/book", content=LONG.encode()).json()
    until(lambda: buckets(server, prompt)[0] == 3)
    assert buckets(server, prompt)[1] > usage.prompt_tokens + made["tokens_read"] - 2
    assert buckets(server, generated)[0] == 2  # an upload asks nothing


def test_what_clients_make_up_is_no_label(server: Live) -> None:
    server.http.request("BREW", "/v1/tea")
    server.http.request("GET", "/v1/pots/mine")
    text = server.http.get("/metrics").text
    assert 'infinipot_requests_total{method="other",path="other",status="404"} 1.0' in text
    assert 'path="/v1/pots/{name}",status="404"} 1.0' in text
    assert "BREW" not in text and "mine" not in text and "tea" not in text


def test_what_is_refused_is_counted_and_has_no_tokens(
    server: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: object) -> None:
        raise RuntimeError("broken")

    with monkeypatch.context() as patch:
        patch.setattr(server.service, "check_model", broken)
        assert server.http.post("/tokenize", json={"prompt": "x"}).status_code == 500
    limits = server.service.engine.scheduler.limits
    with monkeypatch.context() as patch:
        patch.setattr(server.service.engine.scheduler, "limits", replace(limits, queue=0))
        with pytest.raises(openai.RateLimitError):
            server.chat("Hello")
    text = server.http.get("/metrics").text
    assert 'infinipot_requests_total{method="POST",path="/tokenize",status="500"} 1.0' in text
    assert 'path="/v1/chat/completions",status="429"} 1.0' in text
    assert buckets(server, "infinipot_request_prompt_tokens")[0] == 0
    assert buckets(server, "infinipot_request_queue_seconds")[0] == 0


def test_the_model_is_in_labels(server: Live) -> None:
    (line,) = re.findall(r"^infinipot_info\{(.*)\} 1\.0$", server.http.get("/metrics").text, re.M)
    assert 'model="tiny"' in line and 'policy="infinipot"' in line and 'pot_size="256"' in line
    assert f'version="{__version__}"' in line
