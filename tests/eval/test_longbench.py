"""LongBench: metrics as its own, prompts as its own, rows that are scored alike however they are run, honest tables."""

from __future__ import annotations

import dataclasses
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import Killed
from rows import CLASSES, record, row_of

from infinipot.cli import main
from infinipot.eval import metrics, scores
from infinipot.eval.methods import method, methods
from infinipot.eval.protocol import arranged
from infinipot.eval.results import Results
from infinipot.eval.runner import Model, Replica, sweep
from infinipot.eval.stats import paired_difference, share_interval
from infinipot.eval.tasks.longbench import (
    GENUINE,
    KEY,
    NAME,
    STYLE,
    NotFirst,
    RowUnit,
    plan,
    prompt_ids,
    read_rows,
    tasks,
)
from infinipot.session import Session

pytest.importorskip("rouge")
pytest.importorskip("rapidfuzz")

OFFICIAL = [  # what LongBench's metrics.py (with fuzzywuzzy 0.18.0, Levenshtein 0.27.5, rouge 1.0.1) gives
    ("f1", "The captain of a ship", "captain, ship", 0.8),
    ("f1", "It was Anna's letter; a letter from the north", "Anna's letter", 0.444444444444),
    ("f1", "a the an", "the", 0.0),
    ("f1", "1,024 entries", "1024 entries", 1.0),
    (
        "rouge",
        "The report finds that costs rose. It asks for a plan.",
        "Costs rose, the report finds. A plan is asked for.",
        0.285714280726,
    ),
    ("rouge", "", "a", 0.0),
    ("rouge", "...", "a", 0.0),
    ("rouge", "one two three four", "one three four five six", 0.666666661728),
    ("classification", "Manner of an action", "Manner of an action", 1.0),
    ("classification", "Person", "Description of a person", 0.0),
    ("classification", "Type: Other location or Location", "Location", 0.5),
    ("classification", "Location, Other location, Manner", "Other location", 0.333333333333),
    ("classification", "Manner Manner of an action Other location", "Manner of an action", 0.5),
    ("count", "There are 12, maybe 13", "12", 0.5),
    ("count", "none", "3", 0.0),
    ("retrieval", "Paragraph 7, or 17", "Paragraph 7", 0.5),
    ("code", "\n# a comment\n    return value\n", "    return values", 0.97),
    ("code", "```python\nx = 1\n```", "x = 2", 0.8),
    ("code", "// only", "x", 0.0),
    ("code", "abc", "abd", 0.67),
]


# ---------------------------------------------------------------- metrics


@pytest.mark.parametrize(("metric", "prediction", "answer", "expected"), OFFICIAL)
def test_metrics_equal_the_official_ones(
    metric: str, prediction: str, answer: str, expected: float
) -> None:
    assert metrics.METRICS[metric](prediction, answer, CLASSES) == pytest.approx(expected, abs=1e-9)


def test_a_class_behind_a_crossed_out_one_is_left_standing() -> None:
    nested = [
        "Manner",
        "Manner of",
        "Manner of an action",
    ]  # officially 1/2: the list shrinks while it is walked through
    assert metrics.classification("Manner of an action", "Manner of an action", nested) == 0.5


def test_the_first_line_and_the_best_answer_count() -> None:
    assert metrics.score("f1", "\n\nParis\nLondon", ["Rome", "Paris"], first_line=True) == 1
    assert metrics.score("f1", "\n\nParis\nLondon", ["Rome", "Paris"]) < 1
    assert metrics.score("f1", "Paris", []) == 0


def test_a_missing_package_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "jieba", None)
    with pytest.raises(ValueError, match="pip install jieba"):
        metrics.needed({"f1", "rouge_zh"})


def plain_similarity(first: str, second: str) -> float:
    """Edit similarity without substitutions, from the longest common subsequence, by the table."""
    row = [0] * (len(second) + 1)
    for a in first:
        before = row[:]
        for n, b in enumerate(second, 1):
            row[n] = before[n - 1] + 1 if a == b else max(before[n], row[n - 1])
    return round(200 * row[-1] / (len(first) + len(second))) / 100 if first and second else 0.0


