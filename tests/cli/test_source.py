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

    monkeypatch.setattr(source, "BLOCK_BYTES", 5)
    path = tmp_path / "text"
    path.write_bytes(b"\xef\xbb\xbf" + "häßlich, 𝄞 und 漢字".encode())
    assert "".join(source.Source(str(path))) == "häßlich, 𝄞 und 漢字"
    for bad, place in ((b"abcdef\xff", 6), (b"abcd\xe6\xbcx", 4), (b"abcdefg\xf0\x9d", 7)):
        path.write_bytes(bad)
        text = source.Source(str(path))
        assert "".join(text) == bad[:place].decode()
        assert f"byte {place} " in (text.problem or "")


def test_what_is_not_utf8_keeps_what_was_read(run: Any, model: str, tmp_path: Path) -> None:
    text = tmp_path / "latin1.txt"
    pot = tmp_path / "a.pot"
    text.write_bytes(TEXT[:1200].encode() + b"caf\xe9 " + TEXT.encode())
    code, out, err = run("generate", model, "-f", text, "-p", "Who?", *POT, "--save-pot", pot)
    assert (code, out) == (2, "")
    assert f"{text} is not UTF-8 at byte 1,203 (0xe9)" in err
    assert "pot saved" in err
    assert run("generate", model, "--pot", pot, "-p", "Who?", "--max-tokens", 2)[0] == 0
