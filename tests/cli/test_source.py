"""Where a text comes from: files, pipes, and bytes that are no text."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import POT, TEXT


def test_stdin_is_read_like_a_file(
    run: Any, model: str, book: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["-p", "Who?", *POT, "--max-tokens", 4]
    out, into = os.pipe()
    os.write(into, Path(book).read_bytes())
    os.close(into)
    with open(out) as pipe:
        monkeypatch.setattr(sys, "stdin", pipe)
        code, text, _ = run("generate", model, "-f", "-", *options)
    assert (code, text) == run("generate", model, "-f", book, *options)[:2]


def test_characters_across_blocks_and_a_byte_order_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from infinipot.cli import source
    from infinipot.text import files

    monkeypatch.setattr(files, "BLOCK_BYTES", 5)
    path = tmp_path / "text"
    path.write_bytes(b"\xef\xbb\xbf" + "häßlich, 𝄞 und 漢字".encode())
    assert "".join(source.Source(str(path))) == "häßlich, 𝄞 und 漢字"
    for bad, place in ((b"abcdef\xff", 6), (b"abcd\xe6\xbcx", 4), (b"abcdefg\xf0\x9d", 7)):
        path.write_bytes(bad)
        text = source.Source(str(path))
        assert "".join(text) == bad[:place].decode()
        assert f"byte {place} " in (text.problem or "")


def test_progress_goes_by_what_is_tokenised(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the bytes are prose of some four bytes a token, half are digits, one byte a token."""
    from infinipot import PotConfig, Session, load
    from infinipot.cli.source import Source
    from infinipot.text import files, tokens

    monkeypatch.setattr(files, "BLOCK_BYTES", 128)
    monkeypatch.setattr(tokens, "BLOCK", 128)
    path = tmp_path / "log"
    path.write_text(TEXT[:1200] + "2741 9358\n" * 120, "utf-8")
    session = Session(*load(model), PotConfig(pot_size=128, distill_to=48, chunk_tokens=16))
    source = Source(str(path))
    whole = len(session.tokenizer.encode(path.read_text()))
    seen = []

    def progress() -> None:
        read = session.stats.tokens_read
        # after the prose its few tokens are half of the bytes
        seen.append((source.share(read, session.tokens_given), read))

    session.append(source, progress=progress)
    prose = len(session.tokenizer.encode(TEXT[:1200]))
    assert prose < whole / 3
    for share, read in seen:
        if read < prose:
            true = read / prose / 2
        else:
            true = 0.5 + (read - prose) / (whole - prose) / 2
        assert share == pytest.approx(true, abs=0.12), (read, prose, whole)


def test_a_line_that_is_too_long_loses_its_middle() -> None:
    from infinipot.cli.progress import fitted

    line = "reading 26 % · 100 tokens · 3 distillations · 50 tok/s · 3:47 left"
    assert fitted(line, len(line)) == line
    assert fitted(line, 52) == "reading 26 % · 100 tokens · 50 tok/s · 3:47 left"
    assert fitted(line, 30) == "reading 26 % · 3:47 left"
    assert fitted(line, 10) == "reading 26"


def test_what_is_not_utf8_keeps_what_was_read(run: Any, model: str, tmp_path: Path) -> None:
    text = tmp_path / "latin1.txt"
    pot = tmp_path / "a.pot"
    text.write_bytes(TEXT[:1200].encode() + b"caf\xe9 " + TEXT.encode())
    code, out, err = run("generate", model, "-f", text, "-p", "Who?", *POT, "--save-pot", pot)
    assert (code, out) == (2, "")
    assert f"{text} is not UTF-8 at byte 1,203 (0xe9)" in err
    assert "pot saved" in err
    assert run("generate", model, "--pot", pot, "-p", "Who?", "--max-tokens", 2)[0] == 0


def test_a_byte_order_mark_that_comes_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    from infinipot.cli.source import Source

    out, into = os.pipe()
    with open(out) as pipe:
        monkeypatch.setattr(sys, "stdin", pipe)
        pieces = iter(Source("-"))
        text = ""
        for part in (b"\xef", b"\xbb\xbf", b"Anna \xef\xbb\xbf", b"hid it"):
            os.write(into, part)
            text += next(pieces)
        os.close(into)
    assert text == "Anna \ufeffhid it"


BYTES = "caf\udce9"
"""What Python makes of an argument that is not UTF-8."""


@pytest.mark.parametrize(
    ("args", "name"),
    [
        (["-p", BYTES], "--prompt"),
        (["-p", "x", "--system", BYTES], "--system"),
        (["-p", "x", "--stop", BYTES], "--stop"),
        (["-p", "x", "--catalyst", BYTES], "--catalyst"),
    ],
)
def test_arguments_that_are_not_utf8(run: Any, args: list[str], name: str) -> None:
    code, out, err = run("generate", "./no/model", *args)
    assert (code, out) == (2, "")
    assert f"{name} is not UTF-8 at byte 3 (0xe9)" in err


def test_other_places_that_are_not_utf8(
    run: Any, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "c.yaml"
    config.write_bytes(b"system: caf\xe9\n")
    code, _, err = run("generate", "./no/model", "-p", "x", "--config", config)
    assert code == 2 and "config file" in err
    config.write_text('system: "caf\\uD800"\n')
    code, _, err = run("generate", "./no/model", "-p", "x", "--config", config)
    assert code == 2 and "system in the config file is not UTF-8" in err
    for stdin in (b"Hello\ncaf\xe9\n",):
        path = tmp_path / "messages"
        path.write_bytes(stdin)
        with open(path, errors="surrogateescape") as messages:
            monkeypatch.setattr(sys, "stdin", messages)
            code, _, err = run("chat", model, "--max-tokens", 2, "--quiet")
        assert code == 2 and "the message is not UTF-8" in err
    monkeypatch.setenv("INFINIPOT_SYSTEM", BYTES)
    code, _, err = run("generate", "./no/model", "-p", "x")
    assert code == 2 and "INFINIPOT_SYSTEM is not UTF-8" in err
