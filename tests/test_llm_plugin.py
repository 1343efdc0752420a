"""The plugin for simonw/llm, in llm's own command line."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import TEXT, save_tiny

from infinipot import PotConfig, Session, load

llm = pytest.importorskip("llm", reason="llm is not installed: pip install llm")
POT = ["-o", "pot_size", "128", "-o", "distill_to", "48", "-o", "max_tokens", "5"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    save_tiny(folder)
    return folder


@pytest.fixture
def run(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a command line of llm with the tiny model added. Returns exit code and output."""
    from click.testing import CliRunner

    from infinipot import llm_plugin

    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path))
    monkeypatch.setattr(sys, "_called_from_test", True, raising=False)  # no installed plugins
    from llm import plugins
    from llm.cli import cli

    plugins.load_plugins()
    monkeypatch.delattr(sys, "_called_from_test")  # errors as users see them
    if not plugins.pm.is_registered(llm_plugin):
        plugins.pm.register(llm_plugin, "infinipot")
    llm_plugin.register_commands(cli)

    def ran(*args: str, text: str = "") -> tuple[int, str]:
        result = CliRunner().invoke(cli, list(args), input=text)
        return result.exit_code, result.output

    assert ran("infinipot", "add", str(folder)) == (0, f"llm -m infinipot/{folder}\n")
    return ran


@pytest.fixture
def session(folder: Path) -> Session:
    return Session(*load(str(folder)), PotConfig(pot_size=128, distill_to=48))


def test_a_text_and_a_question(run: Any, folder: Path, session: Session, tmp_path: Path) -> None:
    book = tmp_path / "book.txt"
    book.write_text(TEXT)
    model = f"infinipot/{folder}"
    assert "infinipot/smollm2" in run("models")[1]
    session.append(TEXT, question="Who hid it?")
    expected = session.ask("Who hid it?", max_tokens=5)
    code, out = run("-m", model, "-f", str(book), "Who hid it?", *POT)
    assert (code, out) == (0, f"{expected}\n")
    (logged,) = json.loads(run("logs", "--json")[1])
    assert logged["response"] == expected
    assert logged["output_tokens"] == 5
    assert logged["response_json"] == {"finish_reason": "length"}
    assert run("-m", model, "Who hid it?", *POT, "--no-stream", text=TEXT + "\n") == (code, out)


def test_a_conversation_goes_on(run: Any, folder: Path, session: Session) -> None:
    model = f"infinipot/{folder}"
    first = run("-m", model, "-s", "Be brief.", "Hello", *POT)[1].removesuffix("\n")
    code, out = run("-c", "And?", *POT)
    twin = Session(session.runner, session.tokenizer, session.config, system="Be brief.")
    twin.recall("Hello", first)
    assert (code, out) == (0, twin.chat("And?", max_tokens=5) + "\n")


def test_a_live_conversation_reads_nothing_again(run: Any, folder: Path, session: Session) -> None:
    talk = llm.get_model(f"infinipot/{folder}").conversation()
    answers = []
    for message in ("Hello", "And?", "Why?"):
        response = talk.prompt(message, pot_size=128, distill_to=48, max_tokens=5)
        answers.append((response.text(), response.usage().input))
    expected = []
    for message in ("Hello", "And?", "Why?"):
        before = session.stats.tokens_read
        answer = session.chat(message, max_tokens=5)
        expected.append((answer, session.stats.tokens_read - before - 5))
    assert answers == expected


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["-o", "policy", "infinipto"], "did you mean 'infinipot'?"),
        (["-o", "temperature", "-1"], "temperature=-1"),
        (["-o", "pot_sise", "5"], "pot_sise"),
        (["--schema", "name"], "schema"),
    ],
)
def test_bad_use(run: Any, folder: Path, args: list[str], words: str) -> None:
    code, out = run("-m", f"infinipot/{folder}", "x", *args)
    assert code in (1, 2)
    assert words in out
    assert "Traceback" not in out


def test_names_of_no_model(run: Any) -> None:
    code, out = run("infinipot", "add", "smolm2")
    assert (code, "did you mean 'smollm2'?" in out) == (1, True)
