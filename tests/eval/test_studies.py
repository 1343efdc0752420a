"""The paper's studies: chains across cycles, what is kept against what is attended to, and every study's command."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from rows import row_of

from infinipot.cli import main
from infinipot.eval import charts
from infinipot.eval.methods import method, methods
from infinipot.eval.runner import Model, Replica
from infinipot.eval.scores import by_label
from infinipot.eval.stats import mean_interval
from infinipot.eval.studies import PROMPTS, STUDIES, figure
from infinipot.eval.tasks import hops, kept
from infinipot.eval.tasks.longbench import prompt_ids
from infinipot.eval.teacher_forcing import open_session
from infinipot.session import Session

POT = {"pot_size": 160, "distill_to": 64}


# ---------------------------------------------------------------- chains


def test_a_chain_leads_to_its_number(tiny: Model) -> None:
    (unit,) = hops.plan(
        tiny, methods("streaming", POT), haystack="filler", lengths=[600], hops=[3], trials=1
    )
    right, other, _ = unit.chains()
    assert right.number != other.number
    known = {}
    for text in right.statements + other.statements:  # followed by hand, statement by statement
        _, _, one, what = (
            text.removesuffix(".").replace("the same as the code of ", "").split(" ", 4)[1:5]
        )
        known[one.split(" ")[0]] = (
            what.removeprefix("is ")
            if what.removeprefix("is ").isdigit()
            else known[what.removeprefix("is ")]
        )
    assert known[right.last] == right.number
    assert known[other.last] == other.number
    assert len(known) == 8  # nobody is in both


def test_hops_lie_in_different_cycles(tiny: Model, replica: Replica) -> None:
    units = hops.plan(
        tiny,
        methods("streaming", POT),
        haystack="filler",
        lengths=[1200],
        hops=[0, 2],
        trials=1,
        max_tokens=2,
    )
    none, two = (unit.run(replica)[0] for unit in units)
    assert none["distillations"] == two["distillations"] > 6
    assert (none["between"], two["between"]) == (
        none["distillations"],
        round(two["distillations"] / 3, 2),
    )
    assert two["between"] > 2
    assert two["peak_entries"] <= 160
    with pytest.raises(ValueError, match="between 0 and 9"):
        hops.plan(
            tiny, methods("streaming", POT), haystack="filler", lengths=[600], hops=[10], trials=1
        )


# ---------------------------------------------------------------- what is kept


def test_overlap_counts_by_hand() -> None:
    kept_ = torch.tensor([[[True, False, True, False]]])
    attention = torch.tensor([[[0.5, 0.4, 0.1, 0.0]]])
    assert kept.overlap(kept_, attention).tolist() == [
        [0.5]
    ]  # two were kept; of the two most attended one
    assert kept.overlap_mass(kept_, torch.tensor([1.0, 2.0, 3.0, 0.0])) == pytest.approx(4 / 5)
    parts = kept.positions(kept_.expand(2, 3, 4))
    assert parts.shape == (2, kept.PARTS)
    assert float(parts.sum()) == 2 * 2


def test_attention_without_a_bound_is_the_models_own(replica: Replica) -> None:
    """Against transformers' eager attention of the first answer token."""
    one = row_of("hotpotqa", words=60)
    prompt = prompt_ids(replica.tokenizer, one, 10_000)
    seen = kept.whole(replica, prompt, False)
    ids = torch.tensor([prompt.text + prompt.question])
    model = replica.runner.model
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            token = model(ids).logits[0, -1].argmax()
            attentions = model(
                torch.cat((ids, token[None, None]), dim=1), output_attentions=True
            ).attentions
    finally:
        model.set_attn_implementation(before)
    heads = seen.attention.shape[1]
    for layer, expected in enumerate(attentions):
        last = expected[0, :, -1, : len(prompt.text)].unflatten(0, (heads, -1)).mean(dim=1)
        assert torch.allclose(seen.attention[layer], last, atol=1e-5)
    assert kept.whole(replica, prompt, False) is seen  # once for all methods