def test_code_similarity_equals_the_plain_table() -> None:
    chance = random.Random(3)
    for _ in range(50):
        first, second = (
            "".join(chance.choices("abc (=", k=chance.randint(1, 30))) for _ in range(2)
        )
        assert metrics.code(first, second) == pytest.approx(
            plain_similarity(first, second), abs=0.011
        )  # a half may round either way


@pytest.mark.slow
def test_golds_and_random_pairs_of_real_rows() -> None:
    """Needs rows in LongBench's format in the folders of INFINIPOT_DATA."""
    folders = [
        path
        for path in sorted(Path(os.environ["INFINIPOT_DATA"]).glob("longbench*"))
        if path.is_dir()
    ]
    rows = [row for folder in folders for row in read_rows(folder)]
    chance, kinds = random.Random(0), {name: task.metric for name, task in tasks().items()}
    for row in rows:
        for answer in row.answers[:1]:
            expected = (
                0.0
                if kinds[row.task] == "code" and any(sign in answer for sign in ("#", "`", "//"))
                else 1.0
            )
            got = metrics.METRICS[kinds[row.task]](answer, answer, row.classes)
            assert (
                got == pytest.approx(expected, abs=1e-6)
                or not metrics.words(answer)
                or (kinds[row.task], got) == ("rouge", 0.0)
            )
    for _ in range(200):
        row, other = chance.sample(rows, 2)
        said, right = row.answers[0], other.answers[0]
        bag = metrics.words(said), metrics.words(right)
        same = sum(min(bag[0].count(word), bag[1].count(word)) for word in set(bag[0]))
        assert metrics.f1(said, right) == pytest.approx(
            2 * same / max(1, len(bag[0]) + len(bag[1]))
        )
        line = next(
            (x for x in said.lstrip("\n").split("\n") if not any(s in x for s in ("#", "`", "//"))),
            "",
        )[:300]
        assert metrics.code(line, right[:300]) == pytest.approx(
            plain_similarity(line, right[:300]), abs=0.011
        )


# ---------------------------------------------------------------- rows and prompts


def test_the_tasks_are_those_of_the_paper() -> None:
    english = [
        name
        for name, task in tasks().items()
        if not name.endswith("_zh") and name not in ("dureader", "vcsum", "lsht")
    ]
    assert len(english) == 16
    assert {name for name, task in tasks().items() if not task.chat} == {
        "trec",
        "triviaqa",
        "samsum",
        "lsht",
        "lcc",
        "repobench-p",
    }
    assert {name for name, task in tasks().items() if task.first_line} == {
        "trec",
        "triviaqa",
        "samsum",
        "lsht",
    }
    assert tasks()["gov_report"].max_tokens == 512
    assert all(
        "{context}" in task.prompt and task.metric in metrics.METRICS for task in tasks().values()
    )


@pytest.mark.parametrize(
    "task", [name for name in tasks() if name not in ("lsht", "dureader", "vcsum")]
)
def test_a_prompt_is_the_official_text_cut_where_the_context_ends(
    replica: Replica, task: str
) -> None:
    one = row_of(task)
    official = tasks()[task].prompt.format(context=one.context, input=one.input)
    prompt = prompt_ids(replica.tokenizer, one, 10_000)
    text, question = (replica.tokenizer.decode(ids) for ids in (prompt.text, prompt.question))
    ending = "<|end|>\n<|start|>assistant\n" if tasks()[task].chat else ""
    assert text + question == official + ending
    assert text == official[: len(text)]
    assert (
        len(text) >= official.index(one.context) + len(one.context) - 2
    )  # a token may reach over the cut
    assert prompt.text + prompt.question == replica.tokenizer.encode(
        official
    ) + replica.tokenizer.encode(ending)


def test_a_long_question_gives_its_beginning_to_the_text(replica: Replica) -> None:
    whole, cut = (prompt_ids(replica.tokenizer, row_of("triviaqa"), most) for most in (10_000, 5))
    assert len(cut.question) == 5
    assert cut.text + cut.question == whole.text + whole.question


