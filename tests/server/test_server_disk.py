"""What may go wrong with the files of a server's pots, one thing beside another."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import resource
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from live import CONFIG, Live, live, tiny
from safetensors.torch import load_file, save_file

from infinipot import Session, pot_file
from infinipot.server import pot_files
from infinipot.server.service import Service
from infinipot.server.settings import Settings
from infinipot.server.stored_pot import PotLoader
from infinipot.server.throttled_log import ThrottledLog

LONG = "The keeper hid the letter under the third step. Nobody saw it, but the dog did. " * 12
OTHER = "Something else entirely was written here, about a ship and its cook. " * 8


def fill(here: Live, name: str, text: str = LONG, **more: Any) -> dict[str, Any]:
    reply = here.http.post("/v1/pots", json={"name": name, "text": text, **more})
    assert reply.status_code == 201, reply.text
    return dict(reply.json())


def ask(here: Live, pot: str) -> tuple[int, str | None]:
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "Who?"}],
        "max_tokens": 3,
        "pot": pot,
    }
    reply = here.http.post("/v1/chat/completions", json=body)
    return reply.status_code, reply.json().get("error", {}).get("code")


def saved(path: Path, text: str = LONG) -> Path:
    session = Session(*tiny(), CONFIG)
    session.append(text)
    session.save(path)
    return path


def rewritten(
    path: Path, change: Callable[[dict[str, torch.Tensor], dict[str, Any]], None]
) -> None:
    """Change a file as somebody does who knows how its hash is made."""
    tensors, header = load_file(path), pot_file.describe(path)
    change(tensors, header)
    header["content_sha256"] = pot_file.content_hash(tensors, header)
    save_file(tensors, path, metadata={pot_file.FORMAT: json.dumps(header)})


TOLD = (
    (409, "pot_unusable"),
    (409, "pot_damaged"),
    (500, "internal_error"),
    (503, "out_of_memory"),
)
"""What may be said of a bad file; the last of one that names a pot of 10^12 entries."""


def bad_headers() -> Iterator[tuple[str, Callable[[dict[str, Any], dict[str, Any]], None]]]:
    def put(header: dict[str, Any], place: str, value: Any) -> None:
        *way, last = place.split(".")
        for name in way:
            header = header[name]
        if value is ...:
            header.pop(last)
        else:
            header[last] = value

    for place, value in (
        ("catalyst", "question-of-another-day" * 9),
        ("catalyst", 7),
        ("config.catalyst", []),
        ("config.policy", "unheard-of"),
        ("config.pot_size", "many"),
        ("config.pot_size", 10**12),
        ("config", None),
        ("system", ["x"]),
        ("templated", None),
        ("model", {}),
        ("model.class", ...),
        ("skipped", "x"),
        ("pot.tokens_read", "x"),
        ("pot.positions", 3),
        ("pot.peaks", ...),
    ):
        yield (
            f"{place}={value!r}"[:40],
            lambda tensors, header, place=place, value=value: put(header, place, value),
        )
    for name in ("hidden", "newest", "tail", "layers.0.keys", "layers.1.index", "novelty"):
        yield f"no {name}", lambda tensors, header, name=name: tensors.pop(name)
        if name == "tail":
            continue  # a shorter one is one, too
        yield (
            f"flat {name}",
            lambda tensors, header, name=name: tensors.update(
                {name: tensors[name].flatten()[:1].clone()}
            ),
        )


def test_any_bad_file_ends_only_the_request_that_wants_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    changes = dict(bad_headers())
    good = saved(tmp_path / "good.pot.safetensors").read_bytes()
    for number, change in enumerate(changes.values()):
        path = tmp_path / f"bad{number}.pot.safetensors"
        path.write_bytes(good)
        rewritten(path, change)
    (tmp_path / "deep.pot.safetensors").write_bytes(good)
    save_file(
        load_file(tmp_path / "good.pot.safetensors"),
        tmp_path / "deep.pot.safetensors",
        metadata={pot_file.FORMAT: "[" * 99_999},
    )
    with live({"max_sessions": 3, "pot_dir": tmp_path}) as here:
        here.http.timeout = 20
        for number, what in enumerate([*changes, "deep"]):
            name = f"bad{number}" if what != "deep" else "deep"
            caplog.clear()
            status, code = ask(here, name)
            assert (status, code) in TOLD, (what, status, code)
            assert (
                len([record for record in caplog.records if record.levelno >= logging.ERROR]) == 1
            ), what
            assert here.http.post(f"/v1/pots/{name}/restore").status_code in (200, 409, 503)
            assert here.http.get("/v1/pots").status_code == 200
            here.http.delete(f"/v1/pots/{name}")
        assert ask(here, "good") == (200, None)
        assert here.service.failure is None


def test_any_error_while_a_pot_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    saved(tmp_path / "book.pot.safetensors")
    with live({"max_sessions": 3, "pot_dir": tmp_path}) as here:
        for problem, expected in (
            (RuntimeError("boom"), (500, "internal_error")),
            (ZeroDivisionError(), (500, "internal_error")),
            (ValueError("a secret"), (500, "internal_error")),
            (torch.OutOfMemoryError("CUDA out of memory"), (503, "out_of_memory")),
            (OSError(errno.EIO, "Input/output error"), (503, "disk_failed")),
        ):
            caplog.clear()
            with monkeypatch.context() as patch:
                patch.setattr(
                    PotLoader,
                    "load",
                    lambda *args, problem=problem: (_ for _ in ()).throw(problem),
                )
                assert ask(here, "book") == expected
            assert (
                len([record for record in caplog.records if record.levelno >= logging.ERROR]) == 1
            )
            assert here.chat("Hello").choices
        assert ask(here, "book") == (200, None)


# ---------------------------------------------------------------- replacing and deleting


def test_replacing_keeps_the_file_until_the_new_one_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "book.pot.safetensors"
    there: list[bool] = []
    put = pot_file.put

    def watched(target: Path, content: bytes) -> None:
        there.append(path.exists())
        put(target, content)

    def full(target: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with live({"pot_dir": tmp_path}) as here:
        fill(here, "book")
        here.http.post("/v1/pots/book/save")
        before = pot_file.describe(path)["content_sha256"]
        with monkeypatch.context() as patch:
            patch.setattr(pot_file, "put", full)
            reply = here.http.post(
                "/v1/pots", json={"name": "book", "text": OTHER, "replace": True}
            )
            assert (reply.status_code, reply.json()["error"]["code"]) == (503, "disk_full")
            assert "is in memory" in reply.json()["error"]["message"]
            assert pot_file.describe(path)["content_sha256"] == before
        monkeypatch.setattr(pot_file, "put", watched)
        fill(here, "book", OTHER * 2, replace=True)
        assert pot_file.describe(path)["content_sha256"] != before  # before the answer came
        here.chat("Remember me", session="mine")
        named = {"name": "book", "session": "mine", "replace": True}
        assert here.http.post("/v1/pots", json=named).status_code == 201
        assert there == [True, True]
        fill(here, "book", OTHER, replace=True, expendable=True)
        assert here.http.get("/v1/pots/book").json()["state"] == "ready"
        here.http.post("/v1/pots/none/save")
        here.service.engine.disk.now(lambda: None)
        assert (
            not path.exists()
        )  # what is expendable has no file, and must not come back as another


class Slow:
    """Reading and writing begin, and then wait until `go`."""

    def __init__(self) -> None:
        self.begun, self.go = threading.Event(), threading.Event()
        self._put, self._read = pot_file.put, pot_file._content

    def put(self, target: Path, content: bytes) -> None:
        self.begun.set()
        self.go.wait(20)
        self._put(target, content)

    def read(self, path: Any) -> bytes:
        content = self._read(path)
        self.begun.set()
        self.go.wait(20)
        return content


@contextmanager
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Slow]:
    slow = Slow()
    with monkeypatch.context() as patch:
        patch.setattr(pot_file, "put", slow.put)
        patch.setattr(pot_file, "_content", slow.read)
        yield slow
        slow.go.set()


@pytest.mark.parametrize("beside", ["save", "restore", "question", "replace", "eviction"])
def test_deletion_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beside: str) -> None:
    with live({"max_sessions": 2, "pot_dir": tmp_path}) as here, ThreadPoolExecutor() as pool:
        fill(here, "book")
        if beside != "eviction":
            here.http.post("/v1/pots/book/save")
        if beside in ("restore", "question"):
            for name in ("Anna", "Ben", "Carl"):
                here.chat(f"I am {name}")
        with slow_disk(monkeypatch) as slow:
            acts: dict[str, Callable[[], Any]] = {
                "save": lambda: here.http.post("/v1/pots/book/save"),
                "restore": lambda: here.http.post("/v1/pots/book/restore"),
                "question": lambda: ask(here, "book"),
                "replace": lambda: here.http.post(
                    "/v1/pots", json={"name": "book", "text": OTHER, "replace": True}
                ),
                "eviction": lambda: [here.chat(f"I am {name}") for name in ("Anna", "Ben", "Carl")],
            }
            others = [
                pool.submit(acts[beside]) for _ in range(3 if beside in ("save", "restore") else 1)
            ]
            assert slow.begun.wait(20)
            deleting = pool.submit(here.http.delete, "/v1/pots/book")
            while not (here.service.engine.store.deletions or deleting.done()):
                time.sleep(0.01)
            gone = here.http.get("/v1/pots/book").status_code
            slow.go.set()
            deleted = deleting.result()
            for other in others:
                other.result()
        assert (deleted.status_code, gone) == (200, 404)
        assert here.http.get("/v1/pots/book").status_code == 404
        assert here.http.get("/v1/pots").json()["data"] == []
        assert not list(tmp_path.glob("*.safetensors"))
        fill(here, "book", OTHER)  # the name is free
        assert ask(here, "book") == (200, None)


# ---------------------------------------------------------------- a disk that fails


def full_disk(patch: pytest.MonkeyPatch, number: int = errno.ENOSPC) -> None:
    def full(target: Path, content: bytes) -> None:
        raise OSError(number, os.strerror(number))

    patch.setattr(pot_file, "put", full)


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (errno.ENOSPC, "disk_full"),
        (errno.EDQUOT, "disk_full"),
        (errno.EIO, "disk_failed"),
        (errno.EMFILE, "disk_failed"),
    ],
)
def test_what_the_disk_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, code: str
) -> None:
    with live({"pot_dir": tmp_path}) as here:
        fill(here, "book")
        with monkeypatch.context() as patch:
            full_disk(patch, number)
            reply = here.http.post("/v1/pots/book/save")
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, code)
        assert str(tmp_path) not in reply.text
        assert here.gauge("infinipot_disk_failures_total") == 1
        assert here.http.post("/v1/pots/book/save").status_code == 200


def test_a_disk_that_was_full_for_a_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pot_files, "RETRY_S", 0.5)
    with live({"max_sessions": 2, "pot_dir": tmp_path}) as here:
        with monkeypatch.context() as patch:
            full_disk(patch)
            fill(here, "one")
            fill(here, "two")
            refused = here.http.post(
                "/v1/chat/completions",
                json={"model": "tiny", "messages": [{"role": "user", "content": "x"}]},
            )
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "disk_full")
        time.sleep(0.6)
        for name in ("Anna", "Ben", "Carl"):
            assert here.chat(f"I am {name}").choices
        assert ask(here, "one") == ask(here, "two") == (200, None)


def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    """As far as the system is concerned: it refuses to write on."""
    session = Session(*tiny(), CONFIG)
    session.append(LONG)
    session.save(tmp_path / "a.pot")
    before = (tmp_path / "a.pot").read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(pot_file.PotFileError, match="cannot save") as refused:
            session.save(tmp_path / "a.pot")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert isinstance(refused.value.__cause__, OSError)
    assert (tmp_path / "a.pot").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["a.pot"]


def test_stopping_while_pots_are_brought_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends, whatever the disk is doing, and what is in memory is written."""
    with live({"pot_dir": tmp_path}) as here:
        fill(here, "book")
        here.http.post("/v1/pots/book/save")
        fill(here, "fresh", OTHER)
        engine = here.service.engine
        with slow_disk(monkeypatch) as slow, ThreadPoolExecutor() as pool:
            asked = [pool.submit(here.http.post, "/v1/pots/book/restore") for _ in range(4)]
            assert slow.begun.wait(20)
            stopping = pool.submit(engine.stop)
            while not engine.stopped:
                time.sleep(0.01)
            slow.go.set()
            stopping.result(20)
            replies = [one.result(20) for one in asked]
        assert {reply.status_code for reply in replies} <= {200, 503}
        assert (
            engine.call(lambda: None).exception(5) is not None
        )  # nobody waits for what will not be done
        assert (tmp_path / "fresh.pot.safetensors").exists()


