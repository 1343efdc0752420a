"""No figure without its record: README and docs say what benchmarks/results holds, and a new figure needs a record."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "benchmarks"
README = ROOT / "README.md"
PAGES = (README, ROOT / "docs" / "results.md")
HISTORY_AND_HELP = {ROOT / "docs" / "log.md", ROOT / "docs" / "cli.md"}
"""The log names its records entry by entry. The help holds settings."""
OTHERS = sorted({*ROOT.glob("docs/*.md"), ROOT / "CONTRIBUTING.md"} - {*PAGES} - HISTORY_AND_HELP)


def script(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # figures.py imports blocks.py
    spec.loader.exec_module(module)
    return module


blocks = script("blocks")
figures = script("figures")

# ---------------------------------------------------------------- numbers that are no figures

SIZE = r"\d[\d,]*(?:\.\d+)?[KkMm]?"
SETTINGS = [
    r"\d{4}-\d\d-\d\d",  # dates
    r"(?:torch|transformers|kvpress|lm-evaluation-harness|Python) \d[\d.]*\d(?: to [\d.]*\d)?",
    r"SmolLM2(?:-135M-Instruct)?|Qwen2\.5-(?:Coder-)?\d\.5B(?:-Instruct)?|Llama-3|H2O|H200s?|Apache-2\.0|bfloat16|float32|(?:70|8)B",
    r"arXiv \d+\.\d+|(?:Table|Figure|Gutenberg) \d+|seeds? \d(?: and \d)?",
    rf"(?:pot of|distilled to|default keeps|run with|default's|best) {SIZE}(?: entries| survivors)?",
    rf"{SIZE} (?:tokens(?!/s)|entries|survivors|positions|trials|characters|places|texts of each task)",
    r"(?:trailing|around|recent|depth|texts|text|start again at|newest) \d[\d.]*(?:(?: /| to|,) \d[\d.]*)*",
    r"700 MiB|131,072 on|at (?:4|16)K|of 16 and 20 trials|vocabulary of 151,936|to (?:50|256)(?=\W|$)|of texts \d+",
]  # fmt: skip
"""Sizes that were set, versions, names. What was measured must not match."""
PLAIN_TABLES = ("| option | meaning | default |", "| name | options |")
"""Tables that hold no figures, by their head."""
FIGURE = (
    r"\d[\d.,]*\s*(?:%|tokens/s|times\b|[GMk]i?B\b|ms\b|seconds?\b|points?\b|nats\b)|\b\d+ of \d+\b"
)
ELSEWHERE = {
    "server.md": [
        r"4,194,304 characters", r"ten seconds|every two seconds", r"about 0\.8 seconds", r"about 0\.25 seconds", r"100 bytes a second",
        r"\(60 seconds\)", r"within 20 seconds", r"10 ms to 300 s", r"1 ms to 10 s", r"to 30 seconds", r"after five seconds",
        r"256 MiB, 10,000 files", r"64 MiB of them", r"32 MiB of markup", r"\(120 seconds\)", r"2 GiB of memory",
    ],
    "evaluation.md": [r"95 % interval"],
    "options.md": [],
    # break_the_core.py --summary of its records says so
    "CONTRIBUTING.md": [
        r"68 of 77", r"70 of 76", r"63 of 68", r"73 of 78", r"76 of 79", r"63 of 67",
        r"65 of 67", r"96 and 97 %", r"15 seconds", r"116 of 116",
    ],
    "paper.md": [r"85 times"],
}  # fmt: skip
"""Settings with a unit in the other documents."""


def prose(text: str) -> str:
    """A document without blocks of figures, code, targets of links, and pictures."""
    text = figures.MARKED.sub("", text)
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    text = re.sub(r"`[^`]*`", "", text)
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", text)
    return re.sub(r"\]\([^)]*\)", "]", text)


def strays(text: str) -> list[str]:
    """Lines of a page with a number that no setting explains, and tables of which no block is made."""
    found = []
    lines = prose(text).splitlines()
    heads = [line for line, rule in pairwise(lines) if re.match(r"\|[ |:-]+\|$", rule)]
    found += [head for head in heads if not head.startswith(PLAIN_TABLES)]
    for line in lines:
        if line.startswith("|"):
            continue
        left = line
        for setting in SETTINGS:
            left = re.sub(rf"(?<![\w.,])(?:{setting})(?!\w)", "", left)
        if re.search(r"\d", left):
            found.append(line)
    return found


def strays_elsewhere(name: str, text: str) -> list[str]:
    """Numbers with a unit in another document, but settings."""
    left = prose(text)
    for setting in ELSEWHERE.get(name, []):
        left = re.sub(setting, "", left)
    return [match[0] for match in re.finditer(FIGURE, left)]


# ---------------------------------------------------------------- the documents


@pytest.mark.parametrize("path", figures.DOCUMENTS, ids=lambda path: path.name)
def test_figures_are_those_of_the_records(path: Path) -> None:
    text = path.read_text("utf-8")
    assert figures.renewed(text) == text, "run benchmarks/figures.py"


def test_every_block_stands_somewhere() -> None:
    used = {name for path in figures.DOCUMENTS for name in figures.named(path.read_text("utf-8"))}
    assert used == set(blocks.BLOCKS)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_no_figure_stands_without_a_record(path: Path) -> None:
    assert strays(path.read_text("utf-8")) == []


@pytest.mark.parametrize("path", OTHERS, ids=lambda path: path.name)
def test_no_figure_stands_elsewhere(path: Path) -> None:
    assert strays_elsewhere(path.name, path.read_text("utf-8")) == []


def test_every_entry_of_the_log_says_what_has_a_record() -> None:
    text = (ROOT / "docs" / "log.md").read_text("utf-8")
    for entry in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        title, _, line, *_ = entry.splitlines()
        match = re.fullmatch(r"\*Record: (.+)\.\*", line)
        assert match, f"{title}: a line *Record: ...* must follow"
        names = re.findall(r"`([\w.]+)`", match[1])
        assert names or match[1] == "none", title
        assert all((FOLDER / "results" / name).exists() for name in names), title


# ---------------------------------------------------------------- what these tests notice


@pytest.mark.parametrize(
    "line",
    [
        "A pot is 17 % faster.",
        "Reading is 1.7 times as fast.",
        "It reads 355 tokens/s.",
        "It finds 59 of 60 needles.",
        "LongBench: 30.4 against 29.1.",
        "The peak is 17.2 GB at any length.",
        "The first token comes after 4.8 s.",
        "Every other policy found 0 of 24.",
        "| method | score |\n|---|---|\n| a | 1 |",
    ],
)
def test_a_new_figure_is_noticed(line: str) -> None:
    for path in PAGES:
        assert strays(f"{path.read_text('utf-8')}\n{line}\n") != []


@pytest.mark.parametrize(
    "line", ["12.5 % faster", "3.0 times as fast", "900 tokens/s", "59 of 60", "17.2 GB"]
)
def test_a_new_figure_elsewhere_is_noticed(line: str) -> None:
    for path in OTHERS:
        assert strays_elsewhere(path.name, f"{path.read_text('utf-8')}\n{line}\n") != []


def test_a_changed_figure_is_noticed() -> None:
    for path in PAGES:
        text = path.read_text("utf-8")
        for match in figures.MARKED.finditer(text):
            place = re.search(r"\d", text[match.start(2) :])
            assert place, f"{match[1]} holds no figure"
            at = match.start(2) + place.start()
            changed = text[:at] + str((int(text[at]) + 1) % 10) + text[at + 1 :]
            assert figures.renewed(changed) == text, match[1]


def test_scores_are_kept_without_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    keep = script("keep_scores").keep_scores
    source, target = tmp_path / "longbench.jsonl", tmp_path / "kept.jsonl"
    rows = [{"task": "trec", "id": str(n), "score": 50.0, "pred": f"said {n}"} for n in range(2)]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert (keep(source, target), keep(source, target)) == (2, 0)
    kept = [json.loads(line) for line in target.read_text().splitlines()]
    assert kept == [{"task": "trec", "id": str(n), "score": 50.0} for n in range(2)]
    source.write_text(json.dumps({**rows[1], "id": "2"}) + "\n")
    assert keep(source, target) == 1


def test_records_hold_no_texts() -> None:
    """Rows of other projects' data are measured, never copied."""
    for path in (FOLDER / "results").glob("*.jsonl"):
        for line in path.read_text("utf-8").splitlines():
            texts = {"pred", "context", "answer", "answers"}
            row = json.loads(line)
            assert not any(isinstance(row.get(name), (str, list)) for name in texts), path.name
