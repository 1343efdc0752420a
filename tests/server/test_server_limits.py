"""What one client can take of a server: bounded, and said so in a sentence."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
import re
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from live import Live, live, tiny

from infinipot.cli import main
from infinipot.server import bodies, process, stream
from infinipot.server.app import create_app
from infinipot.server.events import Piece
from infinipot.server.fair_lock import FairLock
from infinipot.server.hosts import Hosts
from infinipot.server.service import Service
from infinipot.server.settings import Settings
from infinipot.server.throttled_log import ThrottledLog


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    with live({"max_sessions": 4}) as here:
        yield here


def chat(content: str) -> str:
    return f'{{"model": "tiny", "messages": [{{"role": "user", "content": {content}}}]}}'


def many(item: str, count: int) -> str:
    return f"[{', '.join([item] * count)}]"


WRONG = {
    "parts": ("/v1/chat/completions", chat(many("{}", 200_000))),
    "parts of parts": ("/v1/chat/completions", chat(many("[[]]", 200_000))),
    "messages": ("/v1/chat/completions", f'{{"model": "tiny", "messages": {many("{}", 200_000)}}}'),
    "stop": ("/v1/chat/completions", chat('"x"')[:-1] + f', "stop": {many("0", 200_000)}}}'),
    "tools": ("/v1/chat/completions", chat('"x"')[:-1] + f', "tools": {many("0", 200_000)}}}'),
    "ids": ("/v1/completions", f'{{"model": "tiny", "prompt": {many("null", 200_000)}}}'),
    "lists of ids": (
        "/v1/completions",
        f'{{"model": "tiny", "prompt": {many("[null]", 200_000)}}}',
    ),
    "fields": ("/v1/pots", json.dumps({str(number): 0 for number in range(200_000)})),
    "a few fields": ("/v1/chat/completions", json.dumps({str(number): 0 for number in range(90)})),
    "metadata": (
        "/v1/completions",
        json.dumps({"metadata": {str(number): 0 for number in range(200_000)}}),
    ),
    "too many values": ("/tokenize", many("[]", 2_000_000)),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_is_wrong_many_times_is_told_a_few_times(server: Live, kind: str) -> None:
    """Every problem that is noted takes a thousand times the bytes that cause it."""
    path, body = WRONG[kind]
    reply = server.http.post(path, content=body, headers={"content-type": "application/json"})
    assert reply.status_code == 400
    message = reply.json()["error"]["message"]
    more = re.search(r"and (\d+) more", message)
    assert more is None or int(more[1]) < 20, message
    assert "function" not in message


def test_values_are_counted_without_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "PIECE", 7)
    chance = random.Random(0)

    def made(depth: int) -> Any:
        text = "".join(chance.choice('a"\\,[{:}]\n') for _ in range(chance.randrange(9)))
        kind = chance.randrange(4) if depth else 3
        if kind == 0:
            return [made(depth - 1) for _ in range(chance.randrange(4))]
        if kind == 1:
            return {f"{text}{number}": made(depth - 1) for number in range(chance.randrange(4))}
        return text

    def marks(value: Any) -> int:
        """Of [ { , and : that are no part of a text."""
        inner = list(value.values()) if isinstance(value, dict) else value
        if not isinstance(value, (dict, list)):
            return 0
        return (
            1
            + max(0, len(inner) - 1)
            + (len(inner) if isinstance(value, dict) else 0)
            + sum(map(marks, inner))
        )

    for _ in range(300):
        value = made(4)
        assert bodies.count_values(json.dumps(value).encode()) == marks(value)


def post(here: Live, path: str, body: str) -> httpx.Response:
    """Send a request that may take long on a busy machine."""
    kind = {"content-type": "application/json"}
    return here.http.post(path, content=body, headers=kind, timeout=None)


def test_others_are_answered_while_a_large_body_is_read(server: Live) -> None:
    text = 'a "word"\n' * 4_000_000
    body = json.dumps({"model": "none", "messages": [{"role": "user", "content": text}]})
    with ThreadPoolExecutor() as clients:
        reply = clients.submit(post, server, "/v1/chat/completions", body)
        while not reply.done():
            health = server.openai._client.get(f"{server.url}/health", timeout=30)
            assert health.status_code == 200
    assert reply.result().status_code == 404


def test_bodies_in_hand_have_a_common_limit() -> None:
    with live(max_body_bytes=10_000) as here:
        here.service.body_bytes = 39_000
        body = {"model": "tiny", "prompt": "x" * 2000}
        reply = here.http.post("/v1/completions", json=body)
        assert reply.status_code == 429
        assert here.service.body_bytes == 39_000
        here.service.body_bytes = 0
        assert here.http.post("/tokenize", json={"prompt": "x"}).status_code == 200
        until = time.monotonic() + 20
        while here.service.body_bytes:  # the answer may be there a moment before
            assert time.monotonic() < until
            time.sleep(0.01)


# ---------------------------------------------------------------- slow clients


def connected(here: Live) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(here.url.rsplit(":", 1)[1])), timeout=30)


def ended(connection: socket.socket) -> bytes:
    """What the server says until it closes."""
    said = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := connection.recv(65536):
            said += piece
    return said


def upload(name: str, length: int) -> bytes:
    return f"PUT /v1/pots/{name} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n".encode()


def test_uploads_that_send_nothing_take_no_place() -> None:
    with live({"max_sessions": 2}) as here, contextlib.ExitStack() as stack:
        lazy = [stack.enter_context(connected(here)) for _ in range(4)]
        for number, connection in enumerate(lazy):
            connection.sendall(upload(f"lazy{number}", 1000) + b"a few words ")
        assert here.chat("Hello").choices
        assert here.gauge("infinipot_running") == here.gauge("infinipot_waiting") == 0


@pytest.mark.parametrize(
    "sent",
    [
        "",
        "PUT /v1/pots/x HT",
        upload("x", 1000).decode(),
        upload("x", 1000).decode() + "a few words",
    ],
)
def test_connections_that_send_nothing_are_closed(sent: str) -> None:
    with live(patience_s=0.3) as here, connected(here) as connection:
        connection.sendall(sent.encode())
        said = ended(connection)
        assert (b" 408 " in said and b"came too slowly" in said) == sent.startswith(
            "PUT /v1/pots/x HTTP"
        )


def test_a_body_that_dribbles_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "MIN_BYTES_PER_S", 10_000)
    with live(patience_s=0.5) as here, connected(here) as connection:
        connection.sendall(upload("x", 1000))
        with contextlib.suppress(OSError):
            for _ in range(200):
                connection.sendall(b"x")
                time.sleep(0.05)
        with contextlib.suppress(OSError):
            assert b" 408 " in ended(connection)
        assert here.http.get("/v1/pots").json()["data"] == []


STARTS = (
    b"",
    b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nX-Long: ",
    upload("slow", 1000),
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1;",
)
"""What half-open and slow clients have sent, before the rest comes byte by byte."""


def still_open(connection: socket.socket, more: bytes) -> bool:
    """Send a byte. Returns whether the server keeps the connection."""
    try:
        if more:
            connection.send(more)
        return connection.recv(65536, socket.MSG_DONTWAIT) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def test_two_hundred_slow_clients_block_nobody_and_are_cut_off(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(bodies, "MIN_BYTES_PER_S", 10_000)
    with live({"max_sessions": 2}, patience_s=3) as here, contextlib.ExitStack() as stack:
        slow = [(stack.enter_context(connected(here)), STARTS[number % 5]) for number in range(200)]
        for connection, start in slow:
            connection.sendall(start)
        answered_beside = 0
        until = time.monotonic() + 60
        while slow:
            assert time.monotonic() < until, f"{len(slow)} are still there"
            assert here.chat("Hello", max_tokens=1).choices
            slow = [one for one in slow if still_open(one[0], one[1] and b"x")]
            answered_beside = max(answered_beside, len(slow))
        assert answered_beside > 100
        assert here.gauge("infinipot_running") == here.gauge("infinipot_waiting") == 0
        assert here.http.get("/v1/pots").json()["data"] == []
        assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_an_answer_that_is_not_fetched_ends() -> None:
    """Not before the kernel's buffers are full, too: they are small here, and probabilities fill them."""
    asked = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "x"}],
        "max_tokens": 100_000,
        "stream": True,
        "logprobs": True,
    }
    body = json.dumps({**asked, "top_logprobs": 20})
    kind = "Host: localhost\r\nContent-Type: application/json"
    head = f"POST /v1/chat/completions HTTP/1.1\r\n{kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    with (
        live({"max_sessions": 2}, patience_s=1, buffer_bytes=4096) as here,
        connected(here) as lazy,
    ):
        lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        lazy.sendall((head + body).encode())
        here.wait("infinipot_running", 1)
        here.wait("infinipot_running", 0, timeout_s=120)
        assert 0 < here.gauge("infinipot_tokens_generated_total") < 20_000