# ---------------------------------------------------------------- files that are kept


def talk(folder: Path) -> list[str]:
    """A conversation, written as its server ended."""
    with live({"pot_dir": folder}) as here:
        said = [f"I am Anna. {LONG[:300]}"]
        return [*said, here.chat(*said).choices[0].message.content, "Who am I?"]


def conversations(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "conversations").iterdir()}


def cached(here: Live, *said: str, **options: Any) -> int:
    return int(here.chat(*said, **options).usage.prompt_tokens_details.cached_tokens)


def test_healthy_conversations_outlast_what_cannot_use_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = talk(tmp_path)
    before = conversations(tmp_path)
    with live({"pot_dir": tmp_path}) as here:
        with monkeypatch.context() as patch:
            patch.setattr(
                pot_file,
                "_content",
                lambda path: (_ for _ in ()).throw(OSError(errno.EMFILE, "Too many open files")),
            )
            assert cached(here, *said, max_tokens=1) == 0
        assert here.gauge("infinipot_disk_failures_total") == 1
        assert cached(here, *said, max_tokens=1) > 300
        assert before.items() <= conversations(tmp_path).items()

    def half() -> tuple[Any, Any]:
        model, tokenizer = tiny()
        return model.to(torch.bfloat16), tokenizer

    with live({"pot_dir": tmp_path}, load=half) as here:
        assert cached(here, *said, max_tokens=1) == 0
        assert here.gauge("infinipot_disk_failures_total") == 0
    assert before.items() <= conversations(tmp_path).items()
    with live({"pot_dir": tmp_path}) as here:
        assert cached(here, *said) > 300


