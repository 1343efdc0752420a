"""Bad input: only documented answers, no failure inside, and the server works as before."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from live import Live, document, live
from mutations import requests
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import content_type_conformance, status_code_conformance

ALLOWED = {200, 201, 400, 401, 403, 404, 405, 409, 413, 421, 429}


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    with live({"max_sessions": 4}, max_body_bytes=100_000) as here:
        yield here


def test_requests_that_are_almost_right(server: Live) -> None:
    before = server.chat("Hello").choices[0].message.content
    statuses = set()
    for method, path, body, headers in requests(seed=1, count=400):
        reply = server.http.request(method, path, content=body, headers=headers)
        assert reply.status_code in ALLOWED, (method, path, body, reply.text)
        if reply.status_code >= 400 and reply.status_code != 405:
            assert set(reply.json()["error"]) == {"message", "type", "param", "code"}
        statuses.add(reply.status_code)
    assert {200, 201, 400, 404} <= statuses
    assert server.chat("Hello").choices[0].message.content == before
    server.wait("infinipot_running", 0)


SCHEMA = schemathesis.openapi.from_dict(document())


@SCHEMA.parametrize()
@settings(
    max_examples=6,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_requests_from_the_document(server: Live, case: schemathesis.Case) -> None:
    """What the OpenAPI document describes, right and wrong; the long run is benchmarks/server_input.py."""
    reply = case.call(base_url=server.url)
    case.validate_response(
        reply, checks=[not_a_server_error, status_code_conformance, content_type_conformance]
    )


def test_many_at_once_do_not_mix(tmp_path: Path) -> None:
    """Eight conversations with four places: pots go to disk and come back while others are read.

    Each conversation gets the answers that it gets alone, and no pot is lost.
    """
    with live({"max_sessions": 4, "pot_dir": tmp_path}) as here:

        def talk(number: int) -> list[tuple[str, int]]:
            said: list[str] = []
            known = []
            for turn in range(3):
                said.append(
                    f"My secret is {number * 7919 % 1000}. Turn {turn}. "
                    + "It was hidden. " * number
                )
                reply = here.chat(*said, max_tokens=8)
                assert reply.usage.pot["peak"] <= 256
                said.append(reply.choices[0].message.content)
                known.append(reply.usage.prompt_tokens_details.cached_tokens)
            return list(zip(said[1::2], known, strict=True))

        alone = [talk(number) for number in range(8)]
        with ThreadPoolExecutor(8) as pool:
            for _ in range(2):
                assert list(pool.map(talk, range(8))) == alone
        assert len({answers[0] for answers in alone}) == 8
        assert all(known > 0 for answers in alone for _, known in answers[1:])
        assert here.gauge("infinipot_disk_failures_total") == 0
