"""What may go wrong around a server, and that it lives on."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from forked import Forked
from live import live, tiny

from infinipot import PotConfig, Session, pot_file
from infinipot.cli import main
from infinipot.model.runner import ModelRunner
from infinipot.server.errors import APIError
from infinipot.server.routes.openai import health, ready
from infinipot.server.service import Service
from infinipot.server.settings import Settings

LONG = "The keeper hid the letter under the third step. Nobody saw it, but the dog did. " * 12


def test_out_of_memory_in_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    read = ModelRunner.read
    trouble: list[Exception] = []

    def short(self: ModelRunner, ids: torch.Tensor, *args: Any) -> torch.Tensor:
        if trouble:
            raise trouble.pop()
        return read(self, ids, *args)

    with live() as here:
        expected = here.chat("Hello").choices[0].message.content
        monkeypatch.setattr(ModelRunner, "read", short)
        messages = [{"role": "user", "content": "Hello"}]
        for problem, status, code in (
            (torch.OutOfMemoryError("CUDA out of memory"), 503, "out_of_memory"),
            (
                RuntimeError(
                    "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"
                ),
                503,
                "out_of_memory",
            ),
            (RuntimeError("boom"), 500, "internal_error"),
        ):
            trouble.append(problem)
            reply = here.http.post(
                "/v1/chat/completions",
                json={"model": "tiny", "messages": messages, "max_tokens": 12},
            )
            assert (reply.status_code, reply.json()["error"]["code"]) == (status, code)
            assert "boom" not in reply.text
            assert here.chat("Hello").choices[0].message.content == expected
        stream = here.chat("Hello", stream=True)
        next(iter(stream))
        trouble.append(torch.OutOfMemoryError("CUDA out of memory"))
        with pytest.raises(Exception, match="not enough memory|incomplete"):
            list(stream)
        here.wait("infinipot_running", 0)


def test_damaged_pots_are_refused_and_conversations_read_again(tmp_path: Path) -> None:
    with live({"max_sessions": 2, "pot_dir": tmp_path}) as here:
        here.http.post("/v1/pots", json={"name": "book", "text": LONG})
        here.http.post("/v1/pots/book/save")
        said = [f"I am Anna. {LONG[:300]}"]
        said.append(here.chat(*said).choices[0].message.content)
        for name in ("Ben", "Carl", "Dora"):
            here.chat(f"I am {name}")
        here.http.delete("/v1/pots/none")
        paths = [tmp_path / "book.pot.safetensors", *(tmp_path / "conversations").iterdir()]
        for path in paths:
            good = path.read_bytes()
            path.write_bytes(good[: len(good) // 2])
        reply = here.http.post("/v1/pots/book/restore")
        assert (reply.status_code, reply.json()["error"]["code"]) == (409, "pot_unusable")
        again = here.chat(*said, "Who am I?")
        assert again.usage.prompt_tokens_details.cached_tokens == 0
        asked = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "pot": "book"}
        reply = here.http.post("/v1/chat/completions", json=asked)
        assert reply.status_code in (200, 409)  # from memory, or refused
        assert here.chat("Hello").choices


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    with live({"max_sessions": 2, "pot_dir": tmp_path}) as here:
        here.http.post("/v1/pots", json={"name": "book", "text": LONG})
        monkeypatch.setattr(pot_file, "put", full)
        reply = here.http.post("/v1/pots/book/save")
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "disk_full")
        for name in ("Anna", "Ben", "Carl"):
            here.chat(f"I am {name}")
        assert (
            here.chat("Who?", pot="book").usage.prompt_tokens_details.cached_tokens > 900
        )  # it could not leave, so it stayed
        assert here.gauge("infinipot_disk_failures_total") > 0
        assert list(tmp_path.glob("**/*.part")) == []


def test_kill_while_saving(tmp_path: Path) -> None:
    """The file is the old one or the new one. A server that starts afterwards clears away what was begun."""
    path = tmp_path / "book.pot.safetensors"

    def save_again_and_again() -> None:
        session = Session(*tiny(), PotConfig(pot_size=256, distill_to=128))
        session.append("Once upon a time. " * 30)
        while True:
            session.save(path)
            print("saved", flush=True)

    child = Forked(save_again_and_again, stdout=subprocess.PIPE)
    child.stdout.readline()
    time.sleep(0.05)
    child.kill()
    child.wait()
    assert Session.load(path, *tiny()).stats.tokens_read > 500
    (tmp_path / ".book.part").write_bytes(b"half")
    for part in tmp_path.glob(".*.part"):
        os.utime(part, (0, 0))  # not what another process writes now
    with live({"pot_dir": tmp_path}) as here:
        assert here.chat("Who?", pot="book").usage.prompt_tokens > 500
    assert not list(tmp_path.glob(".*.part"))


def test_a_client_that_stops_reading(tmp_path: Path) -> None:
    """It keeps its place as long as its answer takes, and nobody else waits for it."""
    with live({"max_sessions": 2}) as here:
        body = json.dumps(
            {
                "model": "tiny",
                "messages": [{"role": "user", "content": "x"}],
                "max_tokens": 100_000,
                "stream": True,
            }
        )
        with socket.create_connection(("127.0.0.1", int(here.url.rsplit(":", 1)[1]))) as lazy:
            lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
            kind = "Host: localhost\r\nContent-Type: application/json"
            head = f"POST /v1/chat/completions HTTP/1.1\r\n{kind}\r\nContent-Length: {len(body)}\r\n\r\n"
            lazy.sendall((head + body).encode())
            here.wait("infinipot_running", 1)
            for _ in range(3):
                assert len(here.chat("Hello").choices[0].message.content) > 5
            here.wait("infinipot_running", 1)
        here.wait("infinipot_running", 0)


def test_the_queue_has_an_end() -> None:
    with live({"max_sessions": 2, "queue": 2}) as here:
        streams = [here.chat("Hello", max_tokens=100_000, stream=True) for _ in range(2)]
        for stream in streams:
            next(iter(stream))
        waiting = [threading.Thread(target=here.chat, args=("Hi",)) for _ in range(2)]
        for thread in waiting:
            thread.start()
        here.wait("infinipot_waiting", 2)
        reply = here.http.post(
            "/v1/chat/completions",
            json={"model": "tiny", "messages": [{"role": "user", "content": "x"}]},
        )
        assert (reply.status_code, reply.json()["error"]["code"]) == (429, "queue_full")
        assert int(reply.headers["retry-after"]) > 0
        for stream in streams:
            stream.close()
        for thread in waiting:
            thread.join(60)
        here.wait("infinipot_waiting", 0)


def test_keys_origins_and_sizes() -> None:
    with live(api_key="secret-ä", max_body_bytes=5000) as here:
        here.openai = here.openai.with_options(api_key="secret-ä")
        key = {"Authorization": "Bearer secret-ä".encode()}
        for wrong in (
            {},
            {"Authorization": "Bearer secret"},
            {"Authorization": "secret-a"},
            {"Authorization": "Basic x"},
        ):
            reply = here.http.get("/v1/models", headers=wrong)
            assert (reply.status_code, reply.json()["error"]["code"]) == (401, "invalid_api_key")
        assert here.http.get("/v1/models", headers=key).status_code == 200
        assert here.http.get("/metrics").status_code == 401
        for path in ("/health", "/", "/docs", "/page/index.html"):
            assert here.http.get(path).status_code == 200
        big = {"model": "tiny", "messages": [{"role": "user", "content": "x" * 6000}]}
        reply = here.http.post("/v1/chat/completions", json=big, headers=key)
        assert (reply.status_code, set(reply.json()["error"])) == (
            413,
            {"message", "type", "param", "code"},
        )
        chunked = here.http.post(
            "/v1/chat/completions",
            content=iter([json.dumps(big).encode()]),
            headers={**key, "content-type": "application/json"},
        )
        assert (chunked.status_code, set(chunked.json()["error"])) == (
            413,
            {"message", "type", "param", "code"},
        )
        assert (
            here.http.put("/v1/pots/big", content=b"word " * 2000, headers=key).status_code == 201
        )
        cross = here.http.get("/v1/models", headers={**key, "Origin": "http://evil.example"})
        assert cross.status_code == 403
        assert not [name for name in cross.headers if name.lower().startswith("access-control")]
        assert here.http.get("/v1/models", headers={**key, "Origin": here.url}).status_code == 200
        plain = here.http.post(
            "/v1/chat/completions",
            content=json.dumps(big)[:100],
            headers={**key, "content-type": "text/plain"},
        )
        assert plain.status_code == 400  # what other pages' forms can send


def test_loading_is_told() -> None:
    """The port is open while the model is loading: /health says that the process works, /ready and
    all other requests why they have to wait."""
    go = threading.Event()

    def load() -> tuple[Any, Any]:
        go.wait(60)
        return tiny()

    with live(load=load, wait="/health") as here:
        assert here.http.get("/health").json()["status"] == "loading"
        for method, path in (("GET", "/ready"), ("GET", "/v1/pots"), ("POST", "/v1/completions")):
            reply = here.http.request(method, path, json={"model": "tiny", "prompt": "Hello"})
            assert (reply.status_code, reply.json()["error"]["code"]) == (503, "loading")
            assert "is being loaded" in reply.json()["error"]["message"]
            assert int(reply.headers["retry-after"]) > 0
        go.set()
        until = time.monotonic() + 60
        while here.http.get("/ready").status_code != 200:
            assert time.monotonic() < until
            time.sleep(0.05)
        assert here.http.get("/health").json()["status"] == "ok"
        assert here.http.get("/v1/pots").status_code == 200


def test_a_model_that_cannot_be_loaded_is_told() -> None:
    """Until the server has ended, probes get its failure, not that it is loading."""
    service = Service("tiny", lambda: (_ for _ in ()).throw(ValueError("no weights")), Settings())
    service.start()
    for probe in (health, ready):
        with pytest.raises(APIError, match="has failed") as refused:
            asyncio.run(probe(service))
        assert (refused.value.status, refused.value.code) == (503, "failed")


def test_ports_and_models_that_cannot_be_used(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for args, part in (
            (
                ["./no/model", "--port", port],
                f"cannot listen on 127.0.0.1:{port}: another program listens there",
            ),
            (["./no/model", "--port", "0"], "there is no folder ./no/model"),
            (["./no/model", "--port", "99999"], "port=99999 is not allowed"),
            (["./no/model", "--host", "no.such.invalid"], "cannot listen on no.such.invalid"),
            (["./no/model", "--max-sessions", "1"], "max-sessions=1 is not allowed"),
            (["./no/model", "--policy", "truncate"], "reads only the ends"),
            (["./no/model", "--pot-dir", "/dev/null/x"], "cannot use --pot-dir"),
        ):
            assert main(["serve", *args, "--quiet"]) == 2
            err = capsys.readouterr().err
            assert part in err
            assert err.count("\n") == 1, err


def test_a_process_serves_and_stops(tmp_path: Path) -> None:
    """The command line in a process of its own. SIGTERM writes the conversations, refuses the running
    requests, and ends it."""
    from commands import save_tiny

    save_tiny(tmp_path / "tiny")
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "OMP_NUM_THREADS": "1",
    }
    command = [
        sys.executable,
        "-m",
        "infinipot.cli",
        "serve",
        str(tmp_path / "tiny"),
        "--port",
        "0",
        "--pot-dir",
        str(tmp_path / "pots"),
    ]
    child = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    assert child.stderr is not None
    import httpx2 as httpx

    url = next(line for line in child.stderr if "http://" in line).split()[1]
    assert any("is ready" in line for line in child.stderr)
    while httpx.get(f"{url}/ready").status_code != 200:
        time.sleep(0.05)
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 5}
    assert (
        httpx.post(f"{url}/v1/chat/completions", json=body).json()["usage"]["completion_tokens"]
        == 5
    )
    endless = {
        **body,
        "max_tokens": 100_000,
        "messages": [{"role": "user", "content": "Never end"}],
    }
    with ThreadPoolExecutor(2) as clients:
        asked = [
            clients.submit(
                httpx.post, f"{url}/v1/chat/completions", json={**endless, "stream": on}, timeout=60
            )
            for on in (False, True)
        ]
        while "infinipot_running 2.0" not in httpx.get(f"{url}/metrics").text:
            time.sleep(0.05)
        child.send_signal(signal.SIGTERM)
        refused, cut = (one.result() for one in asked)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
    assert '"shutting_down"' in cut.text.splitlines()[-2], "the last event says why it is not whole"
    assert child.wait(20) in (0, -signal.SIGTERM)
    assert len(list((tmp_path / "pots" / "conversations").iterdir())) == 1
    assert "Traceback" not in child.stderr.read()


def test_a_failing_engine_ends_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Better no server than one that answers nobody: whoever watches over it starts it anew."""
    with live() as here:

        def broken() -> bool:
            raise RuntimeError("a fault")

        here.chat("Hello")
        monkeypatch.setattr(here.service.engine, "_run_slice", broken)
        reply = here.http.post(
            "/v1/chat/completions",
            json={"model": "tiny", "messages": [{"role": "user", "content": "x"}]},
        )
        assert reply.status_code in (500, 503)
        assert isinstance(here.service.failure, RuntimeError)


def test_one_of_several_answers_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers are made together; the one that cannot be made takes no other with it."""
    read = ModelRunner.read

    def short(self: ModelRunner, ids: torch.Tensor, pots: Any, *args: Any) -> torch.Tensor:
        if any(pot.size == 200 and pot.tokens_read > 30 for pot in pots):
            raise torch.OutOfMemoryError("CUDA out of memory")
        return read(self, ids, pots, *args)

    with live() as here:
        expected = here.chat("Hello", max_tokens=40).choices[0].message.content
        monkeypatch.setattr(ModelRunner, "read", short)
        replies: list[Any] = [None, None, None]

        def ask(number: int, **options: Any) -> None:
            try:
                replies[number] = (
                    here.chat("Hello", max_tokens=40, **options).choices[0].message.content
                )
            except Exception as problem:
                replies[number] = problem

        threads = [
            threading.Thread(target=ask, args=(number,), kwargs=more)
            for number, more in enumerate(({}, {"pot_size": 200}, {}))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert replies[0] == replies[2] == expected
        assert "not enough memory" in str(replies[1])