def test_damaged_conversations_are_set_aside(tmp_path: Path) -> None:
    said = talk(tmp_path)
    (path,) = (tmp_path / "conversations").iterdir()
    path.write_bytes(path.read_bytes()[:-9] + b"x" * 9)
    damaged = path.read_bytes()
    with live({"pot_dir": tmp_path}) as here:
        assert cached(here, *said) == 0
        assert here.gauge("infinipot_disk_failures_total") == 1
    assert path.with_name(path.name + ".damaged").read_bytes() == damaged


def test_only_files_are_pots(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "conversations"):
        place.mkdir(exist_ok=True)
        (place / "folder.pot.safetensors").mkdir()
        (place / "dangling.pot.safetensors").symlink_to(tmp_path / "nowhere")
        (place / "loop.pot.safetensors").symlink_to(place / "loop.pot.safetensors")
        os.mkfifo(place / "pipe.pot.safetensors")
        (place / f"5-{'a' * 64}.pot.safetensors").mkdir()
    saved(tmp_path / "book.pot.safetensors")
    (tmp_path / "no pot's name.pot.safetensors").write_bytes(b"x")
    with live({"pot_dir": tmp_path}) as here:
        assert [pot["name"] for pot in here.http.get("/v1/pots").json()["data"]] == ["book"]
        for name in ("folder", "dangling", "pipe", "loop"):
            assert here.http.get(f"/v1/pots/{name}").status_code == 404
            assert ask(here, name) == (404, "pot_not_found")
        fill(here, "folder", OTHER)
        assert here.http.post("/v1/pots/folder/save").status_code == 409
        assert here.http.delete("/v1/pots/folder").status_code == 200
        assert (tmp_path / "folder.pot.safetensors").is_dir()