def test_the_middle_of_a_long_prompt_is_cut_out_officially(replica: Replica) -> None:
    one, tokenizer = row_of("hotpotqa"), replica.tokenizer
    ids = tokenizer.encode(tasks()["hotpotqa"].prompt.format(context=one.context, input=one.input))
    prompt = prompt_ids(tokenizer, one, 10_000, 300)
    official = tokenizer.decode(ids[:150], skip_special_tokens=True) + tokenizer.decode(
        ids[-150:], skip_special_tokens=True
    )
    said = tokenizer.decode(prompt.text + prompt.question)
    assert said == official + "<|end|>\n<|start|>assistant\n"
    assert one.input in tokenizer.decode(prompt.question)


def test_the_first_token_ends_nothing() -> None:
    pick, logits = NotFirst({2, 3}), torch.tensor([[0.0, 1.0, 5.0, 4.0]])
    assert [pick(logits), pick(logits)] == [1, 2]


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("{", "line 1"),
        (json.dumps({"dataset": "trec"}), "lacks input, context"),
        (json.dumps({**record("trec"), "dataset": "terc"}), "did you mean 'trec'"),
    ],
)
def test_rows_that_cannot_be_read(tmp_path: Path, line: str, part: str) -> None:
    (tmp_path / "x.jsonl").write_text(line + "\n")
    with pytest.raises(ValueError, match=part):
        read_rows(tmp_path)


def test_a_row_is_there_once(data: Path) -> None:
    assert [r.task for r in read_rows(data)] == ["hotpotqa"] * 2 + ["trec"] * 2 + ["samsum"] * 2 + [
        "lcc"
    ] * 2
    assert len(read_rows(data, ["trec"])) == 2
    (data / "again.jsonl").write_text(json.dumps(record("trec")) + "\n")
    with pytest.raises(ValueError, match="twice"):
        read_rows(data)


# ---------------------------------------------------------------- answering


def test_full_context_equals_plain_transformers(replica: Replica, tiny: Model) -> None:
    """The official loop, in the official order, with the model alone."""
    tokenizer, model = replica.tokenizer, replica.runner.model
    for task in ("hotpotqa", "lcc"):
        one = row_of(task, words=60)
        prompt = tasks()[task].prompt.format(context=one.context, input=one.input)
        if tasks()[task].chat:
            prompt = tokenizer.apply_chat_template(
                [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
            )
        inputs = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)
        count = tasks()[task].max_tokens
        ids = model.generate(**inputs, max_new_tokens=count, do_sample=False, pad_token_id=0)[
            0, inputs["input_ids"].shape[1] :
        ]
        for label in ("full", "infinipot:pot_size=2000"):
            (record,) = RowUnit(
                model=tiny, method=method(label, {}), rows=GENUINE, row=one, max_length=5000
            ).run(replica)
            assert record["pred"] == tokenizer.decode(ids, skip_special_tokens=True)


def run(units: list[RowUnit], folder: Path, tiny: Model, replica: Replica, **more: Any) -> Results:
    results = Results(folder, NAME, KEY, more.get("shard", (1, 1)))
    sweep(units, results, tiny, replica=replica, **more)
    return results


def test_a_row_is_scored_alike_however_it_is_run(
    data: Path, tiny: Model, replica: Replica, tmp_path: Path
) -> None:
    some = methods("streaming,infinipot", {"pot_size": 300, "distill_to": 150})
    rows = [r for r in read_rows(data) if r.task in ("hotpotqa", "trec")]
    units = plan(tiny, some, [(GENUINE, rows)])
    assert [unit.row.task for unit in units[::2]] == [
        "hotpotqa",
        "trec",
    ] * 2  # a row of every task before the next
    whole = run(units, tmp_path / "a", tiny, replica).all()
    assert len(whole) == 8
    reverse = run(units[::-1], tmp_path / "b", tiny, replica).all()
    run(units, tmp_path / "c", tiny, replica, shard=(2, 3))
    run(units, tmp_path / "c", tiny, replica, shard=(1, 3))
    shards = run(units, tmp_path / "c", tiny, replica, shard=(3, 3)).all()
    assert sorted(map(str, whole)) == sorted(map(str, reverse)) == sorted(map(str, shards))

    def stop(done: int, total: int, title: str) -> None:
        if done == 5:
            raise Killed

    with pytest.raises(Killed):
        run(units, tmp_path / "d", tiny, replica, progress=stop)
    run(units, tmp_path / "d", tiny, replica)
    assert (tmp_path / "d" / "longbench.jsonl").read_bytes() == (
        tmp_path / "a" / "longbench.jsonl"
    ).read_bytes()


