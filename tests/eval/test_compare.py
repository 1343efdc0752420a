"""Methods on one page: RULER's texts made here, the tasks of the evaluation, intervals, and what the page says."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rows import record

from infinipot.cli import main
from infinipot.eval import compare
from infinipot.eval.runner import Model, Replica
from infinipot.eval.short_answers import ALL_METRICS
from infinipot.eval.stats import grouped_mean, share_interval
from infinipot.eval.tasks import ruler
from infinipot.eval.tasks.document_rows import Document, read_documents
from infinipot.eval.tasks.haystack import WORDS
from infinipot.eval.tasks.ruler_rows import write_texts
from infinipot.text.tokens import fragment

LENGTH = 2000
"""The tokenizer of the tests has letters for tokens."""


@pytest.fixture(scope="module")
def prose(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Natural enough: sentences of 300 different words."""
    words = [
        *WORDS,
        *(f"{word}s" for word in WORDS),
        *(f"un{word}" for word in WORDS if len(word) < 8),
    ]
    lines = [f"The {a} saw the {b}." for a, b in zip(words, reversed(words), strict=True)]
    path = tmp_path_factory.mktemp("prose") / "book.txt"
    path.write_text(" ".join(lines))
    return str(path)


@pytest.fixture(scope="module")
def texts(replica: Replica, prose: str, tmp_path_factory: pytest.TempPathFactory) -> list[Document]:
    folder = tmp_path_factory.mktemp("ruler")
    (path,) = write_texts(folder, replica.tokenizer, prose, [LENGTH], 2, seed=3)
    before = path.read_bytes()
    write_texts(folder, replica.tokenizer, prose, [LENGTH], 2, seed=3)
    assert path.read_bytes() == before
    write_texts(folder, replica.tokenizer, prose, [LENGTH], 2, seed=4)
    assert path.read_bytes() != before
    path.write_bytes(before)
    return read_documents(path)