def test_what_a_kill_leaves_is_cleared_away(tmp_path: Path) -> None:
    (tmp_path / "conversations").mkdir()
    left = [
        tmp_path / ".tmpAb3dE9",
        tmp_path / "conversations" / ".tmpZZZZZZ",
        tmp_path / ".a.1.b.part",
    ]
    other = [
        tmp_path / ".tmp",
        tmp_path / ".tmpfolders",
        tmp_path / "notes.part",
        tmp_path / ".tmp-1234",
    ]
    fresh = tmp_path / ".b.2.c.part"  # another process writes it
    for path in (*left, *other, fresh):
        path.write_bytes(b"half")
    for path in (left[0], left[2]):
        os.utime(path, (0, 0))
    with live({"pot_dir": tmp_path}):
        assert [path.exists() for path in left] == [False] * 3
        assert [path.exists() for path in (*other, fresh)] == [True] * 5


def test_one_server_a_folder(tmp_path: Path) -> None:
    with live({"pot_dir": tmp_path}) as here:
        for shared in (False, True):
            settings = {**vars(here.service.settings), "shared": shared}
            other = Service("tiny", tiny, type(here.service.settings)(**settings))
            other.start()
            assert isinstance(other.failure, ValueError)
            assert f"another server uses the folder {tmp_path}" in str(other.failure)
            other.stop()
    with (
        live({"pot_dir": tmp_path, "shared": True}) as here,
        live({"pot_dir": tmp_path, "shared": True}),
    ):
        assert here.chat("Hello").choices


