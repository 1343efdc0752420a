"""Documents with several questions: the form of rows, one pot for all questions, a reading for each, intervals by document."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from helpers import Killed

from infinipot import Session
from infinipot.cli import main
from infinipot.eval import grouped
from infinipot.eval.methods import methods
from infinipot.eval.results import Results
from infinipot.eval.runner import Model, Replica, sweep
from infinipot.eval.short_answers import ALL_METRICS
from infinipot.eval.stats import grouped_difference, paired_difference
from infinipot.eval.tasks.document_plan import of_half, plan, variants
from infinipot.eval.tasks.document_rows import read_documents
from infinipot.eval.tasks.documents import KEY, NAME

SIZES = {"pot_size": 220, "distill_to": 80}
LETTERS = ["Two cats", "A dog", "Two cats and a dog"]


def row(task: str = "ports", number: int = 0, lines: int = 16, **more: Any) -> dict[str, Any]:
    """A row in the form of the files, written for these tests."""
    text = " ".join(f"Line {n}: ship {number} came to port {n % 7}." for n in range(lines))
    questions = [
        {
            "id": f"{task}-{number}-{n}",
            "question": f"Which port came {n}th?",
            "answers": ["port 3"],
            "core": n < 2,
            "known": n < 1,
        }
        for n in range(3)
    ]
    return {"task": task, "doc": f"{task}-{number}", "intro": f"A log of {task}.\n", "context": text, "metric": "f1",
            "ask": "Answer: {question}", "max_tokens": 4, "questions": questions, **more}  # fmt: skip


def write_rows(path: Path, *rows: Any) -> Path:
    path.parent.mkdir(exist_ok=True)
    lines = [line if isinstance(line, str) else json.dumps(line) for line in rows]
    path.write_text("".join(f"{line}\n" for line in lines))
    return path.parent


@pytest.fixture(scope="module")
def narrow(tiny: Model, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """The model with a window of 256 tokens."""
    folder = tmp_path_factory.mktemp("narrow") / "model"
    shutil.copytree(tiny.name, folder)
    config = json.loads((folder / "config.json").read_text())
    config["max_position_embeddings"] = 256
    (folder / "config.json").write_text(json.dumps(config))
    return Model(str(folder), tiny.device, tiny.dtype)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two tasks of two documents; the second task is compressed."""
    place = write_rows(tmp_path / "rows" / "a.jsonl", row(), row(number=1))
    text = "".join(json.dumps(row("letters", n)) + "\n" for n in range(2))
    (place / "b.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    return place


# ---------------------------------------------------------------- metrics


@pytest.mark.parametrize(
    ("metric", "prediction", "answer", "classes", "points"),
    [
        ("contains", "It was the Red Barn, I think.", "red barn", [], 1),
        ("contains", "It was the redbarn.", "red barn", [], 0),
        ("contains", "barn, red", "red barn", [], 0),
        ("exact", "The Red Barn.", "red barn", [], 1),
        ("exact", "the red barn there", "red barn", [], 0),
        ("choice", "B", "B", LETTERS, 1),
        ("choice", " (b).", "B", LETTERS, 1),
        ("choice", "The answer is B: A dog", "B", LETTERS, 1),
        ("choice", "C. Two cats and a dog", "B", LETTERS, 0),
        ("choice", "two cats and a dog", "C", LETTERS, 1),
        ("choice", "two cats and a dog", "A", LETTERS, 0),
        ("choice", "A dog", "B", LETTERS, 1),
        ("choice", "D", "D", LETTERS, 0),
        ("choice", "", "A", LETTERS, 0),
        ("choice", "D", "D", [], 1),
        ("place", "Kitchen.", "kitchen", ["kitchen", "hall"], 1),
        ("place", "the kitchen or the hall", "kitchen", ["kitchen", "hall"], 0),
        ("place", "kitchen\nhall", "kitchen", ["kitchen", "hall"], 1),
        ("place", "garden", "kitchen", ["kitchen", "hall"], 0),
    ],
)
def test_short_answers(
    metric: str, prediction: str, answer: str, classes: list[str], points: float
) -> None:
    assert ALL_METRICS[metric](prediction, answer, classes) == points


# ---------------------------------------------------------------- rows


def test_rows_are_read_as_they_are_written(folder: Path, tmp_path: Path) -> None:
    listed = read_documents(folder)
    assert [(d.task, d.id, d.number) for d in listed] == [
        ("ports", "ports-0", 0),
        ("ports", "ports-1", 1),
        ("letters", "letters-0", 0),
        ("letters", "letters-1", 1),
    ]
    first = listed[0]
    assert first.text.startswith("A log of ports.\nLine 0: ship 0")
    question = first.questions[0]
    assert (question.prompt, question.max_tokens) == ("Answer: Which port came 0th?", 4)
    assert (question.score("port 3"), question.score("gate 3")) == (1.0, 0.5)
    assert {d.task for d in read_documents(folder, ["letters"])} == {"letters"}

    short = {"document": "A text.", "questions": [{"question": "Who?", "answers": ["I"], "metric": "exact"}]}  # fmt: skip
    choice = {"document": "B text.", "metric": "choice", "questions": [{"question": "What?", "answers": ["B"], "options": LETTERS}]}  # fmt: skip
    plain, chosen = read_documents(write_rows(tmp_path / "own" / "mine.jsonl", short, "", choice))
    assert (plain.task, plain.id, chosen.id) == ("mine", "mine-1", "mine-3")
    assert (plain.questions[0].prompt, plain.questions[0].max_tokens) == ("Who?", 32)
    assert chosen.questions[0].prompt == "What?\nA. Two cats\nB. A dog\nC. Two cats and a dog"


def question(**more: Any) -> dict[str, Any]:
    return row(questions=[{"question": "Who?", "answers": ["I"], **more}])


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("{", "no JSON"),
        ("[1]", "must be an object"),
        ({**row(), "context": " "}, "`context` is empty"),
        ({**row(), "document": "x"}, "give the text once"),
        ({k: v for k, v in row().items() if k != "context"}, "lacks `document`"),
        ({k: v for k, v in row().items() if k != "metric"}, "lacks `metric`"),
        (row(metric="f2"), "unknown metric 'f2'"),
        (row(metric="place"), "metric place needs `choices`"),
        (row(questions=[]), "at least one question"),
        (row(questions=["Who?"]), "question 1: it must be an object"),
        (row(max_tokens=0), "`max_tokens` must be a whole number"),
        (row(max_tokens="8"), "`max_tokens` must be a whole number"),
        (row(ask="Answer."), "{question}"),
        (row(max_token=4, contex="x", document_id="x"), None),
        ({**{k: v for k, v in row().items() if k != "ask"}, "asks": "x"}, "did you mean 'ask'"),
        (question(answers="I"), "`answers` must be a list"),
        (question(answers=[]), "`answers` must be a list of at least one text"),
        (question(answers=[7]), "not 7"),
        (question(answers=[" "]), "something in them"),
        (question(question=""), "`question` is empty"),
        (question(core="yes"), "true or false"),
        (question(metric="choice", options={"A": "x", "C": "y"}), "letters of `options`"),
        (question(metric="choice", options=["x"], answers=["B"]), "answer 'B' is not possible"),
        (row(questions=2 * [{"id": "7", "question": "Who?", "answers": ["I"]}]), "'7' is there twice"),
    ],
)  # fmt: skip
def test_a_bad_line_is_named_with_what_is_wrong(
    tmp_path: Path, line: Any, part: str | None
) -> None:
    place = write_rows(tmp_path / "rows" / "x.jsonl", row(number=9), line)
    if part is None:  # fields that are not ours say nothing, if the right ones are there
        assert len(read_documents(place)) == 2
        return
    with pytest.raises(ValueError, match=r"x\.jsonl, line 2: ") as problem:
        read_documents(place)
    assert part in str(problem.value)
    assert "\n" not in str(problem.value)