def test_halves_are_apart(data: Path, tiny: Model) -> None:
    rows, some = read_rows(data), methods("streaming", {})
    even, odd = (plan(tiny, some, [(GENUINE, rows)], half=half) for half in ("even", "odd"))
    assert {unit.row.id for unit in even} | {unit.row.id for unit in odd} == {r.id for r in rows}
    assert {unit.row.number for unit in even} == {0}
    assert len(plan(tiny, some, [(GENUINE, rows)], limit=1)) == 4


def test_a_text_is_read_once_where_the_question_is_unknown(
    tiny: Model, replica: Replica, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the answers and counters of readings of their own, for every kind of method."""
    labels = "full,truncate,snapkv:prefill=whole,infinipot:catalyst=general,infinipot"
    some = methods(labels, {"pot_size": 600, "distill_to": 150})
    first, second = (
        dataclasses.replace(row_of("hotpotqa", words=240), id=question, input=question)
        for question in ("Which port?", "Who?")
    )
    other = dataclasses.replace(row_of("hotpotqa", number=1, words=240), id="other")
    units = plan(tiny, some, [(GENUINE, [first, other, second])])
    counts = {one.label: [len(u.keys()) for u in units if u.method is one] for one in some}
    assert counts.pop("infinipot") == [1, 1, 1]
    assert all(count == [2, 1] for count in counts.values())
    joined = [unit for unit in units if unit.more]
    alone = [unit for row in (first, second) for unit in plan(tiny, some[:-1], [(GENUINE, [row])])]
    expected = run(alone, tmp_path / "alone", tiny, replica).all()
    readings: list[int] = []
    append = Session.append
    monkeypatch.setattr(
        Session, "append", lambda *args, **more: (readings.append(1), append(*args, **more))
    )
    found = run(joined, tmp_path / "joined", tiny, replica).all()
    assert sorted(map(str, found)) == sorted(map(str, expected))
    assert len(readings) == len(joined) == 4
    assert any(record["distillations"] for record in found)


def test_a_question_that_changes_the_text_is_read_anew(tiny: Model, replica: Replica) -> None:
    """A long question gives its beginning to the text, so the texts differ."""
    one = row_of("triviaqa", words=200)
    longer = dataclasses.replace(one, id="longer", input=one.input * 30)
    some = methods("infinipot:catalyst=general", {"pot_size": 300, "distill_to": 150})
    (unit,) = plan(tiny, some, [(GENUINE, [one, longer])])
    alone = [plan(tiny, some, [(GENUINE, [row])])[0].run(replica)[0] for row in (one, longer)]
    assert unit.run(replica) == alone


# ---------------------------------------------------------------- the paper's protocol


def test_the_papers_protocol_takes_the_question_in_question_answering_alone(
    tiny: Model, replica: Replica
) -> None:
    """Answers and survivors are those of either catalyst, and all rows stand in one column."""
    base = {"pot_size": 640, "distill_to": 200}
    labels = "infinipot:preset=paper,infinipot:preset=paper:catalyst=general,streaming"
    ours, general, streaming = arranged(methods(labels, base), {})
    assert (ours.question, general.question, streaming.question) == ("by task", "unknown", None)
    records = []
    for task, kind in (
        ("hotpotqa", "question"),
        ("multifieldqa_en", "question"),
        ("narrativeqa", "question"),
        ("gov_report", "general"),
        ("trec", "general"),
        ("triviaqa", "general"),
        ("samsum", "general"),
        ("passage_retrieval_en", "general"),
        ("lcc", "general"),
    ):
        row = row_of(task, words=700)
        unit = RowUnit(model=tiny, method=ours, rows=GENUINE, row=row)
        assert unit.in_task.config.catalyst == kind, task
        assert unit.in_task.aware == (kind == "question")
        if task in ("hotpotqa", "trec"):
            one = method(f"infinipot:preset=paper:catalyst={kind}", base)
            (expected,) = RowUnit(model=tiny, method=one, rows=GENUINE, row=row).run(replica)
            (record,) = unit.run(replica)
            assert record["distillations"] > 1
            assert {**record, **expected} == {**expected, **{"pred": record["pred"]}}
            records.append(record)
    assert list(scores.by_method(records)) == ["infinipot preset paper, question by task"]
    assert arranged(methods(labels, base), {"catalyst": "facts"})[0].by_task is False


def test_the_table_of_the_paper_by_one_command(
    data: Path, tiny: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    args = ["eval", "longbench", tiny.name, "--data", str(data), "--tasks", "hotpotqa", "--limit", "1",
            "--protocol", "paper", "--pot-size", "520", "--device", "cpu", "-o", str(out)]  # fmt: skip
    assert main(args) == 0
    assert "infinipot preset paper, question by task" in capsys.readouterr().out
    records = [json.loads(line) for line in (out / "longbench.jsonl").read_text().splitlines()]
    found = {record["method"]: record["options"] for record in records}
    assert found["infinipot:preset=paper"] == {
        "pot_size": 520,
        "distill_to": 260,
        "novelty": 0.5,
        "pool": 0,
        "pool_kind": "avg",
        "recent": 0,
        "catalyst": "by task",
    }
    sizes = {label.partition(":")[0]: options.get("distill_to") for label, options in found.items()}
    assert sizes == {
        **dict.fromkeys(("full", "truncate", "self_extend")),
        **dict.fromkeys(("snapkv", "streaming", "h2o"), "all but one"),
        **dict.fromkeys(("sirllm", "tova", "infinipot"), 260),
    }
    distillations = {
        record["method"].partition(":")[0]: record["distillations"] for record in records
    }
    assert distillations["streaming"] == distillations["h2o"] > 10 > distillations["tova"]
    h2o = method("h2o:distill_to=519:recent=515", {"pot_size": 520})
    assert h2o.config.mean_budget - h2o.config.recent == 4  # heavy hitters
    assert h2o.label in found
    assert len(found) == 11


# ---------------------------------------------------------------- tables


def result(
    label: str, task: str, number: int, points: float, rows: str = GENUINE
) -> dict[str, Any]:
    one = method(label, {})
    return {"model": "m", "dtype": "float32", "method": label, "question": one.question, "options": one.options, "rows": rows,
            "max_length": None, "task": task, "id": str(number), "score": points, "pred": "x"}  # fmt: skip


def test_unused_cells_never_enter_averages() -> None:
    records = [result("full", "trec", n, 100.0) for n in range(4)] + [result("full", "lcc", 0, 0.0)]
    records += [result("truncate", "trec", n, 50.0) for n in range(2)]  # two rows and a task less
    found = scores.by_method(records)
    assert found == {
        name: {"trec": {"0": value, "1": value}}
        for name, value in (("full", 100.0), ("truncate", 50.0))
    }
    text = scores.table(found)
    assert "lcc" not in text
    assert text.splitlines()[-1].replace(" ", "") == "|**meanoftasks**|2|**100.0**|**50.0**|"


def test_the_mean_is_of_tasks_not_of_rows() -> None:
    records = [result("full", "trec", n, 100.0) for n in range(9)] + [
        result("full", "hotpotqa", 0, 0.0)
    ]
    assert "**50.0**" in scores.table(scores.by_method(records)).splitlines()[-1]


def test_genuine_and_style_rows_are_never_in_one_table(tmp_path: Path) -> None:
    records = [result("full", "trec", n, 100.0) for n in range(2)] + [
        result("full", "trec", n, 0.0, STYLE) for n in range(2)
    ]
    text, _ = scores.write(records, tmp_path)
    genuine, style = text.split(f"{STYLE} rows")
    assert "100.0" in genuine and "**0.0**" not in genuine
    assert "100.0" not in style and "**0.0**" in style


def test_paired_intervals() -> None:
    chance = random.Random(1)
    first = {task: {str(n): chance.gauss(50, 20) for n in range(60)} for task in ("trec", "lcc")}
    better = {
        task: {n: value + 3 + chance.gauss(0, 2) for n, value in rows.items()}
        for task, rows in first.items()
    }
    noise = {
        task: {n: value + chance.gauss(0, 20) for n, value in rows.items()}
        for task, rows in first.items()
    }
    gap, interval = paired_difference(first, better)
    assert interval is not None
    assert 2 < interval[0] < gap < interval[1] < 4  # rows differ by 20, but the pairs by 2
    assert paired_difference(first, better) == (gap, interval)
    gap, interval = paired_difference(first, noise)
    assert interval is not None and interval[0] < 0 < interval[1]
    assert paired_difference({"trec": {"1": 0.0}}, {"trec": {"1": 9.0, "2": 0.0}}) == (9.0, None)
    with pytest.raises(ValueError, match="no row in common"):
        paired_difference({"trec": {"1": 0.0}}, {"lcc": {"1": 0.0}})
    low, high = share_interval(8, 8)
    assert (round(low, 3), high) == (0.676, 1.0)


def test_the_command_from_rows_to_prediction_files(
    data: Path, tiny: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    args = ["eval", "longbench", tiny.name, "--data", str(data), "--style", str(data), "--tasks", "trec,lcc", "--policy", "truncate,infinipot",
            "--pot-size", "420", "--device", "cpu", "-o", str(out)]  # fmt: skip
    assert main(args) == 0
    shown, said = capsys.readouterr()
    assert shown.count("**mean of tasks**") == 2
    assert "against truncate" in shown
    assert f"{out}/pred" in said
    lines = [
        json.loads(line)
        for line in (out / "pred" / "LongBench" / "truncate" / "trec.jsonl")
        .read_text()
        .splitlines()
    ]
    assert [line["answers"] for line in lines] == [["Location"]] * 2
    assert set(lines[0]) == {"pred", "answers", "all_classes", "length"}
    official = sum(
        metrics.score(
            "classification", line["pred"], line["answers"], line["all_classes"], first_line=True
        )
        for line in lines
    )
    records = [json.loads(line) for line in (out / "longbench.jsonl").read_text().splitlines()]
    mine = [
        r["score"]
        for r in records
        if (r["rows"], r["task"], r["method"]) == (GENUINE, "trec", "truncate")
    ]
    assert sum(mine) == pytest.approx(100 * official)
    assert all(r["peak_entries"] <= 420 for r in records)
    assert main(["plot", str(out)]) == 0
    assert capsys.readouterr().out == shown


@pytest.mark.parametrize(
    ("args", "part"),
    [
        ([], "unpack data.zip of https://huggingface.co/datasets/THUDM/LongBench"),
        (["--data", "no/such"], "there is no folder no/such"),
        (["--data", "DATA", "--tasks", "trek"], "did you mean 'trec'"),
        (["--data", "DATA", "--half", "left"], "even or odd"),
        (["--data", "DATA", "--protocol", "papers"], "did you mean 'paper'"),
        (["--data", "DATA", "--against", "full"], "is not one of the policies"),
        (["--data", "DATA", "--system", "Be kind."], "--system is not possible here"),
    ],
)
def test_bad_use(
    data: Path,
    tiny: Model,
    tmp_path: Path,
    args: list[str],
    part: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = [str(data) if arg == "DATA" else arg for arg in args]
    assert main(["eval", "longbench", tiny.name, "-o", str(tmp_path / "o"), *given]) == 2
    assert part in capsys.readouterr().err