def test_an_answer_that_nobody_fetches_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "MAX_EVENTS", 5)

    async def main() -> None:
        woken: list[int] = []
        box = stream.EventStream(stream.Outbox(lambda: woken.append(1)))
        for _ in range(6):
            assert not box.is_full() or len(box.events) >= 5
            box.put(Piece("a", []))
        assert box.is_full() and not woken
        await box.next()
        await box.next()
        assert not box.is_full() and woken == [1]

    asyncio.run(main())


def test_a_slow_watcher_is_told_the_newest_state_only() -> None:
    text = "The keeper hid the letter under the third step. " * 300
    with live() as here, ThreadPoolExecutor() as clients:
        other = here.openai._client
        upload = clients.submit(here.http.put, "/v1/pots/book", content=text.encode(), timeout=None)
        while not other.get(f"{here.url}/v1/pots").json()["data"]:
            time.sleep(0.01)
        with other.stream("GET", f"{here.url}/v1/pots/book/events") as watched:
            assert upload.result().status_code == 201
            lines = [line for line in watched.iter_lines() if line.startswith("data: {")]
    states = [json.loads(line[6:]) for line in lines]
    assert states[-1]["state"] == "ready"
    tokens = [state["tokens_read"] for state in states]
    assert tokens == sorted(tokens)


