"""Nothing that is given is dropped: several files, folders, patterns, pipes; binaries are refused."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from commands import POT, one_line

from infinipot.cli.console import BadUse
from infinipot.cli.source import Source, source_of


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with texts, hidden files, an image, an empty file and a file in Latin-1."""
    monkeypatch.chdir(tmp_path)
    for name, data in {
        "notes/b.md": b"bee\n",
        "notes/a.md": b"ant",
        "notes/sub/c.txt": b"cat\n",
        "notes/.git/config": b"hidden",
        "notes/.env": b"hidden",
        "notes/pic.png": b"\x89PNG\r\n\x1a\n\0\0",
        "notes/none.txt": b"",
        "notes/latin.txt": b"caf\xe9",
        "one.md": b"one\n",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return tmp_path


@contextmanager
def stdin(data: bytes | None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A pipe with this text as stdin; None: /dev/null."""
    if data is None:
        with open(os.devnull) as nothing:
            monkeypatch.setattr(sys, "stdin", nothing)
            yield
        return
    out, into = os.pipe()
    os.write(into, data)
    os.close(into)
    with open(out) as pipe:
        monkeypatch.setattr(sys, "stdin", pipe)
        yield


def test_several_files_are_read_in_order_behind_their_names(tree: Path) -> None:
    assert "".join(Source("one.md")) == "one\n"
    text = "".join(Source("notes/b.md", "one.md"))
    assert text == "[file: notes/b.md]\n\nbee\n\n\n[file: one.md]\n\none\n"


def test_a_folder_gives_its_texts_and_says_what_it_leaves_out(tree: Path, capsys: Any) -> None:
    source = Source("notes")
    assert source.names == ["notes/a.md", "notes/b.md", "notes/sub/c.txt"]
    err = capsys.readouterr().err
    one_line(err, "left out of notes: ", "notes/pic.png (a PNG image)", "notes/none.txt (empty)")
    assert "notes/latin.txt (not UTF-8 at byte 3 (0xe9)" in err
    assert "hidden" not in "".join(source)


def test_patterns_that_the_shell_left(tree: Path) -> None:
    assert Source("notes/*.md").names == ["notes/a.md", "notes/b.md"]
    assert Source("**/*.txt", "one.md").names == ["notes/sub/c.txt", "one.md"]
    with pytest.raises(BadUse, match=r"no\*such names no file"):
        Source("no*such")
    with pytest.raises(BadUse, match="names no text that can be read; left out of notes/pi"):
        Source("notes/pi*")


def test_a_file_given_twice_is_read_once_and_said(tree: Path, capsys: Any) -> None:
    assert Source("one.md", "notes/a.md", "*.md").names == ["one.md", "notes/a.md"]
    assert capsys.readouterr().err == ""
    assert Source("*.md", "one.md").names == ["one.md"]
    one_line(capsys.readouterr().err, "one.md is given twice, and read once")


@pytest.mark.parametrize("data", [b"piped\n", b"", None])
def test_what_is_piped_in_comes_last(
    tree: Path, monkeypatch: pytest.MonkeyPatch, data: bytes | None
) -> None:
    with stdin(data, monkeypatch):
        source = source_of(["one.md"])
        assert source is not None
        expected = "one\n"
        if data:
            expected = "[file: one.md]\n\none\n\n\n[file: stdin]\n\npiped\n"
        assert "".join(source) == expected
    with stdin(data, monkeypatch):
        source = source_of(None)
        assert "".join(source or ()) == (data or b"").decode()
        assert (source is None) == (not data)


def test_stdin_stands_where_it_is_named(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with stdin(b"piped", monkeypatch):
        source = source_of(["-", "one.md"])
        assert "".join(source or ()) == "[file: stdin]\n\npiped\n\n[file: one.md]\n\none\n"


@pytest.mark.parametrize(
    ("name", "data", "part"),
    [
        ("a.bin", b"ab\0c", "a.bin is binary (it holds NUL bytes)"),
        ("a.txt", b"\x89PNG\r\n\x1a\n", "a.txt is a PNG image"),
        ("a.gz", b"\x1f\x8b\x08", "compressed with gzip: decompress it first (zcat)"),
        ("a.txt", "Ä".encode("utf-16"), "a.txt is UTF-16 text"),
        ("a.txt", b"", "a.txt is empty"),
    ],
)
def test_what_is_no_text_is_refused_before_the_model_is_loaded(
    run: Any, tree: Path, name: str, data: bytes, part: str
) -> None:
    (tree / name).write_bytes(data)
    for command in (["generate", "-p", "x"], ["distill", "-o", "x.pot"], ["chat"], ["inspect"]):
        code, out, err = run(command[0], "./no/model", *command[1:], "-f", "one.md", "-f", name)
        assert (code, out) == (2, "")
        one_line(err, part)


def test_a_binary_in_a_pipe_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with stdin(b"ab\0", monkeypatch):
        source = Source("-")
        assert "".join(source) == ""
    assert "stdin is binary" in (source.problem or "")


def test_all_files_reach_the_pot_and_a_cut_answer_says_so(
    run: Any, model: str, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = ["generate", model, *POT, "-p", "x", "--json"]
    files = ["-f", "one.md", "-f", "notes/a.md"]
    sizes = []
    for given in (files[:2], files):
        code, out, err = run(*ask, "--max-tokens", 2, *given)
        assert code == 0
        document = json.loads(out)
        assert document["finish_reason"] == "length"
        assert "the answer was cut after 2 tokens: --max-tokens 4 allows more" in err
        sizes.append(document["usage"]["prompt_tokens"])
    assert sizes == sorted(set(sizes))
    with stdin(b"piped", monkeypatch):
        document = json.loads(run(*ask, "--max-tokens", 8, *files)[1])
    assert document["usage"]["prompt_tokens"] > sizes[-1]
    with stdin(b"piped", monkeypatch):
        stop = document["text"][len(document["text"]) // 2]
        out, err = run(*ask, "--max-tokens", 8, *files, "--stop", stop)[1:]
    assert json.loads(out)["finish_reason"] == "stop"
    assert "cut" not in err


def test_a_session_reads_paths_and_says_how_an_answer_ended(model: str, tree: Path) -> None:
    from infinipot import Session, load

    loaded = load(model)
    session = Session(*loaded)
    assert session.finish_reason is None
    session.append([Path("one.md"), Path("notes/a.md")])
    same = Session(*loaded)
    same.append("".join(Source("one.md", "notes/a.md")))
    assert session.stats.tokens_read == same.stats.tokens_read
    text = session.ask("Who?", max_tokens=8)
    assert session.finish_reason == "length"
    assert text == same.ask("Who?", max_tokens=8)
    pieces = session.stream("Who?", max_tokens=8, stop=(text[len(text) // 2],))
    assert next(pieces) and session.finish_reason is None
    assert "".join(pieces) is not None and session.finish_reason == "stop"


def test_links_to_folders_are_named(tree: Path, capsys: Any) -> None:
    (tree / "notes/again").symlink_to(tree / "notes")
    assert len(Source("notes").names) == 3
    assert "notes/again (a link to a folder)" in capsys.readouterr().err