def test_kept_units_count_what_the_pot_holds(tiny: Model, replica: Replica) -> None:
    one = row_of("hotpotqa", words=400)
    units = kept.plan(
        tiny,
        methods("infinipot:novelty=0,sliding_window", {"pot_size": 300, "distill_to": 60}),
        [one],
        None,
    )
    first, window = (unit.run(replica)[0] for unit in units)
    assert first["distillations"] > 1
    assert 0 < first["chance"] < 0.5
    assert all(0 <= hit <= 1 for heads in first["hits"] for hit in heads)
    prompt = prompt_ids(replica.tokenizer, one, 120)
    session = open_session(replica, units[1].method.config)
    session.append(prompt.text)
    count = len(prompt.text) + session.pot.pinned
    held = session.stats.entries - session.pot.pinned
    assert window["chance"] == pytest.approx(held / len(prompt.text), abs=1e-3)
    assert window["positions"][0][-1] == 1  # the newest are there,
    assert window["positions"][0][kept.PARTS // 2] == 0  # the middle is not
    assert window["positions"][0][0] == pytest.approx(
        min(1.0, session.pot.pinned / (count // kept.PARTS)), abs=0.2
    )  # the head is pinned
    with pytest.raises(ValueError, match="distils nothing"):
        kept.plan(tiny, methods("full", {}), [one], None)
    with pytest.raises(ValueError, match="leave out prefill=whole"):
        kept.plan(tiny, methods("snapkv:prefill=whole", {}), [one], None)


def test_what_is_kept_of_a_text_is_read_once_for_all_its_questions(
    tiny: Model, replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = methods("infinipot:catalyst=general,infinipot", {"pot_size": 420, "distill_to": 60})
    rows = [
        dataclasses.replace(row_of("hotpotqa", words=240), id=question, input=question)
        for question in ("Which port?", "Who?")
    ]
    units = kept.plan(tiny, some, rows, None)
    alone = []
    for unit in units:
        replica.cache.clear()
        alone += unit.run(replica)
    replica.cache.clear()
    readings: list[int] = []
    append = Session.append

    def noted(session: Session, ids: list[int], **more: Any) -> None:
        readings.append(len(ids))
        append(session, ids, **more)

    monkeypatch.setattr(Session, "append", noted)
    assert [record for unit in units for record in unit.run(replica)] == alone
    texts = [count for count in readings if count == max(readings)]
    assert len(texts) == 2 + 2  # without a bound, unknown; and known, a reading for each question


# ---------------------------------------------------------------- commands


def test_studies_name_methods_that_exist() -> None:
    for study in STUDIES.values():
        some = methods(study.methods(2048), {}, prompts=PROMPTS)
        assert len({(one.policy.name, json.dumps(one.options)) for one in some}) == len(some)
        assert study.against is None or study.against in [one.label for one in some]
    assert method("infinipot:novelty=0:context_reset=false", {}).config.context_reset is False


@pytest.mark.parametrize("name", ["ablation", "novelty"])
def test_without_catalyst_and_novelty_is_tovas_criterion(name: str) -> None:
    """As in the paper's Table 3, at as many survivors as the other rows have."""
    some = methods(STUDIES[name].methods(512), {"pot_size": 512})
    assert [one.config.mean_budget for one in some] == [256] * len(some)
    tova = [one for one in some if one.policy.name == "tova"]
    assert [one.config.context_reset for one in tova] == [True, False][: len(tova)]
    assert tova


def test_shades_are_not_scaled_by_what_is_always_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    pytest.importorskip("matplotlib")
    seen = []
    monkeypatch.setattr(charts, "save", lambda drawing, path: seen.append(drawing) or [])
    rows = [[1.0, *(0.01 * place for place in range(19))] for _ in range(4)]
    charts.shades({"a": rows, "b": rows}, title="t", across="x", up="layer", legend="l", path=tmp_path / "s")  # fmt: skip
    axis = seen[0].axes[0]
    assert axis.images[0].get_clim() == (0, 0.17)
    assert all(tick == int(tick) for tick in axis.get_yticks())


@pytest.mark.parametrize("name", ["catalyst", "memory"])
def test_figures_of_rows_have_intervals(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    """Each method's interval is that of its own mean; a task with one row has none."""
    pytest.importorskip("matplotlib")
    drawn: dict[str, Any] = {}
    for kind in ("curves", "bars"):
        real = getattr(charts, kind)
        monkeypatch.setattr(
            charts,
            kind,
            lambda data, real=real, **given: (drawn.update(given, data=data), real(data, **given))[
                1
            ],
        )
    labels = [one.label for one in methods(STUDIES[name].methods(2048), {}, prompts=PROMPTS)]
    records = [
        {"rows": "LongBench", "model": "tiny", "method": label, "task": task, "id": f"r{row}", "score": 100.0 * ((row + place) % 3 == 0)}
        for place, label in enumerate(labels) for task in ("qasper", "lcc") for row in range(9 if task == "lcc" else 12)
    ]  # fmt: skip
    files = figure(name, records, tmp_path)
    svg = next(path for path in files if path.suffix == ".svg").read_text()
    assert "95 % intervals" in svg
    assert "preset=" not in svg
    flat = [
        values
        for some in drawn["intervals"].values()
        for values in (some.values() if isinstance(some, dict) else some)
    ]
    assert len(flat) in (
        len(labels),
        len(labels) - 1,
    )  # the row of Table 3 without CaP is no share of novelty
    scores = by_label(records)
    label = labels[-1]
    mean, (low, high) = mean_interval(scores[label])
    assert (low, high) in flat
    assert low < mean < high
    # by hand: a thousand draws of rows within each task
    draw = random.Random(0)
    means = sorted(
        sum(sum(draw.choices(list(rows.values()), k=len(rows))) / len(rows) for rows in scores[label].values()) / 2
        for _ in range(1000)
    )  # fmt: skip
    assert abs(means[25] - low) < 6
    assert abs(means[974] - high) < 6
    alone = [record for record in records if record["id"] == "r0"]
    assert "95 % intervals" not in figure(name, alone, tmp_path)[1].read_text()


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_gives_a_table_and_a_figure(
    name: str, tiny: Model, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    pytest.importorskip("matplotlib")
    pytest.importorskip("rapidfuzz")
    out = tmp_path / "out"
    given: dict[str, list[Any]] = {
        "longbench": ["--data", data, "--tasks", "lcc", "--limit", 1],
        "kept": ["--data", data, "--tasks", "hotpotqa", "--limit", 1, "--pot-size", 256],
        "needle": [
            "--lengths",
            300,
            "--depths",
            0.5,
            "--trials",
            1,
            "--haystack",
            "filler",
            "--pot-size",
            160,
        ],
        "hops": [
            "--lengths",
            "400,800",
            "--hops",
            "0,1",
            "--trials",
            1,
            "--haystack",
            "filler",
            "--pot-size",
            160,
        ],
    }
    args = ["study", name, tiny.name, "-o", out, "--device", "cpu", *given[STUDIES[name].kind]]
    assert main([str(arg) for arg in args]) == 0
    shown = capsys.readouterr().out
    assert "|---" in shown
    assert len(list(out.glob("*.png"))) == len(list(out.glob("*.svg"))) >= 1
    assert main([str(arg) for arg in args]) == 0
    assert capsys.readouterr().out == shown


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (["novelti"], "did you mean 'novelty'"),
        (["catalyst"], "no rows"),
        (["catalyst", "--policy", "full", "--data", "."], "methods of its own"),
        (["hops", "--hops", "99"], "between 0 and 9"),
    ],
)
def test_bad_use(
    tiny: Model, tmp_path: Path, args: list[str], part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    assert main(["study", args[0], tiny.name, "-o", str(tmp_path / "o"), *args[1:]]) == 2
    assert part in capsys.readouterr().err