def only(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Make texts of these tasks of RULER only, with short answers."""
    for name in list(ruler.TASKS):
        if name in names:
            monkeypatch.setitem(ruler.TASKS, name, ruler.TASKS[name]._replace(max_tokens=8))
        else:
            monkeypatch.delitem(ruler.TASKS, name)


def last(text: str, start: str) -> str:
    """The text behind the last place of `start`: behind an example, if there is one."""
    return text[text.rindex(start) :]


def right_answers(name: str, text: str, question: str) -> list[str]:
    """What a reader of the text would answer, without the code that made it."""
    if name == "vt":
        (value,) = re.findall(r"value (\d+)", question)
        found = []
        for to, what in re.findall(r"VAR (\w+) = (?:VAR )?(\w+)", last(text, "Memorize and track")):
            if what == value or what in found:
                found.append(to)
        return found
    if name == "cwe":
        words = re.findall(r"\d+\. (\w+)", last(text, "Below is a numbered"))
        return [word for word, _ in Counter(words).most_common(10)]
    if name == "fwe":
        words = [word for word in last(text, "words.\n").split()[1:] if word != "...."]
        return [word for word, _ in Counter(words).most_common(3)]
    keys = re.findall(r"[a-z0-9]+(?:-[a-z0-9]+)+", question)
    return [value for key in keys for value in re.findall(rf"for {key} is: ([\w-]+)\.", text)]


def test_a_reader_of_each_text_finds_its_answers(texts: list[Document], replica: Replica) -> None:
    assert [document.task.split()[0] for document in texts[::2]] == list(ruler.TASKS)
    for document in texts:
        (question,) = document.questions
        name = document.task.split()[0]
        answers = question.answers[0].split("; ")
        assert sorted(right_answers(name, document.text, question.prompt)) == sorted(answers)
        assert len(answers) == {
            "niah_multivalue": 4,
            "niah_multiquery": 4,
            "vt": 5,
            "cwe": 10,
            "fwe": 3,
        }.get(name, 1)
        size = len(fragment(replica.tokenizer, f"{document.text}\n{question.prompt}"))
        assert 0.8 * LENGTH < size + question.max_tokens <= LENGTH, (name, size)
        assert question.score(" and ".join(answers).upper()) == 1


def test_needles_stand_anywhere(
    replica: Replica, prose: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(monkeypatch, "niah_single_1", "niah_single_2", "niah_multikey_3")
    (path,) = write_texts(tmp_path, replica.tokenizer, prose, [LENGTH], 12, seed=0)
    for name in ruler.TASKS:
        places = []
        for document in read_documents(path):
            if document.task.split()[0] == name:
                (question,) = document.questions
                places.append(document.text.index(question.answers[0]) / len(document.text))
        assert min(places) < 0.35 and max(places) > 0.65, name


def test_texts_that_cannot_be_made(replica: Replica, prose: str, tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match="different words, and RULER's texts need 200: give essays"
    ):
        write_texts(tmp_path, replica.tokenizer, "filler", [LENGTH], 1, 0)
    with pytest.raises(ValueError, match="150 tokens have no room for RULER's texts"):
        write_texts(tmp_path, replica.tokenizer, prose, [150], 1, 0)
    assert not list(tmp_path.glob("*.jsonl"))


@pytest.mark.parametrize(
    ("prediction", "answer", "points"),
    [("It is 12 and 34.", "12; 34", 1), ("Only 34", "12; 34", 0.5), ("", "12; 34", 0), ("ABCD", "abc", 1), ("ab", "abc", 0)],
)  # fmt: skip
def test_parts(prediction: str, answer: str, points: float) -> None:
    assert ALL_METRICS["parts"](prediction, answer, ()) == points


def test_a_mean_and_its_interval() -> None:
    some = {
        "a": {str(n): {"q": 100.0 * (n % 2)} for n in range(40)},
        "b": {str(n): {"q": 100.0} for n in range(40)},
    }
    mean, interval = grouped_mean(some)
    assert mean == 75 and interval is not None
    draws = np.random.default_rng(0).binomial(40, 0.5, 4000) / 40 * 50 + 50
    assert interval == pytest.approx(np.quantile(draws, [0.025, 0.975]), abs=1.5)


# ---------------------------------------------------------------- the command


def write_rows(folder: Path) -> tuple[Path, Path]:
    """Documents, and rows in LongBench's format."""
    rows = []
    for number in range(3):
        context = " ".join(f"Line {n}: ship {number} came to port {n % 7}." for n in range(14))
        asked = [{"question": f"Which port came {n}th?", "answers": ["port 3"]} for n in range(2)]
        rows.append(
            {
                "task": "ports",
                "context": context,
                "metric": "f1",
                "max_tokens": 3,
                "questions": asked,
            }
        )
    places = (folder / "documents", folder / "longbench")
    for place in places:
        place.mkdir()
    (places[0] / "ports.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (places[1] / "trec.jsonl").write_text(
        "".join(json.dumps(record("trec", n)) + "\n" for n in range(2))
    )
    return places


def arguments(tiny: Model, prose: str, out: Path, places: tuple[Path, Path]) -> list[str]:
    return ["compare", "streaming", "infinipot:novelty=0", "--limit", "2", "--model", tiny.name, "--device", "cpu", "--tasks",
            "needle,documents,ruler,longbench", "--lengths", "0.5k", "--trials", "1", "--haystack", prose, "--budget", "256",
            "--documents", str(places[0]), "--longbench", str(places[1]), "-o", str(out), "--quiet"]  # fmt: skip


def test_one_page_shows_all_methods_and_tasks(
    tiny: Model,
    prose: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("matplotlib")
    only(monkeypatch, "niah_single_1")
    monkeypatch.setattr("infinipot.eval.charts.heat_maps", lambda *_: [])  # test_needle.py has them
    monkeypatch.setattr("sys.argv", ["infinipot", "compare", "streaming"])
    loaded = []
    real = Replica.__init__
    monkeypatch.setattr(
        Replica, "__init__", lambda own, *args: (loaded.append(own), real(own, *args))[1]
    )
    out = tmp_path / "out"
    args = arguments(tiny, prose, out, write_rows(tmp_path))
    assert main(args) == 0
    assert len(loaded) == 1, "one model for all tasks"
    shown = capsys.readouterr().out
    page = (out / "compare.md").read_text()
    assert shown.rstrip("\n") in page
    assert "infinipot, novelty 0" in shown
    for panel in ("needle, 512", "documents", "RULER, 512", "LongBench"):
        assert panel in shown.splitlines()[0]
    assert f"]({compare.FIGURE}.svg)" in page and (out / "compare.png").stat().st_size > 5000
    assert page.rstrip().endswith("`infinipot compare streaming`")
    records = read(out / "needle" / "needle.jsonl")
    for method, line in zip(
        ("streaming", "infinipot:novelty=0"), shown.splitlines()[2:], strict=True
    ):
        right = [r["right"] for r in records if r["method"] == method]
        low, high = share_interval(sum(right), len(right))
        assert f"{100 * sum(right) / len(right):.1f} ({100 * low:.1f} to {100 * high:.1f})" in line
    files = {path: path.read_bytes() for path in out.rglob("*.jsonl") if path.name != "runs.jsonl"}
    assert len(files) == 5

    def no_reading(*_: Any, **__: Any) -> None:
        raise AssertionError("results that exist were measured again")

    monkeypatch.setattr("infinipot.Session.append", no_reading)
    monkeypatch.setattr(
        "infinipot.eval.interval_charts.intervals", lambda *_: []
    )  # the figure is there
    assert main(args) == 0
    assert {path: path.read_bytes() for path in files} == files
    assert capsys.readouterr().out == shown


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_only_what_every_method_has_answered_counts() -> None:
    def needle(method: str, trial: int, right: bool) -> dict[str, Any]:
        return {"method": method, "length": 4096, "depth": 0.5, "trial": trial, "right": right}

    records = [needle("full", 0, True), needle("full", 1, False), needle("h2o", 1, True)]
    panels = compare.needle_panels(records)
    assert {name: (one.mean, one.answers) for name, one in panels["needle, 4K"].items()} == {
        "full": (0, 1),
        "h2o": (100, 1),
    }


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--tasks", "longbench"], "huggingface.co/datasets/THUDM/LongBench"),
        (["--tasks", "documents"], "give a folder of JSON lines with --documents"),
        (["--tasks", "needles"], "did you mean 'needle'"),
        (["--tasks", ","], "unknown task ''"),
        (["--tasks", "ruler", "--haystack", "filler"], "RULER's texts need 200"),
        (["--question", "both"], "unknown question 'both'"),
        (["--budget", "0"], "pot_size=0 is not allowed"),
    ],
)
def test_bad_use(
    tiny: Model, tmp_path: Path, more: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    args = [
        "compare",
        "full",
        "infinipot",
        "--model",
        tiny.name,
        "--device",
        "cpu",
        "-o",
        str(tmp_path / "out"),
        *more,
    ]
    assert main(args) == 2
    assert said in capsys.readouterr().err
