"""`infinipot chat`, in a terminal and in a pipe."""

from __future__ import annotations

import io
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from commands import POT, TEXT, Terminal


def test_chat_in_a_terminal(model: str, tmp_path: Path) -> None:
    pot = tmp_path / "a.pot"
    terminal = Terminal("chat", model, *POT, "--max-tokens", "100000", "--save-pot", str(pot))
    terminal.until("> ")
    os.write(terminal.master, b"Hello\n")
    time.sleep(1)
    terminal.child.send_signal(signal.SIGINT)  # stops the answer
    os.write(terminal.master, b"/stats\n")
    terminal.until("in a pot of 128")
    os.write(terminal.master, b"/nothing\n")
    terminal.until("/nothing is not known")
    os.write(terminal.master, b"/quit\n")
    code, out = terminal.close()
    assert code == 0
    assert out.strip()
    assert f"pot saved in {pot}" in terminal.shown


def test_chat_with_piped_messages(
    run: Any, model: str, monkeypatch: pytest.MonkeyPatch, book: str, tmp_path: Path
) -> None:
    from infinipot import PotConfig, Session, load

    monkeypatch.setattr(
        sys, "stdin", io.StringIO(f"Hello\n\nWho are you?\n/save {tmp_path / 'x.pot'}\n")
    )
    code, out, err = run("chat", model, "-f", book, *POT, "--max-tokens", 5)
    session = Session(*load(model), PotConfig(pot_size=128, distill_to=48, chunk_tokens=16))
    session.append(TEXT[:1200])
    first = session.chat("Hello", max_tokens=5)
    second = session.chat("Who are you?", max_tokens=5)
    assert (code, out) == (0, f"{first}\n{second}\n")
    assert "> " not in err
    assert (tmp_path / "x.pot").exists()
