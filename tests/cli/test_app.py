"""What all commands share: help, version, and one line about bad use."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import one_line, process

from infinipot.policies import POLICIES


def test_help_is_fast() -> None:
    took = []
    for _ in range(3):
        started = time.monotonic()
        child = process("--help", stdout=subprocess.PIPE)
        out, _ = child.communicate(timeout=60)
        took.append(time.monotonic() - started)
        assert child.returncode == 0
    for name in ("generate", "chat", "distill", "info", "policies"):
        assert name in out.decode()
    assert min(took) < 1


def test_version(run: Any) -> None:
    from infinipot import __version__

    assert run("--version")[:2] == (0, f"infinipot {__version__}\n")


def test_policies(run: Any) -> None:

    code, out, _ = run("policies")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == list(POLICIES)


def test_torchao_is_hushed_and_nothing_else(run: Any, caplog: pytest.LogCaptureFixture) -> None:
    import logging

    caplog.set_level(logging.WARNING)  # another test's server may have set another level
    assert run("--version")[0] == 0
    logging.getLogger("torchao").warning("Failed to load %s: no such symbol", "_C.so")
    logging.getLogger("torch.utils._pytree").warning(
        "Calling register_constant() on Enum subclasses is deprecated"
    )
    assert caplog.messages == []
    logging.getLogger("torchao").warning("something else")
    logging.getLogger("torch.utils._pytree").warning("%s is deprecated", "another thing")
    assert caplog.messages == ["something else", "another thing is deprecated"]


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (
            ["generate", "MODEL", "-p", "x", "--policy", "infinipto"],
            ["unknown policy 'infinipto'; did you mean 'infinipot'?"],
        ),
        (
            ["generate", "MODEL", "-p", "x", "--novelty", "2"],
            ["novelty=2.0 is not allowed: it must be between 0 and 1"],
        ),
        (
            ["generate", "MODEL", "-p", "x", "--pot-size", "many"],
            ["'--pot-size'", "'many' is not a whole number"],
        ),
        (["generate", "MODEL", "-p", "x", "--pot-sise", "9"], ["--pot-sise", "--pot-size"]),
        (
            [
                "generate",
                "MODEL",
                "-p",
                "x",
                "-f",
                "BOOK",
                "--pot-size",
                "64",
                "--distill-to",
                "60",
            ],
            ["pot_size=64 leaves no room"],
        ),
        (["generate", "MODEL", "-p", "x", "-f", "no/such"], ["there is no file no/such"]),
        (["generate", "MODEL", "-p", "x", "-f", "no/*.txt"], ["no/*.txt names no file"]),
        (["generate", "MODEL", "-p", "x", "--pot", "no/such"], ["there is no file no/such"]),
        (["generate", "MODEL", "-p", "x", "--pot", "BOOK"], ["is not a readable pot file"]),
        (["generate", "MODEL", "-p", "x", "--save-pot", "no/such"], ["there is no folder"]),
        (["generate", "MODEL", "-p", "x", "--device", "abacus"], ["abacus"]),
        (["generate", "MODEL", "-p", "x", "--dtype", "float23"], ["unknown dtype 'float23'"]),
        (
            ["generate", "MODEL", "-p", "x", "--system", "a", "--raw"],
            ["--system needs the chat template"],
        ),
        (["generate", "MODEL"], ["nothing to read"]),
        (["generate", "./no/model", "-p", "x"], ["there is no folder ./no/model"]),
        (
            ["generate", "MODEL", "Who hid it?", "-p", "x"],
            ["two questions, 'Who hid it?' and -p 'x'"],
        ),
        (["generate", "MODEL", "-p", "x", "--prompt", "y"], ["--prompt is given 2 times"]),
        (["serve", "MODEL", "--port", "1", "--port=2"], ["--port is given 2 times", "leave one"]),
        (["generate", "smolm2", "Who hid it?"], ["no model 'smolm2': did you mean 'smollm2'?"]),
        (["chat", "Who hid it?"], ["'Who hid it?' names no model"]),
        (["genrate"], ["No such command 'genrate'"]),
        (
            ["distill", "MODEL", "-f", "BOOK", "-o", "x.pot", "--catalyst", "question"],
            ["give one with -p"],
        ),
        (["distill", "MODEL", "-f", "/dev/null", "-o", "x.pot"], ["/dev/null is empty"]),
        (["chat", "MODEL", "-f", "-"], ["where the messages come from"]),
        (
            ["chat", "./no/model", "--prefill", "whole"],
            ["prefill whole distils once for each answer", "ask with generate"],
        ),
        (["info", "no/such"], ["there is no file no/such"]),
    ],
)
def test_bad_use(run: Any, model: str, book: str, args: list[str], parts: list[str]) -> None:
    code, out, err = run(*[{"MODEL": model, "BOOK": book}.get(arg, arg) for arg in args])
    assert (code, out) == (2, ""), err
    one_line(err, *parts)
    assert not Path("x.pot").exists()


def names_of(command: Any, *path: str) -> Iterator[tuple[str, ...]]:
    """The names that lead to each command and group, the app itself first."""
    yield path
    for name, inner in getattr(command, "commands", {}).items():
        yield from names_of(inner, *path, name)


def test_help_builds_only_what_it_shows(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    from typer.main import get_command

    from infinipot.cli.app import app

    for names in names_of(get_command(app)):
        text = run(*names, "--help")[1]
        app([*names, "--help"], prog_name="infinipot", standalone_mode=False)
        assert text == capsys.readouterr().out
        part = get_command(app.part([*names]))
        assert not any(inner.params for inner in getattr(part, "commands", {}).values())
    assert "--pot-size" in run("generate", "--help")[1]
    assert run("--help")[1] == run()[1]
    assert "No such command 'generat'" in run("generat", "--help")[2]


def test_help_behind_arguments_builds_one_command(run: Any) -> None:
    from infinipot.cli.app import app

    for args in (["generate", "smollm2", "-f", "x"], ["eval", "longbench", "smollm2"]):
        names = app.names_in([*args, "--help"])
        assert names == args[: len(names)]
        assert [one.name for one in app.part(names).registered_commands] == names[-1:]
        assert run(*args, "--help")[1] == run(*names, "--help")[1] != ""
    code, out, err = run("generate", "no/such.gguf", "-p", "--help")
    assert (code, out) == (2, ""), "here --help is the question"
    one_line(err, "no/such.gguf")


@pytest.mark.parametrize(
    ("words", "found"),
    [("infinipot gen", "generate"), ("infinipot generate --pot-s", "--pot-size")],
)
def test_shells_complete_commands_and_options(
    run: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: str,
    found: str,
) -> None:
    monkeypatch.setenv("_INFINIPOT_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    with pytest.raises(SystemExit):
        run()
    assert capsys.readouterr().out.split() == [found]


def test_a_variable_of_another_command_is_known(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFINIPOT_PORT", "8000")
    assert run("policies", "tova")[0] == 0
    monkeypatch.setenv("INFINIPOT_POTR", "8000")
    one_line(run("policies", "tova")[2], "INFINIPOT_POTR", "did you mean 'INFINIPOT_P")