# ---------------------------------------------------------------- who may go on in what


def test_a_salt_keeps_conversations_apart(tmp_path: Path) -> None:
    with live({"pot_dir": tmp_path}) as here:
        said = [f"I am Anna. {LONG[:300]}"]
        said.append(here.chat(*said, cache_salt="s3cret", session="a").choices[0].message.content)
        more = (*said, "Who am I?")
        for other in (
            {},
            {"cache_salt": "guess"},
            {"session": "a"},
            {"cache_salt": "guess", "session": "a"},
        ):
            assert cached(here, *more, **other) == 0
        assert cached(here, *more, cache_salt="s3cret", session="a") > 300
        asked = {"name": "stolen", "session": "b", "cache_salt": "guess"}
        here.chat("Hello", session="b", cache_salt="s3cret")
        refused = here.http.post("/v1/pots", json=asked)
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "session_not_found")
        assert here.http.post("/v1/pots", json={**asked, "cache_salt": "s3cret"}).status_code == 201


# ---------------------------------------------------------------- the folder as a whole


def moved_away(folder: Path, aside: Path) -> None:
    folder.rename(aside)


def another_folder(folder: Path, aside: Path) -> None:
    folder.rename(aside)
    (folder / "conversations").mkdir(parents=True)
    saved(folder / "book.pot.safetensors", OTHER)


def a_file(folder: Path, aside: Path) -> None:
    folder.rename(aside)
    folder.write_text("not a folder")


def a_link_to_nothing(folder: Path, aside: Path) -> None:
    folder.rename(aside)
    folder.symlink_to(folder)


def bring_back(folder: Path, aside: Path) -> None:
    if folder.is_symlink() or folder.is_file():
        folder.unlink()
    elif folder.exists():
        shutil.rmtree(folder)
    aside.rename(folder)


GONE = "its folder does not exist"
SWAPPED = {
    moved_away: GONE,
    another_folder: "its folder is another one than at the start",
    a_file: GONE,
    a_link_to_nothing: GONE,
}


def errors_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The lines of a server since the last call. None may be a traceback."""
    records = [record for record in caplog.records if record.levelno >= logging.ERROR]
    caplog.clear()
    assert not any(record.exc_info for record in records)
    return [record.getMessage() for record in records]


def go_on(here: Live, said: str) -> int:
    """Go on with a conversation, beside others that push it out of memory. Returns what its pot had read."""
    usage = here.chat("I am Anna.", said, "Who?").usage
    for number in range(8):
        assert here.chat(f"I am number {number}", max_tokens=1).choices
    return int(usage.prompt_tokens_details.cached_tokens)


def test_the_folder_goes_away_and_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Pots in memory stay, also one whose file was lost with the folder. Nothing is written to what has
    taken the folder's place."""
    folder = tmp_path / "pots"
    aside = tmp_path / "aside"
    with live({"max_sessions": 8, "pot_dir": folder}) as here:
        fill(here, "book")
        here.http.post("/v1/pots/book/save")
        fill(here, "fresh", OTHER)
        for swap, reason in SWAPPED.items():
            said = here.chat("I am Anna.").choices[0].message.content
            assert ask(here, "book") == ask(here, "fresh") == (200, None)
            assert [pot["state"] for pot in here.http.get("/v1/pots").json()["data"]] == [
                "ready"
            ] * 2
            caplog.clear()
            swap(folder, aside)
            try:
                there = set(folder.rglob("*"))
                reply = here.http.post("/v1/pots/fresh/save")
                assert (reply.status_code, reply.json()["error"]["code"]) == (503, "disk_failed")
                assert reason in reply.json()["error"]["message"]
                assert str(tmp_path) not in reply.text
                (line,) = errors_of(caplog)
                assert str(folder) in line and "bring it back" in line
                monkeypatch.setattr(here.service.engine.files, "_seldom", ThrottledLog())
                assert go_on(here, said) > 0
                (line,) = errors_of(caplog)  # though several pots could not be written
                assert str(folder) in line and "are read again" in line
                assert ask(here, "book") == ask(here, "fresh") == (200, None)
                assert here.http.get("/ready").status_code == 200
                assert set(folder.rglob("*")) == there
            finally:
                bring_back(folder, aside)
            assert here.http.post("/v1/pots/fresh/save").status_code == 200
            assert here.http.post("/v1/pots/book/save").status_code == 200


