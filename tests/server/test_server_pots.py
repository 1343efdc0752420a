"""Named pots, and conversations that leave memory and come back."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from live import CONFIG, Live, live, tiny

from infinipot import Session, pot_file

LONG = "The keeper hid the letter under the third step. Nobody saw it, but the dog did. " * 12


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with live({"max_sessions": 3, "pot_dir": tmp_path_factory.mktemp("pots")}) as here:
        yield here


def fill(here: Live, name: str, text: str = LONG, **more: object) -> dict:
    reply = here.http.post("/v1/pots", json={"name": name, "text": text, **more})
    assert reply.status_code == 201, reply.text
    return reply.json()


def test_a_text_is_read_once_and_asked_often(server: Live) -> None:
    about = fill(server, "book", question="Who?")
    assert about["tokens_read"] > 900
    session = Session(*tiny(), CONFIG)
    session.append(LONG, question="Who?")
    assert about["pot"]["distillations"] == session.stats.distillations
    questions = ["Who saw it?", "Where?", "Why?", "Who saw it?"]
    with ThreadPoolExecutor() as pool:
        replies = list(
            pool.map(lambda question: server.chat(question, pot="book", max_tokens=10), questions)
        )
    for question, reply in zip(questions, replies, strict=True):
        assert reply.choices[0].message.content == session.fork().ask(question, max_tokens=10)
        assert reply.usage.prompt_tokens_details.cached_tokens >= about["tokens_read"]
    assert server.http.get("/v1/pots/book").json()["tokens_read"] == about["tokens_read"]
    said = ("Where?", replies[1].choices[0].message.content, "And when?")
    assert (
        server.chat(*said, pot="book").usage.prompt_tokens_details.cached_tokens
        > about["tokens_read"]
    )


def test_a_streamed_text_is_read_as_it_comes(server: Live) -> None:
    def pieces() -> Iterator[bytes]:
        data = (LONG * 6 + "ä").encode()
        for start in range(0, len(data), 5000):
            yield data[start : start + 5000]

    reply = server.http.put("/v1/pots/stream", content=pieces())
    assert reply.status_code == 201, reply.text
    assert reply.json()["tokens_read"] > 5_000
    assert reply.json()["pot"]["peak"] <= 256
    assert (
        server.http.put("/v1/pots/bad", content=[b"abc\xff"])
        .json()["error"]["message"]
        .startswith("the text is not UTF-8")
    )
    assert server.http.put("/v1/pots/empty", content=b"").status_code == 400
    assert (
        server.http.put("/v1/pots/stream?replace=true&pot_size=200", content=b"short").json()[
            "pot"
        ]["size"]
        == 200
    )
    server.http.delete("/v1/pots/stream")


def test_watching_a_pot_fill(server: Live) -> None:
    events: list[str] = []
    started = threading.Event()

    def watch() -> None:
        while server.http.get("/v1/pots/watched").status_code == 404:
            time.sleep(0.005)
        with server.http.stream("GET", "/v1/pots/watched/events") as reply:
            started.set()
            events.extend(line for line in reply.iter_lines() if line)

    watcher = threading.Thread(target=watch)
    watcher.start()
    fill(server, "watched", LONG * 8)
    watcher.join(20)
    assert started.is_set()
    assert '"state": "reading"' in events[0]
    assert '"state": "ready"' in events[-2]
    assert events[-1] == "data: [DONE]"
    about = server.http.get("/v1/pots/watched?places=true").json()
    assert about["places"] == sorted(set(about["places"]))
    assert max(about["places"]) < about["tokens_read"]
    assert all(0 < share <= 1 for share in about["shares"])
    assert sum(about["shares"]) == pytest.approx(
        about["pot"]["kept"], rel=0.01
    )  # every head holds as many
    server.http.delete("/v1/pots/watched")


def test_a_long_reading_does_not_keep_others_waiting(server: Live) -> None:
    reading = threading.Thread(target=fill, args=(server, "epic", LONG * 12))
    reading.start()
    while server.http.get("/v1/pots/epic").status_code == 404:
        time.sleep(0.005)
    for question in ("Hello", "Hi"):
        server.chat(question, max_tokens=20)
    assert server.http.get("/v1/pots/epic").json()["state"] == "reading"
    busy = server.http.delete("/v1/pots/epic")
    assert (busy.status_code, busy.json()["error"]["code"]) == (409, "pot_busy")
    reading.join(60)
    assert server.http.delete("/v1/pots/epic").json()["deleted"]


def test_save_restore_delete(server: Live) -> None:
    fill(server, "one", "The first text. " * 30)
    saved = server.http.post("/v1/pots/one/save").json()
    assert saved["file_bytes"] > 1000
    first = server.chat("What?", pot="one").choices[0].message.content
    assert server.http.post("/v1/pots", json={"name": "one", "text": "x"}).status_code == 409
    fill(server, "one", "Something else entirely! " * 30, replace=True)
    assert server.chat("What?", pot="one").choices[0].message.content != first
    server.http.post("/v1/pots/one/save")
    assert server.http.post("/v1/pots/one/restore").status_code == 200
    assert "one" in [pot["name"] for pot in server.http.get("/v1/pots").json()["data"]]
    assert server.http.delete("/v1/pots/one").status_code == 200
    assert server.http.get("/v1/pots/one").status_code == 404
    assert server.http.post("/v1/pots/one/restore").status_code == 404


def test_a_conversation_can_be_named(server: Live) -> None:
    reply = server.chat("Remember me", session="mine")
    assert server.http.post("/v1/pots", json={"name": "kept", "session": "mine"}).status_code == 201
    assert server.http.post("/v1/pots", json={"name": "no", "session": "nobody"}).status_code == 404
    more = server.chat("And now?", pot="kept")
    direct = server.chat(
        "Remember me", reply.choices[0].message.content, "And now?", session="mine"
    )
    assert more.choices[0].message.content == direct.choices[0].message.content
    server.http.delete("/v1/pots/kept")


@pytest.mark.parametrize(
    "name",
    [
        "..",
        "a/b",
        "..%2fescape",
        "%2e%2e%2fescape",
        ".hidden",
        "a.b",
        "",
        "x" * 65,
        "nul%00",
        "a\\b",
        "~root",
    ],
)
def test_names_stay_in_their_folder(server: Live, name: str) -> None:
    folder = server.service.settings.pot_dir
    before = sorted(folder.parent.rglob("*"))
    for path in (f"/v1/pots/{name}", f"/v1/pots/{name}/save"):
        for reply in (
            server.http.put(path, content=b"x"),
            server.http.post(path),
            server.http.delete(path),
        ):
            assert reply.status_code in (400, 404, 405)
    assert server.http.post("/v1/pots", json={"name": name, "text": "x"}).status_code == 400
    assert sorted(folder.parent.rglob("*")) == before


def test_conversations_leave_memory_and_come_back(tmp_path: Path) -> None:
    with live({"max_sessions": 2, "pot_dir": tmp_path}) as here:
        talks = {name: [f"I am {name}. {LONG[:300]}"] for name in ("Anna", "Ben", "Carl", "Dora")}
        for said in talks.values():
            said.append(here.chat(*said).choices[0].message.content)
        files = list((tmp_path / "conversations").iterdir())
        assert len(files) >= 2
        assert here.gauge("infinipot_pots_in_memory") <= 2
        for said in talks.values():
            reply = here.chat(*said, "Who am I?")
            assert reply.usage.prompt_tokens_details.cached_tokens > 300
            said += ["Who am I?", reply.choices[0].message.content]
        alone = Session(*tiny(), CONFIG)
        assert reply.usage.pot["size"] == alone.pot.size
    with live(
        {"max_sessions": 2, "pot_dir": tmp_path}
    ) as here:  # a new server goes on from the files
        for said in talks.values():
            assert here.chat(*said, "Again?").usage.prompt_tokens_details.cached_tokens > 300
    with live({"max_sessions": 2, "pot_dir": tmp_path, "pot_files": 2}) as here:
        for name in ("Emil", "Fay", "Gus", "Hal", "Ida"):
            here.chat(f"I am {name}")
        assert len(list((tmp_path / "conversations").iterdir())) <= 2


@pytest.mark.parametrize("shared", [False, True])
def test_saving_never_looks_at_the_model_while_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    looked: list[str] = []
    with live({"max_sessions": 2, "pot_dir": tmp_path, "shared": shared}) as here:
        real = pot_file.model_identity
        monkeypatch.setattr(
            pot_file,
            "model_identity",
            lambda model: looked.append(threading.current_thread().name) or real(model),
        )
        fill(here, "one", LONG[:300])
        assert (
            here.http.post("/v1/pots/one/save").status_code
            == here.http.post("/v1/pots/one/restore").status_code
            == 200
        )
        said = ["Remember me", here.chat("Remember me", session="mine").choices[0].message.content]
        for name in ("Anna", "Ben", "Carl"):  # what was there leaves memory
            here.chat(f"I am {name}")
        assert (
            here.chat(*said, "And now?", session="mine").usage.prompt_tokens_details.cached_tokens
            > 0
        )  # and comes back
        here.http.post("/v1/pots", json={"name": "kept", "session": "mine"})
        assert here.chat("Who?", pot="one").usage.prompt_tokens_details.cached_tokens > 0
        before = len(list((tmp_path / "conversations").iterdir()))
    assert len(list((tmp_path / "conversations").iterdir())) > before  # the end wrote some, too
    assert looked == []


def test_named_pots_without_a_folder_stay_until_they_are_deleted() -> None:
    with live({"max_sessions": 2}) as here:
        fill(here, "one", LONG)
        full = here.http.post("/v1/pots", json={"name": "two", "text": "x"})
        assert (full.status_code, full.json()["error"]["code"]) == (409, "no_room")
        assert here.http.post("/v1/pots/one/save").json()["error"]["code"] == "no_pot_dir"
        for name in ("Anna", "Ben", "Carl"):
            here.chat(f"I am {name}")
        assert here.chat("Who?", pot="one").usage.prompt_tokens_details.cached_tokens > 900
        here.http.delete("/v1/pots/one")
        fill(here, "two")


def test_bodies_that_are_no_text_are_refused_or_converted(server: Live) -> None:
    put = server.http.put
    for data, part in ((b"\x89PNG\r\n\x1a\n", "the text is a PNG image"), (b"a\0", "is binary")):
        for reply in (
            put("/v1/pots/bad", content=[data[:3], data[3:]]),
            server.http.post("/v1/documents?name=the%20text", content=data),
        ):
            assert reply.status_code == 400
            assert part in reply.json()["error"]["message"]
    assert server.http.get("/v1/pots/bad").status_code == 404
    plain = server.http.post("/v1/documents", content="Hö".encode())
    assert plain.json() == {"text": "Hö"}
    page = b"<html><p>Tea</p><script>x</script></html>"
    raw = server.http.post("/v1/documents", content=page, headers={"Content-Type": "text/plain"})
    assert raw.json() == {"text": page.decode()}
    pytest.importorskip("markdownify")
    assert server.http.post("/v1/documents?name=a.html", content=page).json() == {"text": "Tea\n"}
    assert put("/v1/pots/tea", content=page).json()["tokens_read"] < len(page)
    server.http.delete("/v1/pots/tea")
