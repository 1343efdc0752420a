"""What README, docs and benchmarks name exists: modules and their members, commands, flags, methods."""

from __future__ import annotations

import importlib
import inspect
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
from modules import MODULES

import infinipot
from infinipot.cli import app
from infinipot.eval.methods import method

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted((*ROOT.glob("docs/*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"))
DATED = {"log.md"}
"""Tells of the past, in the words of its time."""
COMMANDS = typer.main.get_command(app)
EXTERNAL = {"--no-deps", "--stacktrace", "chat.completions"}
"""Names of other programs."""


def written(path: Path) -> list[str]:
    """The code in a document: spans, and the lines of its blocks, continued ones joined."""
    text = path.read_text()
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return (
        re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))
        + lines
    )


def owners() -> dict[str, list[Any]]:
    """By the first word of a dotted name: what it may stand for, a module, or a class of this package."""
    found: dict[str, list[Any]] = {}
    for name in MODULES:
        if name.endswith("__main__"):
            continue
        try:
            module = importlib.import_module(name)
        except (ModuleNotFoundError, ValueError):  # needs an extra that is not installed
            continue
        found.setdefault(name.split(".")[-1], []).append(module)
        for word, value in vars(module).items():
            if inspect.isclass(value) and value.__module__ == name:
                found.setdefault(word, []).append(value)
    return found


def has(owner: Any, names: list[str]) -> bool:
    for name in names:
        fields = getattr(owner, "__annotations__", {})
        if not hasattr(owner, name) and name not in fields:
            source = inspect.getsource(owner) if inspect.isclass(owner) else ""
            return f"self.{name}" in source
        owner = getattr(owner, name, None)
    return True


@pytest.fixture(scope="module")
def known() -> dict[str, list[Any]]:
    return owners()


@pytest.mark.parametrize(
    "path", [path for path in DOCUMENTS if path.name not in DATED], ids=lambda path: path.name
)
def test_every_dotted_name_exists(path: Path, known: dict[str, list[Any]]) -> None:
    for span in re.findall(r"`((?:infinipot\.)?\w+(?:\.\w+)+)(?:\([^`]*\))?`", path.read_text()):
        first, *rest = span.removeprefix("infinipot.").split(".")
        if not rest and hasattr(infinipot, first):
            continue  # exported by the package
        if (
            first not in known
            or span in EXTERNAL
            or rest[-1] in ("py", "md", "html", "jsonl", "txt", "sh")
        ):
            continue  # a file, or another package's
        inner = [known[first], *([known.get(rest[0], [])] if len(rest) > 1 else [])]
        found = any(has(owner, rest) for owner in inner[0]) or any(
            has(owner, rest[1:]) for owner in inner[-1] if len(inner) > 1
        )
        instance = any(
            hasattr(value, rest[0])
            for owner in known[first]
            for value in vars(owner).values()
            if inspect.isclass(value)
        )
        assert found or instance, f"{path.name} names {span}, which does not exist"


@pytest.mark.parametrize(
    "path", [path for path in DOCUMENTS if path.name not in DATED], ids=lambda path: path.name
)
def test_every_path_named_exists(path: Path) -> None:
    for name in re.findall(
        r"`((?:infinipot|tests|benchmarks|docs|demo|deploy)/[\w/.]+)`", path.read_text()
    ):
        assert "NAME" in name or (ROOT / name).exists(), (
            f"{path.name} names {name}, which does not exist"
        )


def command_lines() -> list[tuple[str, str]]:
    texts = [
        (path.name, line) for path in DOCUMENTS if path.name not in DATED for line in written(path)
    ]
    for path in sorted((ROOT / "benchmarks").glob("*.sh")):
        texts += [(path.name, line) for line in path.read_text().replace("\\\n", "").splitlines()]
    return [
        (name, line) for name, line in texts if re.search(r"(^|\| |; )\s*infinipot [a-z]", line)
    ]


def command_of(words: list[str]) -> tuple[Any, list[str]]:
    """The command that the words begin with, and the words behind it."""
    command = COMMANDS
    while words and hasattr(command, "commands") and words[0] in command.commands:
        command, words = command.commands[words[0]], words[1:]
    return command, words


@pytest.mark.parametrize(("name", "line"), command_lines())
def test_every_command_and_flag_exists(name: str, line: str) -> None:
    for part in re.findall(r"infinipot ([a-z][^|;#`]*)", line):
        words = shlex.split(part.replace("$", ""))
        command, words = command_of(words)
        if words[:1] == ["[OPTIONS]"]:
            continue  # a usage line of a group
        assert not hasattr(command, "commands"), f"{name}: infinipot {part} is no command"
        flags = {
            flag
            for parameter in command.params
            for flag in (*parameter.opts, *parameter.secondary_opts)
        } | {"--help"}
        for place, word in enumerate(words):
            assert not word.startswith("-") or word == "-" or word.split("=")[0] in flags, (
                f"{name}: {command.name} has no {word}"
            )
            if word == "--policy" and "," in words[place + 1]:
                for label in words[place + 1].split(","):
                    if "..." not in label:
                        method(label, {"pot_size": 4096})


@pytest.mark.parametrize(
    "path", [path for path in DOCUMENTS if path.name not in DATED], ids=lambda path: path.name
)
def test_every_flag_named_exists(path: Path) -> None:
    def flags(command: Any) -> set[str]:
        own = {
            flag
            for parameter in command.params
            for flag in (*parameter.opts, *parameter.secondary_opts)
        }
        return own.union(*(flags(inner) for inner in getattr(command, "commands", {}).values()))

    here = flags(COMMANDS) | EXTERNAL | {"--help"}
    python = set(
        re.findall(
            r"--[a-z][a-z-]+",
            "".join(path.read_text() for path in (ROOT / "benchmarks").glob("*.py")),
        )
    )
    for span in re.findall(r"`(--[a-z][\w-]+)", path.read_text()):
        assert span in here | python, f"{path.name} names {span}, which no command has"
