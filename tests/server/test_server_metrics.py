"""What /metrics shows is what the replies say."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import openai
import pytest
from live import Live, live

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
        patch.setattr(Session, "generation", broken)
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
