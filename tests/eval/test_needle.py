"""Needles, and what every evaluation shares: plans, shards, resuming, the heat map."""

from __future__ import annotations

import json
import multiprocessing
import pickle
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from helpers import Killed

from infinipot import __version__
from infinipot.cli import main
from infinipot.eval import report, runner
from infinipot.eval.methods import method, methods
from infinipot.eval.results import Results
from infinipot.eval.runner import Model, Replica, shard_of, sweep
from infinipot.eval.tasks.haystack import KINDS, WORDS, hay, hide, needles
from infinipot.eval.tasks.needle import KEY, NAME, found, plan
from infinipot.eval.teacher_forcing import kept_share, open_session
from infinipot.policies import POLICIES

PROSE = (
    "The ship left at dawn. Nobody saw it go! Was there a storm? The harbour master wrote of rain. "
)


@pytest.fixture
def prose(tmp_path: Path) -> str:
    folder = tmp_path / "prose"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.txt").write_text(f"Chapter {number}. " + PROSE * 8)
    return str(folder)


def small(labels: str, **options: Any) -> Any:
    return methods(labels, {"pot_size": 160, "distill_to": 64, **options})


# ---------------------------------------------------------------- methods


def test_a_method_says_what_counts_for_it() -> None:
    known, unknown, full, cut, stream = small(
        "infinipot:novelty=0:pool=7,infinipot:catalyst=general,full,truncate,streaming"
    )
    assert (known.question, unknown.question, full.question, cut.question, stream.question) == (
        "known",
        "unknown",
        None,
        None,
        None,
    )
    sized = {
        "pot_size": 160,
        "distill_to": 64,
        "recent": 5,
        "pool": 7,
        "pool_kind": "avg",
    }  # also where they are defaults
    assert known.options == {**sized, "novelty": 0, "catalyst": "question"}
    assert unknown.options == {**sized, "catalyst": "general"}
    assert (
        full.options == {}
    )  # nothing of a pot counts where there is none: results stay when --pot-size changes
    assert cut.options == {"pot_size": 160}
    assert stream.options == {"pot_size": 160, "distill_to": 64}
    assert (
        method("streaming", {"novelty": 0.1, "catalyst": "general"}).options
        == method("streaming", {}).options
    )


@pytest.mark.parametrize(
    ("labels", "part"),
    [
        ("infinipto", "did you mean 'infinipot'"),
        ("infinipot:novelti=0", "did you mean 'novelty'"),
        ("infinipot:novelty", "option=value"),
        ("infinipot:novelty=7", "between 0 and 1"),
        ("full,full", "twice"),
        (" , ", "no policy"),
    ],
)
def test_methods_that_cannot_be_read(labels: str, part: str) -> None:
    with pytest.raises(ValueError, match=part):
        small(labels)


def test_what_does_not_fit_is_named_and_left_out(
    replica: Replica, tiny: Model, prose: str, tmp_path: Path, capsys: Any
) -> None:
    """A pot too small for one method's question and answer: the others' results stay; nothing at all is a failure."""
    fitting = {
        "haystack": prose,
        "kind": "number",
        "lengths": [300],
        "depths": [0.5],
        "trials": 2,
        "max_tokens": 40,
    }
    units = plan(
        tiny, [method("truncate:pot_size=64", {}), method("streaming", {"pot_size": 64})], **fitting
    )
    results = Results(tmp_path / "out", NAME, KEY)
    left = sweep(units, results, tiny, replica=replica)
    assert len(left) == 2
    assert all("truncate:pot_size=64" in what and "leaves no room" in what for what in left)
    assert [record["method"] for record in results.all()] == ["streaming", "streaming"]
    where = [
        "--lengths",
        "300",
        "--depths",
        "0.5",
        "--trials",
        "1",
        "--haystack",
        prose,
        "--pot-size",
        "64",
        "--max-tokens",
        "40",
    ]
    assert (
        main(["needle", tiny.name, "-o", str(tmp_path / "none"), "--policy", "truncate", *where])
        == 1
    )
    assert "nothing could be measured; the first reason: truncate" in capsys.readouterr().err


