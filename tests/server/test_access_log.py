"""A line for each request, whatever becomes of it, and an id that leads to it."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from live import Live, live

from infinipot import pot_file
from infinipot.server import process
from infinipot.server.request_record import id_of

LONG = "The keeper hid the letter under the third step. Nobody saw it, but the dog did. " * 12
HELLO = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 5}
FIELDS = {
    "time", "request_id", "client", "method", "path", "status", "seconds", "queue_seconds", "prompt_tokens", "cached_tokens",
    "answer_tokens", "finish",
}  # fmt: skip


class Lines(logging.Handler):
    """Collects the lines of a logger."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.logger, self.texts = logging.getLogger(name), list[str]()

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == self.logger.name:
            self.texts.append(record.getMessage() + (" Traceback" if record.exc_info else ""))

    def wait(self, fits: Callable[[str], Any]) -> str:
        until = time.monotonic() + 30
        while not (found := [text for text in self.texts if fits(text)]):
            assert time.monotonic() < until, self.texts
            time.sleep(0.01)
        return found[-1]


@contextmanager
def lines(name: str = "infinipot.access") -> Iterator[Lines]:
    handler = Lines(name)
    level = handler.logger.level
    handler.logger.addHandler(handler)
    handler.logger.setLevel(logging.INFO)
    yield handler
    handler.logger.removeHandler(handler)
    handler.logger.setLevel(level)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("pots")
    with live({"access_log": "json", "max_sessions": 4, "pot_dir": folder}) as here:
        yield here


def entry(log: Lines, request_id: str) -> dict[str, Any]:
    return dict(json.loads(log.wait(lambda text: f'"{request_id}"' in text)))


def test_a_line_says_what_a_request_took(server: Live) -> None:
    with lines() as log:
        said = server.http.post("/v1/chat/completions?a=secret", json=HELLO)
        line = entry(log, said.headers["x-request-id"])
        usage = said.json()["usage"]
        assert set(line) == FIELDS
        assert (line["method"], line["path"], line["status"]) == (
            "POST",
            "/v1/chat/completions",
            200,
        )
        assert line["prompt_tokens"] == usage["prompt_tokens"]
        assert (line["answer_tokens"], line["finish"], line["cached_tokens"]) == (5, "length", 0)
        assert 0 <= line["queue_seconds"] <= line["seconds"]
        talk = [*HELLO["messages"], said.json()["choices"][0]["message"], *HELLO["messages"]]
        again = server.http.post("/v1/chat/completions", json={**HELLO, "messages": talk})
        cached = again.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert entry(log, again.headers["x-request-id"])["cached_tokens"] == cached > 0
        made = server.http.put("/v1/pots/book", content=LONG.encode())
        filled = entry(log, made.headers["x-request-id"])
        text_tokens = made.json()["tokens_read"] - 1  # without the template's head
        assert (filled["finish"], filled["prompt_tokens"]) == ("filled", text_tokens)
        assert not any(word in text for text in log.texts for word in ("Hello", "secret", "keeper"))


def test_ids_that_are_short_and_plain_are_kept(server: Live) -> None:
    with lines() as log:
        for given, kept in (("abc-1._Z", True), ("x" * 65, False), ("a b", False), ("", False)):
            reply = server.http.get("/v1/models", headers={"x-request-id": given})
            assert (reply.headers["x-request-id"] == given) == kept
            assert reply.headers.get_list("x-request-id") == [
                entry(log, reply.headers["x-request-id"])["request_id"]
            ]
    assert id_of("a\nb") != "a\nb"


def test_whatever_is_refused_has_an_id_and_a_line(server: Live) -> None:
    with lines() as log:
        for method, path, options, status in (
            ("GET", "/v1/nothing", {}, 404),
            ("GET", "/v1/models", {"headers": {"Host": "evil.example"}}, 421),
            ("POST", "/v1/chat/completions", {"content": b"[" * 5000}, 400),
            ("GET", "/page/../../etc%0apasswd%1b[2J", {}, 404),
        ):
            reply = server.http.request(method, path, **options)
            assert reply.status_code == status
            line = entry(log, reply.headers["x-request-id"])
            assert line["status"] == status
            assert line["path"].isprintable()
            assert line["finish"] is None


def raw(server: Live, content: bytes) -> bytes:
    place = ("127.0.0.1", int(server.url.rsplit(":", 1)[1]))
    with socket.create_connection(place, timeout=30) as connection:
        connection.sendall(content)
        said = b""
        while piece := connection.recv(65536):
            said += piece
    return said