def test_too_many_connections(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Those without a request make room; the complaint is written once."""
    monkeypatch.setattr(process, "max_connections", lambda: 10)
    with live() as here, contextlib.ExitStack() as stack:
        idle = [stack.enter_context(connected(here)) for _ in range(60)]
        assert here.openai._client.get(f"{here.url}/health").status_code == 200
        assert ended(idle[0]) == b""
        assert (
            len([record for record in caplog.records if "connections" in record.getMessage()]) == 1
        )
    with live() as here, contextlib.ExitStack() as stack:
        here.http.close()
        for number in range(10):
            stack.enter_context(connected(here)).sendall(upload(f"x{number}", 1000))
        until = time.monotonic() + 20
        said = b""
        while (
            b" 503 " not in said and time.monotonic() < until
        ):  # those that have sent all are busy soon
            time.sleep(0.5)
            said = ended(stack.enter_context(connected(here)))
        assert b"too_many_connections" in said


def test_without_file_handles_the_log_stays_short(caplog: pytest.LogCaptureFixture) -> None:
    seldom, loop = ThrottledLog(), asyncio.new_event_loop()
    for _ in range(1000):
        seldom.on_problem(
            loop,
            {
                "message": "socket.accept() out of system resource",
                "exception": OSError(24, "Too many open files"),
            },
        )
    assert len(caplog.records) == 1
    loop.close()


# ---------------------------------------------------------------- answers, prompts, the queue


def test_the_longest_answer(server: Live) -> None:
    for path, more in (
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
        ("/v1/completions", {"prompt": "x"}),
    ):
        reply = server.http.post(path, json={"model": "tiny", "max_tokens": 2**31, **more})
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "max_tokens")
        assert "131,072" in reply.json()["error"]["message"]
    for more in ({"max_tokens": 20_000}, {"max_tokens": 0, "echo": True, "prompt": [5] * 20_000}):
        reply = server.http.post(
            "/v1/completions", json={"model": "tiny", "prompt": "x", "logprobs": 20, **more}
        )
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "logprobs")


def test_one_request_of_many_prompts_on_an_idle_server() -> None:
    with live({"max_sessions": 2, "queue": 4}) as here:
        reply = here.http.post(
            "/v1/completions", json={"model": "tiny", "prompt": ["Once"] * 40, "max_tokens": 1}
        )
        assert reply.status_code == 200, reply.text
        assert len(reply.json()["choices"]) == 40
        here.wait("infinipot_waiting", 0)


def test_a_full_queue_is_told_before_texts_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    with live({"max_sessions": 2, "queue": 1}) as here:
        engine = here.service.engine
        monkeypatch.setattr(engine.scheduler, "_waiting", [None])
        monkeypatch.setattr(engine.prompts, "chat", lambda *_: pytest.fail("it was read"))
        reply = here.http.post(
            "/v1/chat/completions",
            content=chat('"x"'),
            headers={"content-type": "application/json"},
        )
        monkeypatch.undo()
        assert (reply.status_code, reply.json()["error"]["code"]) == (429, "queue_full")


def test_a_short_text_does_not_wait_for_long_ones() -> None:
    """While long texts are made into ids, one block after another, a short one comes next."""
    turns, order = FairLock(), []

    def take(name: str, blocks: int, started: threading.Event | None = None) -> None:
        for had in range(blocks):
            with turns.after(had):
                order.append(name)
                if started:
                    started.set()
                time.sleep(0.002)

    begun = threading.Event()
    long = [
        threading.Thread(target=take, args=(f"long {number}", 100, begun)) for number in range(4)
    ]
    for thread in long:
        thread.start()
    begun.wait()
    time.sleep(0.05)
    before = len(order)
    take("short", 3)
    assert len(order) - before < 20
    for thread in long:
        thread.join()
    assert len(order) == 403


def test_long_texts_keep_no_thread_from_short_ones(server: Live) -> None:
    """Twelve long prompts at once; there are two cores."""
    long = json.dumps({"prompt": "A word or two. " * 30_000})
    with ThreadPoolExecutor(12) as clients:
        replies = [clients.submit(post, server, "/tokenize", long) for _ in range(12)]
        time.sleep(0.1)
        assert server.chat("Hello").choices
        assert sum(reply.done() for reply in replies) < 6
    assert {reply.result().status_code for reply in replies} == {200}


def test_tokens_and_their_places_in_pieces(server: Live) -> None:
    words = server.service.engine.prompts
    text = "".join(
        f"Ship {number} came in at {number % 24}:00,\n\n with  wool. Été 💥.\n"
        for number in range(3000)
    )
    whole = words.tokenizer("\n" + text, add_special_tokens=False, return_offsets_mapping=True)[
        "offset_mapping"
    ]
    reply = server.http.post("/tokenize", json={"prompt": text, "offsets": True}).json()
    assert reply["offsets"] == [start - 1 for start, _ in whole[-len(reply["tokens"]) :]]
    reply = server.http.post("/tokenize", json={"prompt": "x" * (1 << 22) + "x"})
    assert reply.status_code == 400
    assert "4,194,304" in reply.json()["error"]["message"]


# ---------------------------------------------------------------- who asks, and how the server is


@pytest.mark.parametrize(
    ("hosts", "good", "bad"),
    [
        (
            Hosts(),
            ["localhost", "localhost:80", "127.0.0.1:8000", "[::1]:8000", "LOCALHOST", None],
            ["evil.example", "10.0.0.1", "x", ""],
        ),
        (
            Hosts("10.1.2.3"),
            ["10.1.2.3:8000", "localhost"],
            ["10.1.2.4", "evil.example:8000", "127.0.0.1.evil.example"],
        ),
        (Hosts("0.0.0.0"), ["10.1.2.3", "[fe80::1]:1", "localhost"], ["evil.example"]),
        (
            Hosts("::", ("good.example",)),
            ["good.example:8000", "10.1.2.3"],
            ["evil.example", "good.example.evil.example"],
        ),
        (Hosts(also=("*",)), ["evil.example"], []),
    ],
)
def test_names_of_a_server(hosts: Hosts, good: list[str | None], bad: list[str]) -> None:
    assert not [host for host in good if hosts.error(host)]
    assert not [host for host in bad if not hosts.error(host)]


@pytest.mark.parametrize(
    "host", ["[::1].evil.example", "localhost:evil.example", "[localhost]x.evil"]
)
def test_a_name_in_another_form_is_no_known_name(host: str) -> None:
    assert Hosts().error(host) is not None


def test_pages_whose_name_leads_here_are_refused(server: Live) -> None:
    for method, path in (
        ("GET", "/v1/pots"),
        ("DELETE", "/v1/pots/book"),
        ("POST", "/v1/chat/completions"),
        ("GET", "/health"),
        ("GET", "/"),
    ):
        reply = server.http.request(
            method,
            path,
            headers={"Host": "evil.example:8000", "Origin": "http://evil.example:8000"},
        )
        assert (reply.status_code, reply.json()["error"]["code"]) == (421, "host_not_allowed")
        assert "--allowed-host" in reply.json()["error"]["message"]
    with live(api_key="secret") as here:
        key = {"Authorization": "Bearer secret", "Host": "behind.a.proxy"}
        assert here.http.get("/v1/pots", headers=key).status_code == 200


@pytest.mark.parametrize("given", ["option", "variable", "blank"])
def test_an_empty_key_is_refused(
    given: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("INFINIPOT_API_KEY", "") if given == "variable" else monkeypatch.delenv(
        "INFINIPOT_API_KEY", raising=False
    )
    options = {"option": ["--api-key", ""], "variable": [], "blank": ["--api-key", "  "]}[given]
    assert main(["serve", "./no/model", "--port", "0", "--quiet", *options]) == 2
    assert "the API key is empty" in capsys.readouterr().err
    with pytest.raises(ValueError, match="the API key is empty"):
        Service("tiny", tiny, Settings(), api_key="")


def test_the_description_does_not_say_where_the_model_is(tmp_path: Path) -> None:
    text = json.dumps(create_app(Service(str(tmp_path), tiny, Settings())).openapi())
    assert str(tmp_path) not in text
    assert tmp_path.name in text


def test_health_when_nothing_goes_on(server: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = server.service.engine
    assert engine.stuck_s == 0
    monkeypatch.setattr(engine, "_active", time.monotonic() - 1000)
    assert server.http.get("/health").status_code == 200, "nobody waits"
    monkeypatch.setattr(engine.scheduler, "_waiting", [None])
    reply = server.http.get("/health")
    monkeypatch.undo()
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "stuck")
    assert server.chat("Hello").choices
    assert server.http.get("/health").status_code == 200