# ---------------------------------------------------------------- texts


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["filler", "folder"])
def test_needles_stand_where_they_should(
    replica: Replica, prose: str, kind: str, name: str
) -> None:
    depths = [0.1, 0.5, 0.9]
    hidden = needles(kind, 3, random.Random(1))
    assert len({needle.key for needle in hidden}) == 3
    where = "filler" if name == "filler" else prose
    stack = hide(
        replica,
        where,
        700,
        [(d, n.statement) for d, n in zip(depths, hidden, strict=True)],
        random.Random(2),
    )
    assert len(stack.ids) == 700
    for depth, needle, (start, stop) in zip(depths, hidden, stack.spans, strict=True):
        assert replica.tokenizer.decode(stack.ids[start:stop]) == " " + needle.statement
        assert abs(start / 700 - depth) < 0.12
        assert (
            replica.tokenizer.decode(stack.ids[:start]).rstrip().endswith((".", "!", "?"))
        )  # never inside a sentence
        assert replica.tokenizer.decode(stack.ids).lower().count(needle.key) == 2


def test_trials_differ_and_repeat(replica: Replica, prose: str, tiny: Model) -> None:
    units = plan(
        tiny,
        small("full,streaming"),
        haystack=prose,
        kind="word",
        lengths=[300],
        depths=[0.5],
        trials=3,
    )
    hidden = [unit.hidden()[0][0] for unit in units]
    assert [needle.key for needle in hidden[::2]] == [
        needle.key for needle in hidden[1::2]
    ]  # all methods get the same
    assert len({needle.key for needle in hidden}) == 3
    assert hidden[0] == units[0].hidden()[0][0]
    assert hay(replica, prose) is hay(replica, prose)
    moved = shutil.copytree(prose, Path(prose).parent / "elsewhere" / "prose")
    again = plan(
        tiny, small("full"), haystack=str(moved), kind="word", lengths=[300], depths=[0.5], trials=3
    )
    assert [unit.hidden()[0][0] for unit in again] == hidden[
        ::2
    ]  # where the folder lies says nothing


@pytest.mark.parametrize(
    ("key", "answer", "right"),
    [
        ("60494", "The pass key is 60494.", True),
        ("60494", "It is 60,494, I think", True),
        ("60494", "160494", False),
        ("60494", "604945", False),
        ("60494", "6049", False),
        ("lantern", "Lantern!", True),
        ("lantern", "lanterns", False),
    ],
)
def test_an_answer_is_right_or_not(key: str, answer: str, right: bool) -> None:
    assert found(key, answer) is right


def test_no_word_is_part_of_another() -> None:
    assert len(set(WORDS)) == len(WORDS) > 90


# ---------------------------------------------------------------- reading and asking


def test_what_is_kept_is_counted(replica: Replica) -> None:
    session = open_session(
        replica,
        method("streaming:sinks=0", {"pot_size": 64, "distill_to": 16}).config,
        template=False,
    )
    session.append([5] * 100)
    kept = session.pot.described(session.pot.bounded[:1])[0][0, 0].tolist()
    assert kept_share(session, 0, 100) == pytest.approx(len(kept) / 100)
    assert kept_share(session, kept[0], kept[0] + 10) == 1
    assert kept_share(session, 0, kept[0]) == 0


def test_every_policy_answers_and_keeps_its_bound(
    replica: Replica, tiny: Model, prose: str
) -> None:
    units = plan(
        tiny,
        small(",".join(POLICIES)),
        haystack=prose,
        kind="multi",
        lengths=[700],
        depths=[0.1, 0.9],
        trials=1,
        max_tokens=3,
    )
    for unit in units:
        first, second = unit.run(replica)
        assert (first["depth"], second["depth"]) == (0.1, 0.9)
        assert not unit.method.bounded or first["peak_entries"] <= 160
        assert unit.method.policy.name != "full" or (first["kept"], second["kept"]) == (1, 1)
        assert (first["distillations"] > 0) == (unit.method.policy.bounded)