@pytest.mark.parametrize(
    "head", [b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 20_000]
)
def test_what_is_no_request_is_told_as_every_error(server: Live, head: bytes) -> None:
    answer, _, body = raw(server, head).partition(b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"x-request-id: " in answer
    assert "16,384 bytes" in json.loads(body)["error"]["message"]


def test_a_client_that_leaves_is_told_apart(server: Live) -> None:
    with lines() as log, lines("infinipot") as errors:
        with server.http.stream(
            "POST", "/v1/chat/completions", json={**HELLO, "max_tokens": 5000, "stream": True}
        ) as reply:
            next(reply.iter_lines())
        line = entry(log, reply.headers["x-request-id"])
        assert (line["status"], line["finish"]) == (200, "left")
        assert 0 < line["answer_tokens"] < 5000
        place = ("127.0.0.1", int(server.url.rsplit(":", 1)[1]))
        head = b"PUT /v1/pots/left HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999999\r\n\r\n"
        with socket.create_connection(place) as connection:
            connection.sendall(head + LONG.encode() * 40)  # more than may wait to be read
            server.wait("infinipot_running", 1)
        server.wait("infinipot_running", 0, timeout_s=20)
        left = json.loads(log.wait(lambda text: "/v1/pots/left" in text))
        assert (left["status"], left["finish"]) == (499, "left")
        assert left["prompt_tokens"] < 20_000
        assert errors.texts == []


def test_lines_of_errors_carry_the_id(server: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any, **more: Any) -> None:
        raise RuntimeError("boom")

    own = {"x-request-id": "mine"}
    with lines("infinipot") as errors:
        with monkeypatch.context() as patch:
            patch.setattr(server.service.engine.scheduler, "_admit", broken)
            reply = server.http.post("/v1/chat/completions", json=HELLO, headers=own)
        assert (reply.status_code, reply.headers["x-request-id"]) == (500, "mine")
        with monkeypatch.context() as patch:
            patch.setattr(server.service, "check_model", broken)
            reply = server.http.post("/tokenize", json={"prompt": "x"}, headers=own)
        assert (reply.status_code, reply.headers["x-request-id"]) == (500, "mine")
        server.http.post("/v1/pots", json={"name": "full", "text": LONG})
        with monkeypatch.context() as patch:
            patch.setattr(pot_file, "put", lambda *args: (_ for _ in ()).throw(OSError(28, "full")))
            assert server.http.post("/v1/pots/full/save", headers=own).status_code == 503
        assert len(errors.texts) == 3
        assert all(text.startswith("request mine: ") for text in errors.texts), errors.texts


def test_text_lines(server: Live) -> None:
    with live({"access_log": "text"}) as here, lines() as log:
        reply = here.http.get("/v1/models")
        line = log.wait(lambda text: reply.headers["x-request-id"] in text)
        assert " method=GET path=/v1/models status=200 seconds=" in line
        assert "tokens" not in line


def test_ready_and_health(server: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    assert server.http.get("/ready").status_code == 200
    with monkeypatch.context() as patch:
        patch.setattr(
            server.service.engine.scheduler,
            "limits",
            type(server.service.engine.scheduler.limits)(4, 0),
        )
        assert server.http.get("/ready").status_code == 429
        assert server.http.get("/health").status_code == 200
    with monkeypatch.context() as patch:
        patch.setattr(server.service, "_engine", None)
        assert server.http.get("/ready").json()["error"]["code"] == "loading"


# ---------------------------------------------------------------- the folder


def test_the_folder_goes_and_memory_stays(tmp_path: Path) -> None:
    folder = tmp_path / "pots"
    with live({"max_sessions": 3, "pot_dir": folder}) as here, lines("infinipot") as errors:
        here.http.post("/v1/pots", json={"name": "book", "text": LONG})
        said = here.chat("I am Anna.").choices[0].message.content
        (folder / b"n\xffme.pot.safetensors".decode("utf-8", "surrogateescape")).write_bytes(b"x")
        (folder / "book\n.pot.safetensors").write_bytes(b"x")
        assert [pot["name"] for pot in here.http.get("/v1/pots").json()["data"]] == ["book"]
        folder.rename(tmp_path / "gone")
        reply = here.http.post("/v1/pots/book/save")
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "disk_failed")
        assert str(tmp_path) not in reply.text
        assert here.http.post("/v1/pots/book/restore").status_code == 404
        assert [pot["name"] for pot in here.http.get("/v1/pots").json()["data"]] == ["book"]
        assert here.chat("I am Anna.", said, "Who?").usage.prompt_tokens_details.cached_tokens > 0
        for name in ("Ben", "Carl", "Dora"):
            assert here.chat(f"I am {name}").choices
        assert here.http.get("/health").status_code == 200
        assert errors.texts
        assert not any("Traceback" in text for text in errors.texts), errors.texts
        (tmp_path / "gone").rename(folder)


def test_deleting_and_saving_one_pot_together(tmp_path: Path) -> None:
    path = tmp_path / "book.pot.safetensors"
    with live({"max_sessions": 3, "pot_dir": tmp_path}) as here, lines("infinipot") as errors:
        here.http.post("/v1/pots", json={"name": "book", "text": LONG})
        here.http.post("/v1/pots/book/save")
        here.service.engine.call(lambda: here.service.engine.store.remove_name("book")).result()
        is_file = Path.is_file

        def once(self: Path) -> bool:
            found = is_file(self)
            if self == path:
                path.unlink(missing_ok=True)  # another client's deletion
            return found

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Path, "is_file", once)
            reply = here.http.post("/v1/pots/book/save")
        assert (reply.status_code, reply.json()["error"]["code"]) == (404, "pot_not_found")
        assert errors.texts == []


# ---------------------------------------------------------------- the end


def test_uploads_at_the_end_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bodies that are still coming when the server ends: refused as every request then is."""
    monkeypatch.setattr(process, "GRACE_S", 0.2)
    monkeypatch.setattr(process, "CLOSE_S", 0.5)
    with lines("uvicorn.error") as errors, contextlib.ExitStack() as stack:
        with live() as here:
            place = ("127.0.0.1", int(here.url.rsplit(":", 1)[1]))
            connections = [
                stack.enter_context(socket.create_connection(place, timeout=30)) for _ in range(2)
            ]
            for connection, start in zip(
                connections, ("PUT /v1/pots/x", "POST /v1/completions"), strict=True
            ):
                head = f"{start} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999\r\n\r\n"
                connection.sendall(head.encode() + b'{"few": "words')
            time.sleep(0.2)
        for connection in connections:
            answer, _, body = connection.recv(65536).partition(b"\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b"x-request-id: " in answer
            assert json.loads(body)["error"]["code"] == "shutting_down"
    assert not any("Traceback" in text for text in errors.texts), errors.texts