def test_a_deletion_that_fails_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with live({"pot_dir": tmp_path / "pots"}) as here:
        fill(here, "book")
        here.http.post("/v1/pots/book/save")
        another_folder(tmp_path / "pots", tmp_path / "aside")
        reply = here.http.delete("/v1/pots/book")
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "disk_failed")
        assert "its file, if any, stays" in reply.json()["error"]["message"]
        assert len(errors_of(caplog)) == 1
        assert (tmp_path / "pots" / "book.pot.safetensors").exists()  # another server's
        bring_back(tmp_path / "pots", tmp_path / "aside")
        assert here.http.delete("/v1/pots/book").status_code == 200
        assert list((tmp_path / "pots").glob("*.safetensors")) == []


@pytest.mark.parametrize("number", [errno.EROFS, errno.ENOSPC], ids=["read-only", "full"])
def test_a_folder_that_takes_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    """The system refuses each new file, and if it is read-only each deletion."""
    reason = os.strerror(number)

    def refuse(path: Any, *args: Any, **options: Any) -> Any:
        raise OSError(number, reason, str(path))

    def open_old(path: Any, mode: str = "r") -> Any:
        return open(path, mode) if mode == "rb" else refuse(path)

    with live({"max_sessions": 8, "pot_dir": tmp_path}) as here:
        fill(here, "book")
        here.http.post("/v1/pots/book/save")
        fill(here, "fresh", OTHER)
        said = here.chat("I am Anna.").choices[0].message.content
        with monkeypatch.context() as patch:
            patch.setattr(pot_file, "open", open_old, raising=False)
            if number == errno.EROFS:
                patch.setattr(Path, "unlink", refuse)
            assert go_on(here, said) > 0
            (line,) = errors_of(caplog)
            assert reason in line and "are read again" in line
            reply = here.http.post("/v1/pots/fresh/save")
            assert (reply.status_code, reply.json()["error"]["type"]) == (503, "server_error")
            assert str(tmp_path) not in reply.text
            (line,) = errors_of(caplog)
            assert line.endswith(f"cannot save {tmp_path / 'fresh.pot.safetensors'}: {reason}")
            assert ask(here, "book") == ask(here, "fresh") == (200, None)
            if number == errno.EROFS:
                assert here.http.delete("/v1/pots/book").status_code == 503
                (line,) = errors_of(caplog)
                assert line.endswith(f"cannot delete {tmp_path / 'book.pot.safetensors'}: {reason}")
        assert here.http.post("/v1/pots/fresh/save").status_code == 200


def test_one_line_tells_of_all_pots_that_are_lost_at_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with live({"max_sessions": 8, "pot_dir": tmp_path / "pots"}) as here:
        for name in ("Anna", "Ben", "Carl"):
            here.chat(f"I am {name}")
        moved_away(tmp_path / "pots", tmp_path / "aside")
    (line,) = errors_of(caplog)
    assert line.startswith("pots not written at the end: 3. ")


@pytest.mark.parametrize("name", ["conversations", ".lock"])
def test_folders_that_cannot_be_used(tmp_path: Path, name: str) -> None:
    if name == ".lock":
        (tmp_path / name).mkdir()
    else:
        (tmp_path / name).write_text("x")
    service = Service("tiny", tiny, Settings(pot_dir=tmp_path))
    service.start()
    service.stop()
    assert re.match(
        f"cannot use the folder {tmp_path} for pots: {tmp_path / name}: .* Give another --pot-dir",
        str(service.failure),
    )
