"""What holds for every command: where its options come from, and how its help looks."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import typer
from commands import one_line

from infinipot.cli import app
from infinipot.cli.command import Command, options_of
from infinipot.cli.help_words import EXAMPLES

ROOT: Any = typer.main.get_command(app)


def commands(group: Any = ROOT, path: str = "") -> list[tuple[str, Any]]:
    found = []
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            found += commands(command, f"{name} ")
        else:
            found.append((path + name, command))
    return found


def test_every_option_of_every_command_has_its_name_everywhere() -> None:
    """The flag, the variable and the key of the config file say the same."""
    for path, command in commands():
        assert isinstance(command, Command), path
        names = set()
        for parameter in options_of(command):
            assert parameter.envvar == f"INFINIPOT_{parameter.name.upper()}", path
            if parameter.param_type_name == "option":
                names.add(parameter.name)
                flags = (*parameter.opts, *parameter.secondary_opts)
                plain = f"--{parameter.name.replace('_', '-')}"
                assert plain in flags or parameter.is_bool_flag, (path, flags)
        assert {"config", "debug"} <= names, path


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "c.yaml"


def test_options_that_only_one_command_has(
    run: Any, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("fastapi")
    serve = ["serve", "./no/model", "--config", config]
    config.write_text("max_sessions: 1\nlengths: [4k, 8k]\nallowed-origin: [a, b]\n")
    one_line(run(*serve)[2], "max-sessions=1 is not allowed")
    monkeypatch.setenv("INFINIPOT_MAX_SESSIONS", "0")
    one_line(run(*serve)[2], "max-sessions=0 is not allowed")
    one_line(run(*serve, "--max-sessions", "-1")[2], "max-sessions=-1 is not allowed")
    monkeypatch.delenv("INFINIPOT_MAX_SESSIONS")
    config.write_text("allowed_origin: [https://a, b]\n")
    one_line(run(*serve)[2], "--allowed-origin 'b' is not an origin")
    monkeypatch.setenv("INFINIPOT_ALLOWED_ORIGIN", "https://a\nc d\n")
    one_line(run(*serve)[2], "--allowed-origin 'c d' is not an origin")
    monkeypatch.setenv("INFINIPOT_PORT", "many")
    one_line(run(*serve)[2], "many", "(from INFINIPOT_PORT)")
    needle = ["needle", "./no/model", "--config", config]
    config.write_text("out: results\nlengths: [4k, many]\n")
    one_line(run(*needle)[2], "'many' is no number of tokens")
    config.write_text("name: infinipot\n")
    one_line(run("policies", "--config", config)[2], "unknown option 'name'")
    config.write_text("port: [1]\n")
    one_line(run("policies", "--config", config)[2], "port must be one value, not [1]")
    config.write_text("json: true\nport: 80\n")
    one_line(run("info", "./no.pot", "--config", config)[2], "there is no file no.pot")


def test_unknown_variables_are_refused(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SERVICE_HOST", "PORT_8000_TCP_ADDR", "MODELS"):
        monkeypatch.setenv(f"INFINIPOT_{name}", "x")
    assert run("policies", "snapkv")[0] == 0
    monkeypatch.setenv("INFINIPOT_POT_SISE", "9")
    code, _, err = run("policies", "snapkv")
    assert code == 2
    one_line(err, "unknown variable 'INFINIPOT_POT_SISE'; did you mean 'INFINIPOT_POT_SIZE'?")
    assert run("policies", "--help")[0] == 0


def test_sizes_may_end_in_k(run: Any, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFINIPOT_RECENT", "0.0625k")
    ask = ["generate", model, "Who?", "--pot-size", "1k", "--max-tokens", 1, "--json"]
    code, out, err = run(*ask)
    assert (code, json.loads(out)["pot"]["size"]) == (0, 1024), err
    for given in ("k", "1.0001k", "1e999k", "4kk", ""):
        code, _, err = run("generate", "./no/model", "Who?", f"--max-tokens={given}")
        assert code == 2
        one_line(err, "is not a whole number: write 4096, 4k or 1m")
    one_line(run("inspect", "--max-tokens", 0)[2], "0 is not allowed: it must be at least 1")


def test_model_and_prompt_by_their_places(
    run: Any, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from infinipot.cli import command_options

    short = ["--max-tokens", 3]
    expected = run("generate", model, "-p", "Who hid it?", *short)
    assert run("generate", model, "Who hid it?", *short)[1] == expected[1]
    monkeypatch.setattr(command_options, "EMBEDDED", model)
    code, out, err = run("generate", "Who hid it?", *short)
    assert (code, out) == (0, expected[1])
    assert err.startswith(f"infinipot: no MODEL is given: taking {model}, the embedded one\n")
    assert run("generate", "-p", "Who hid it?", *short, "--quiet")[1:] == (out, "")
    monkeypatch.setenv("INFINIPOT_MODEL", model)
    monkeypatch.setattr(command_options, "EMBEDDED", "no-model")
    assert run("generate", "Who hid it?", *short)[1] == out


def test_help_is_grouped_and_has_examples(run: Any) -> None:
    assert set(EXAMPLES) == {path for path, _ in commands()}
    for path, command in commands():
        context = command.make_context(f"infinipot {path}", [], resilient_parsing=True)
        text = command.get_help(context)
        assert text.count(f"  {EXAMPLES[path][0]}\n") == text.count(f"  {EXAMPLES[path][1]}\n") == 1
        assert "--help" in text
        context.meta["infinipot.help_all"] = True
        everything = command.get_help(context)
        assert "--help-all" not in everything
        for parameter in options_of(command):
            if not getattr(parameter, "hidden", False) and parameter.name != "model":
                assert parameter.opts[-1] in everything, path
    text = run("generate", "-h")[1]
    assert "--sinks" in run("generate", "--help-all")[1]
    titles = re.findall(r"^(\w+):", text, re.MULTILINE)[1:]
    assert titles == ["Examples", "Arguments", "Reading", "Answering", "Retention", "Machine"]
    assert "--sinks" not in text and "more options: --help-all" in text
    assert "..." not in run("--help")[1].split("Commands:")[1].replace("(RULER, BABILong, ...)", "")


def test_help_of_groups(run: Any) -> None:
    for path in ((), ("eval",)):
        assert run(*path, "--help-all") == run(*path, "-h")
        assert run(*path, "-h")[0] == 0


def test_completion(run: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    for name, value in (
        ("_INFINIPOT_COMPLETE", "complete_bash"),
        ("COMP_WORDS", "infinipot gen"),
        ("COMP_CWORD", "1"),
    ):
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit, match="0"):
        run()
    assert capsys.readouterr().out == "generate\n"


def test_debug_from_the_environment(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFINIPOT_DEBUG", "1")
    assert "Traceback" in run("info", "./no.pot")[2]
    monkeypatch.delenv("INFINIPOT_DEBUG")
    one_line(run("info", "./no.pot")[2], "there is no file")