@pytest.mark.parametrize("again", [row(), row() | {"doc": "another name"}])
def test_a_document_is_there_once(folder: Path, again: dict[str, Any]) -> None:
    write_rows(folder / "c.jsonl", again)
    with pytest.raises(ValueError, match=r"c\.jsonl, line 1: .* twice, .*a\.jsonl, line 1"):
        read_documents(folder)


def test_folders_without_documents(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no folder"):
        read_documents(tmp_path / "none")
    with pytest.raises(ValueError, match=r"must end in \.jsonl"):
        read_documents(tmp_path)
    (tmp_path / "x.jsonl").write_bytes(b'{"a": "\xff"}\n')
    with pytest.raises(ValueError, match="line 1: the line is not UTF-8"):
        read_documents(tmp_path)
    (tmp_path / "x.jsonl").write_bytes(b"\n")
    with pytest.raises(ValueError, match="files are empty"):
        read_documents(tmp_path)
    (tmp_path / "x.jsonl").unlink()
    whole = gzip.compress(b'{"a": 1}')
    for damaged in (b"no gzip", whole[:-9], whole[:12] + b"!" + whole[13:]):
        (tmp_path / "x.jsonl.gz").write_bytes(damaged)
        with pytest.raises(ValueError, match="cannot read"):
            read_documents(tmp_path)


# ---------------------------------------------------------------- reading and asking


def test_a_method_is_measured_in_the_modes_it_has() -> None:
    def modes(labels: str, mode: str = "both", **base: Any) -> list[tuple[str, str | None]]:
        base = {**SIZES, **base}
        return [(m.label, m.question) for m in variants(methods(labels, base), base, None, mode)]

    both = [("infinipot", "unknown"), ("infinipot", "known")]
    assert modes("full,infinipot") == [("full", None), *both]
    assert modes("full,infinipot", "known") == [("full", None), both[1]]
    assert modes("full,infinipot", "unknown") == [("full", None), both[0]]
    assert modes("infinipot:preset=facts") == [("infinipot:preset=facts", "unknown")]
    assert modes("infinipot", catalyst="question") == both[1:]
    assert modes("snapkv:prefill=whole") == [("snapkv:prefill=whole", "known")]
    with pytest.raises(ValueError, match="the question is always unknown"):
        modes("infinipot:preset=facts", "known")


def test_questions_from_one_pot_and_with_a_reading_each(
    folder: Path, tiny: Model, replica: Replica
) -> None:
    document = read_documents(folder)[0]
    chosen = variants(methods("infinipot,truncate", SIZES), SIZES, None, "both")
    units = plan(tiny, chosen, [document])
    assert [len(unit.questions) for unit in units] == [3, 1, 1, 1, 3]
    for unit in units:
        for question, record in zip(unit.questions, unit.run(replica), strict=True):
            session = Session(replica.runner, replica.tokenizer, unit.method.config)
            known = question.prompt if unit.method.question == "known" else None
            session.append(document.text, question=known)
            assert record["answer"] == session.ask(question.prompt, max_tokens=4)
            assert record["score"] == round(100 * question.score(record["answer"]), 4)
            assert (record["fits"], record["tokens"]) == (False, 4)
            assert record["peak_entries"] <= 220
            assert (record["distillations"] > 0) == (unit.method.label == "infinipot")


def test_full_context_reads_what_its_window_holds(folder: Path, narrow: Model) -> None:
    document = read_documents(folder)[0]
    replica = Replica(narrow)
    (unit,) = plan(narrow, methods("full", {}), [document])
    (wide,) = plan(narrow, methods("full", {}), [document], max_length=10_000)
    cut, whole = (one.run(replica)[0] for one in (unit, wide))
    assert cut["tokens_read"] + 4 <= 256 < whole["tokens_read"]
    assert cut["text_tokens"] == whole["text_tokens"]
    assert cut["fits"] is None


def test_the_plan(folder: Path, tiny: Model) -> None:
    listed = read_documents(folder)
    chosen = variants(methods("infinipot", SIZES), SIZES, None, "both")
    tasks = [unit.document.task for unit in plan(tiny, chosen[:1], listed)]
    assert tasks == ["ports", "letters"] * 2
    assert len(plan(tiny, chosen[:1], listed, limit=1)) == 2
    marked = plan(tiny, chosen, listed, marked=True, limit=1)
    assert [len(unit.questions) for unit in marked] == [2, 1, 2, 1]
    even, odd = (of_half(listed, half) for half in ("even", "odd"))
    assert {d.number for d in even} == {0}
    assert even + odd == sorted(listed, key=lambda d: d.number)


def test_an_interrupted_run_goes_on(
    folder: Path, tiny: Model, replica: Replica, tmp_path: Path
) -> None:
    units = plan(tiny, methods("streaming", SIZES), read_documents(folder))

    def stop(done: int, total: int, title: str) -> None:
        if done == 2:
            raise Killed

    place = tmp_path / "out"
    with pytest.raises(Killed):
        sweep(units, Results(place, NAME, KEY), tiny, replica=replica, progress=stop)
    before = (place / "documents.jsonl").read_text()
    assert before.count("\n") == 6
    sweep(units, Results(place, NAME, KEY), tiny, replica=replica)
    after = (place / "documents.jsonl").read_text()
    assert after.startswith(before)
    assert after.count("\n") == 12
    other = Results(place, NAME, KEY, (2, 2))
    again = {**json.loads(after.splitlines()[0]), "read_s": 9.0, "answer_s": 9.0}
    other.path.write_text(json.dumps(again) + "\n")
    assert len(other.all()) == 12, "equal but for its seconds"


def test_changed_rows_are_measured_again(folder: Path) -> None:
    first = read_documents(folder)[0]
    write_rows(folder / "a.jsonl", row(max_tokens=5), row(number=1))
    changed = read_documents(folder)[0]
    assert changed.id == first.id
    assert changed.digest(changed.questions[0]) != first.digest(first.questions[0])


# ---------------------------------------------------------------- tables


def test_intervals_draw_documents_with_all_their_questions() -> None:
    zero = {"t": {"a": {"1": 0.0, "2": 0.0, "3": 0.0}, "b": {"1": 0.0}}}
    ten = {"t": {"a": {"1": 10.0, "2": 10.0, "3": 10.0}, "b": {"1": 0.0}}}
    # drawn: a a (mean 10), a b (30 / 4), b b (0), with 1/4, 1/2, 1/4
    assert grouped_difference(zero, ten) == (7.5, (0.0, 10.0))
    alone = {"t": {"a": {"1": 0.0}}}
    assert grouped_difference(alone, {"t": {"a": {"1": 4.0, "2": 9.0}}}) == (4.0, None)
    rows = [{"t": {str(n): float(n * n % m) for n in range(9)}} for m in (5, 7)]
    each = [{t: {n: {n: x} for n, x in some.items()} for t, some in one.items()} for one in rows]
    assert paired_difference(*rows) == grouped_difference(*each)
    with pytest.raises(ValueError, match="nothing to compare"):
        grouped_difference(zero, {"t": {"c": {"1": 0.0}}})


def result(label: str, mode: str | None, document: str, number: int, score: float, **more: Any) -> dict[str, Any]:  # fmt: skip
    task, _, place = document.partition("-")
    return {"model": "m", "dtype": "float32", "method": label, "question": mode, "options": {}, "task": task, "document": document,
            "id": str(number), "digest": "", "kind": "", "number": int(place), "score": score, "fits": False, "distillations": 1,
            "read_s": 2.0, "answer_s": 1.0, **more}  # fmt: skip


def cells(text: str, start: str) -> list[str]:
    line = next(line for line in text.splitlines() if line.startswith(f"| {start}"))
    return [cell.strip(" *") for cell in line.split("|")[2:-1]]


def test_the_table_by_hand() -> None:
    records = []
    for document, count in (("a-0", 3), ("a-1", 1), ("b-0", 1), ("b-1", 1)):
        for number in range(count):
            records.append(result("full", None, document, number, 80.0, fits=None))
            records.append(result("infinipot", "unknown", document, number, 60.0 * (document[0] == "a")))  # fmt: skip
            records.append(result("infinipot", "known", document, number, 40.0 + 40 * (document == "a-1")))  # fmt: skip
    text = grouped.report(records, "title")
    assert cells(text, "task")[2:] == ["full", "infinipot (unknown)", "infinipot (known)"]
    assert cells(text, "a ") == ["2", "4", "80.0", "60.0", "50.0"]
    assert cells(text, "**mean of tasks**") == ["4", "6", "80.0", "30.0", "45.0"]
    assert cells(text, "share of full") == ["", "", "100.0", "37.5", "56.2"]
    assert cells(text, "infinipot (unknown)") == ["-50.0", "-50.0 to -50.0", "yes"]

    few = [r for r in records if r["question"] != "known" or r["id"] == "0"]
    unknown, known = grouped.report(few, "title").split("question known")
    assert cells(unknown, "**mean of tasks**")[:2] == ["4", "6"]
    assert cells(known, "**mean of tasks**")[:2] == ["4", "4"]
    assert "(unknown)" not in known

    missing = grouped.report(records[:-1], "title")
    unknown, known = missing.split("question known")
    assert "not every method" not in unknown
    assert "not every method has answered them: 1 questions" in known
    assert cells(known, "b ")[:2] == ["1", "1"]


def test_documents_that_fit_are_apart() -> None:
    fits = result("infinipot", "unknown", "a-0", 0, 1.0, fits=True)
    small = result("infinipot:pot_size=64", "unknown", "a-1", 0, 1.0)
    large = result("infinipot", "unknown", "a-1", 0, 1.0, fits=True)
    assert list(grouped.by_fit([fits, small, large]).items()) == [
        (" longer than the pot", [small, large]),
        (" that fit into the pot", [fits]),
    ]
    only_full = [result("full", None, "a-0", 0, 1.0, fits=None)]
    assert grouped.by_fit(only_full) == {"": only_full}


def test_the_command(
    folder: Path, narrow: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rows(folder / "c.jsonl", row("short", 0, 1), row("short", 1, 2))
    out = tmp_path / "out"
    args = ["eval", "documents", narrow.name, "--data", str(folder), "--policy", "full,infinipot", "--marked", "--tasks", "ports,short", "--pot-size", "220",
            "--distill-to", "80", "--device", "cpu", "-o", str(out)]  # fmt: skip
    assert main(args) == 0
    shown = capsys.readouterr().out
    longer, fit = shown.split("documents that fit into the pot · question unknown")
    assert "short" in fit and "short" not in longer
    assert "exceed the model's window" in shown
    records = [json.loads(line) for line in (out / "documents.jsonl").read_text().splitlines()]
    assert len(records) == 4 * (2 + 2 + 1)
    assert main(["plot", str(out)]) == 0
    assert capsys.readouterr().out == shown


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (["--data", "no/such"], "there is no folder no/such"),
        (["--data", "DATA", "--tasks", "port"], "did you mean 'ports'"),
        (["--data", "DATA", "--question", "maybe"], "known, unknown or both"),
        (["--data", "DATA", "--half", "left"], "even or odd"),
        (["--data", "DATA", "--against", "full"], "is not one of the policies"),
        (["--data", "DATA", "--system", "Be kind."], "--system is not possible here"),
        (["--data", "DATA", "--policy", "kvzip", "--question", "known"], "always unknown"),
    ],
)
def test_bad_use(
    folder: Path, tmp_path: Path, args: list[str], part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [str(folder) if arg == "DATA" else arg for arg in args]
    policy = [] if "--policy" in given else ["--policy", "infinipot"]
    command = ["eval", "documents", "./no/model", "-o", str(tmp_path / "o"), *policy, *given]
    assert main(command) == 2
    assert part in capsys.readouterr().err