def test_questions_about_one_pot_do_not_disturb_each_other(
    replica: Replica, tiny: Model, prose: str
) -> None:
    (unit,) = plan(
        tiny,
        small("streaming"),
        haystack=prose,
        kind="multi",
        lengths=[500],
        depths=[0.2, 0.5, 0.8],
        trials=1,
        max_tokens=4,
    )
    hidden, _ = unit.hidden()
    records = unit.run(replica)
    session = open_session(replica, unit.method.config)
    chance = unit.hidden()[1]
    stack = hide(
        replica,
        prose,
        500,
        [(d, n.statement) for d, n in zip(unit.depths, hidden, strict=True)],
        chance,
    )
    session.append(stack.ids)
    for needle, record in reversed(
        list(zip(hidden, records, strict=True))
    ):  # in another order, each from the same pot
        assert session.ask(needle.question, max_tokens=4) == record["answer"]


def test_a_model_that_reads_finds_the_needle(smollm2: Any) -> None:
    which = Model("smollm2", "cpu", "float32")
    (unit,) = plan(
        which,
        methods("full", {}),
        haystack="filler",
        kind="number",
        lengths=[300],
        depths=[0.5],
        trials=1,
    )
    (record,) = unit.run(Replica.of(*smollm2))
    assert record["right"], record["answer"]
    assert record["forced"]
    assert record["loss"] < 1


# ---------------------------------------------------------------- sweeps


def contents(folder: Path) -> str:
    return (folder / "needle.jsonl").read_text()


def test_interrupted_and_resumed_gives_the_same_file(
    tiny: Model, replica: Replica, prose: str, tmp_path: Path
) -> None:
    cells: dict[str, Any] = {"lengths": [200, 300], "depths": [0.1, 0.9], "trials": 1}
    units = plan(
        tiny, small("streaming,truncate"), haystack=prose, kind="number", max_tokens=2, **cells
    )
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    sweep(units, Results(whole, NAME, KEY), tiny, replica=replica)
    ran: list[str] = []

    def stop(done: int, total: int, title: str) -> None:
        ran.append(title)
        if done == 3:
            raise Killed

    with pytest.raises(Killed):
        sweep(units, Results(broken, NAME, KEY), tiny, replica=replica, progress=stop)
    with open(broken / "needle.jsonl", "a") as file:
        file.write('{"model": "torn')  # killed while it wrote
    sweep(
        units,
        Results(broken, NAME, KEY),
        tiny,
        replica=replica,
        progress=lambda done, total, title: ran.append(title),
    )
    assert contents(broken) == contents(whole)
    assert len([title for title in ran if title]) == len(units)  # nothing was done twice
    sweep(units, Results(whole, NAME, KEY), tiny)  # nothing is left: no model is loaded


def test_order_and_shards_do_not_change_results(
    tiny: Model, replica: Replica, prose: str, tmp_path: Path
) -> None:
    units = plan(
        tiny,
        small("streaming,infinipot"),
        haystack=prose,
        kind="number",
        lengths=[200, 300],
        depths=[0.5],
        trials=1,
        max_tokens=2,
    )
    whole, parts, mixed = (
        Results(tmp_path / name, NAME, KEY) for name in ("whole", "parts", "mixed")
    )
    sweep(units, whole, tiny, replica=replica)
    for number in (2, 1):
        sweep(
            units,
            Results(tmp_path / "parts", NAME, KEY, (number, 2)),
            tiny,
            shard=(number, 2),
            replica=replica,
        )
    shuffled = units[::-1]
    sweep(shuffled, mixed, tiny, replica=replica)
    by_key = sorted(whole.all(), key=str)
    assert len(by_key) == 4
    assert sorted(parts.all(), key=str) == by_key == sorted(mixed.all(), key=str)
    mixed.settle(key for unit in units for key in unit.keys())  # noqa: SIM118
    assert contents(tmp_path / "mixed") == contents(tmp_path / "whole")


def test_two_processes_give_the_same_file(
    tiny: Model, replica: Replica, prose: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The processes are forks, which need no seconds to start. All that a new interpreter would get
    goes through pickle."""
    begin = runner._begin
    assert pickle.loads(pickle.dumps(begin)) is begin

    def begin_as_new(model: Model, numbers: Any, threads: int | None) -> None:
        begin(pickle.loads(pickled), numbers, threads)

    kinds: list[str] = []
    fork = multiprocessing.get_context("fork")
    monkeypatch.setattr(multiprocessing, "get_context", lambda kind: kinds.append(kind) or fork)
    monkeypatch.setattr(runner, "_begin", begin_as_new)
    pickled = pickle.dumps(tiny)
    units = plan(
        tiny,
        small("streaming"),
        haystack=prose,
        kind="number",
        lengths=[200, 300],
        depths=[0.1, 0.9],
        trials=1,
        max_tokens=2,
    )
    sweep(units, Results(tmp_path / "one", NAME, KEY), tiny, replica=replica)
    sweep(units, Results(tmp_path / "two", NAME, KEY), tiny, workers=2)
    assert contents(tmp_path / "two") == contents(tmp_path / "one")
    assert kinds == ["spawn"], "a fork of a program that has used a GPU cannot use it"


def test_a_model_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    args = [
        "needle",
        "./no/model",
        "--haystack",
        "filler",
        "--lengths",
        "300",
        "--trials",
        "1",
        "-o",
        str(tmp_path / "o"),
    ]
    assert main(args) == 2
    assert "there is no folder ./no/model" in capsys.readouterr().err


def test_results_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    first, second = Results(tmp_path, "x", ["a"], (1, 2)), Results(tmp_path, "x", ["a"], (2, 2))
    first.add([{"a": 1, "right": True}])
    second.add([{"a": 1, "right": False}])
    with pytest.raises(ValueError, match="another result"):
        first.all()


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "a/b", "1/0"])
def test_shards_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="2/8"):
        shard_of(text)


# ---------------------------------------------------------------- tables and figures


def record(length: int, depth: float, right: bool, label: str = "streaming") -> dict[str, Any]:
    made = method(label, {"pot_size": 64})
    return {"model": "m", "dtype": "float32", "method": label, "question": made.question, "options": made.options, "haystack": "filler",
            "kind": "number", "length": length, "depth": depth, "right": right, "forced": right, "kept": None}  # fmt: skip


def test_cells_without_results_are_no_zeros() -> None:
    records = [record(4096, 0.1, True), record(4096, 0.1, False), record(1 << 20, 0.5, True)]
    assert report.shares(records) == {"streaming": {(0.1, 4096): 0.5, (0.5, 1 << 20): 1.0}}
    assert report.table(records).splitlines()[-1].split("|")[2:4] == [" 50 / – ", " – / 100 "]
    assert report.trials(records) == "1 to 2 trials a cell"


def test_the_command_writes_table_and_figures(
    tiny: Model, prose: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "out"
    args = ["needle", tiny.name, "--lengths", "200,0.25k", "--depths", "0.5", "--trials", "1", "--policy", "full,infinipot:catalyst=general",
            "--pot-size", "128", "--haystack", prose, "--max-tokens", "2", "-o", str(out), "--device", "cpu"]  # fmt: skip
    assert main(args) == 0
    shown, said = capsys.readouterr()
    assert "infinipot catalyst general, question unknown" in shown
    assert f"written: {out}/needle-number-" in said
    for ending in (".png", ".svg"):
        assert len(list(out.glob(f"needle-number-*{ending}"))) == 1
    assert f'"{__version__}"' in (out / "runs.jsonl").read_text()
    before = contents(out)
    assert main([*args, "--json"]) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [
        json.loads(line) for line in before.splitlines()
    ]
    assert main(["plot", str(out), "-o", str(tmp_path / "again")]) == 0
    assert (tmp_path / "again" / "needle.md").read_text() == (out / "needle.md").read_text()


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (["--lengths", "many"], "'many' is no number of tokens"),
        (["--depths", "2"], "'2' is no depth"),
        (["--haystack", "no/such"], "there is no haystack 'no/such'"),
        (["--kind", "numbre"], "did you mean 'number'"),
        (["--shard", "9/3"], "shard='9/3'"),
        (["--policy", "full,infinipto"], "did you mean 'infinipot'"),
        (["--lengths", "10"], "has no room for the needles"),
        (["--device", "abacus"], "abacus"),
        (["--workers", "0"], "at least 1"),
    ],
)
def test_bad_use(
    tiny: Model, tmp_path: Path, args: list[str], part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    haystack = [] if "--haystack" in args else ["--haystack", "filler"]
    assert (
        main(["needle", tiny.name, "--trials", "1", *haystack, "-o", str(tmp_path / "o"), *args])
        == 2
    )
    assert part in capsys.readouterr().err


def test_a_ray_cluster_gives_the_same_file(
    tiny: Model, replica: Replica, prose: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray", reason="needs the extra: pip install 'infinipot[ray]'")
    monkeypatch.setenv("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    units = plan(
        tiny,
        small("streaming"),
        haystack=prose,
        kind="number",
        lengths=[200, 300],
        depths=[0.1, 0.9],
        trials=1,
        max_tokens=2,
    )
    sweep(units, Results(tmp_path / "one", NAME, KEY), tiny, replica=replica)
    sweep(
        units[:1], Results(tmp_path / "ray", NAME, KEY), tiny, replica=replica
    )  # killed after the first; the cluster does the others
    done: list[int] = []
    sweep(
        units,
        Results(tmp_path / "ray", NAME, KEY),
        tiny,
        ray="local",
        progress=lambda count, total, title: done.append(count),
    )
    assert done == [1, 2, 3, 4]
    assert contents(tmp_path / "ray") == contents(tmp_path / "one")


def test_a_preset_is_the_method_of_the_paper() -> None:
    base = {"pot_size": 300, "distill_to": 60}
    paper, ours = (method(label, base).config for label in ("infinipot:preset=paper", "infinipot"))
    assert (paper.novelty, paper.pool, paper.distill_to) == (0.5, 0, 150)
    assert method("infinipot:preset=paper:pot_size=200", base).config.distill_to == 100
    assert method("infinipot:preset=paper:pot_size=2k", base).config.distill_to == 1024
    assert method("infinipot", {"pot_size": 300}, preset="paper").config.distill_to == 150
    assert (ours.novelty, method("infinipot", base).options["pool"]) == (0.25, 7)
    assert method("infinipot:preset=paper:novelty=0", base).config.novelty == 0
    assert method("infinipot:novelty=0:preset=paper", base).config.novelty == 0, "in whatever order"
    facts = method("infinipot:preset=facts", base)
    assert (facts.config.catalyst, facts.config.score_memory, facts.question) == (
        "facts",
        "once",
        "unknown",
    )
    shared = methods("infinipot,snapkv,infinipot:pool=13", base, preset="paper")
    assert [one.policy.smoothing(60, "question")[0] for one in shared] == [0, 7, 13], (
        "other methods have their own"
    )
    assert method("infinipot", {**base, "novelty": 0.1}, preset="paper").config.novelty == 0.1
    both = methods(
        "infinipot,streaming,h2o", {**base, "score_memory": "once", "contrast": "unrelated"}
    )
    assert [(one.policy.score_memory, one.policy.contrast) for one in both] == [
        ("once", "unrelated"),
        (0.0, None),
        (0.0, None),
    ]
    with pytest.raises(TypeError, match="policy 'streaming' has no option 'contrast'"):
        method("streaming:contrast=unrelated", base)
    with pytest.raises(
        ValueError, match="'infinipot:score_memory=twice': score_memory='twice' is not allowed"
    ):
        method("infinipot:score_memory=twice", base)
    with pytest.raises(ValueError, match="unknown preset 'papr'"):
        method("infinipot:preset=papr", base)
