"""lm-evaluation-harness: equal to its own Hugging Face model where the pot holds all, bounded where it does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lm_eval", reason="needs the extra: pip install 'infinipot[lm]'")

from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

from infinipot import PotConfig
from infinipot.cli import main
from infinipot.eval.lm import PotLM
from infinipot.eval.methods import method
from infinipot.eval.runner import Model, Replica
from infinipot.eval.tasks.lm_harness import TaskUnit
from infinipot.model.runner import ModelRunner

WORDS = ["the", "ship", "left", "at", "dawn", "and", "nobody", "saw", "it", "go", ""]
LONG = " ".join(WORDS * 12)


def asked(kind: str, *args: Any) -> Instance:
    return Instance(request_type=kind, doc={}, arguments=args, idx=0)


def scored() -> list[Instance]:
    contexts = ["the ship", LONG, "at dawn, nobody "]
    return [
        asked("loglikelihood", context, " " + word)
        for context in contexts
        for word in ("left", "saw it go", "dawn")
    ]


@pytest.fixture(scope="module")
def stock(replica: Replica) -> Any:
    return HFLM(
        pretrained=replica.runner.model, tokenizer=replica.tokenizer, batch_size=1, max_length=2000
    )


def pot(replica: Replica, **options: Any) -> PotLM:
    return PotLM(replica.runner.model, replica.tokenizer, batch_size=2, **options)


def test_scores_equal_stock_where_all_fits(replica: Replica, stock: Any) -> None:
    expected = stock.loglikelihood(scored(), disable_tqdm=True)
    for options in (
        {"policy": "full"},
        {"pot_size": 1500},
        {"policy": "truncate", "pot_size": 1500},
    ):
        got = pot(replica, **options).loglikelihood(scored(), disable_tqdm=True)
        assert [greedy for _, greedy in got] == [greedy for _, greedy in expected]
        assert [value for value, _ in got] == pytest.approx(
            [value for value, _ in expected], rel=1e-4
        )


def test_whole_texts_equal_stock_where_all_fits(replica: Replica, stock: Any) -> None:
    texts = [asked("loglikelihood_rolling", LONG), asked("loglikelihood_rolling", "the ship")]
    expected = stock.loglikelihood_rolling(texts, disable_tqdm=True)
    for options in ({"policy": "full"}, {"pot_size": 1500}):
        assert pot(replica, **options).loglikelihood_rolling(
            texts, disable_tqdm=True
        ) == pytest.approx(expected, rel=1e-4)


def test_answers_equal_stock_where_all_fits(replica: Replica, stock: Any) -> None:
    wanted = {"until": ["zz"], "max_gen_toks": 8}
    texts = [asked("generate_until", text, wanted) for text in ("the ship", LONG, "at dawn")]
    expected = stock.generate_until(texts, disable_tqdm=True)
    assert pot(replica, pot_size=1500).generate_until(texts, disable_tqdm=True) == expected
    assert pot(replica, policy="full").generate_until(texts, disable_tqdm=True) == expected


def test_a_small_pot_reads_everything_and_stays_small(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    pots, read = [], []
    made, taken = ModelRunner.new_pot, ModelRunner.read

    def new_pot(self: ModelRunner, *args: Any, **options: Any) -> Any:
        pots.append(made(self, *args, **options))
        return pots[-1]

    def reading(self: ModelRunner, ids: Any, *args: Any, **options: Any) -> Any:
        read.append(ids.shape[1])
        return taken(self, ids, *args, **options)

    small = pot(replica, pot_size=96, distill_to=32, novelty=0.0)
    monkeypatch.setattr(ModelRunner, "new_pot", new_pot)
    monkeypatch.setattr(ModelRunner, "read", reading)
    long = (
        LONG * 3
    )  # longer than the model's own 256 positions: the harness would cut it from the left
    count = len(replica.tokenizer.encode(long))
    assert count > 256
    small.generate_until(
        [asked("generate_until", long, {"until": ["zz"], "max_gen_toks": 4})], disable_tqdm=True
    )
    small.loglikelihood_rolling([asked("loglikelihood_rolling", long)], disable_tqdm=True)
    requests = [asked("loglikelihood", long, " " + word) for word in WORDS[:4]]
    before = sum(read)
    results = small.loglikelihood(requests, disable_tqdm=True)
    used = [pot for pot in pots if pot.tokens_read]
    assert all(pot.peak <= 96 for pot in used)
    assert [pot.tokens_read >= count - 1 for pot in used] == [
        True
    ] * 3  # generated, rolled, scored: one pot each, the text whole
    assert used[2].distillations > 4
    assert sum(read) - before < 2.2 * count  # four continuations, one reading (and its catalysts)
    assert len(results) == 4
    assert small.loglikelihood(requests[::-1], disable_tqdm=True) == results[::-1]


def test_a_contrast_is_read_beside_the_prompts_end(replica: Replica) -> None:
    """Answers, scores and whole texts, in a pot that distils."""
    plain, against = (
        pot(replica, pot_size=96, distill_to=32),
        pot(replica, pot_size=96, distill_to=32, contrast="unrelated"),
    )
    wanted = {"until": ["zz"], "max_gen_toks": 8}
    for model in (plain, against):
        assert (
            len(model.generate_until([asked("generate_until", LONG, wanted)], disable_tqdm=True))
            == 1
        )
    scores, others = (
        model.loglikelihood([asked("loglikelihood", LONG, " ship")], disable_tqdm=True)[0][0]
        for model in (plain, against)
    )
    assert scores != others
    whole, other = (
        model.loglikelihood_rolling([asked("loglikelihood_rolling", LONG)], disable_tqdm=True)
        for model in (plain, against)
    )
    assert whole == other  # no question, so nothing to divide


def test_bad_options_are_refused(replica: Replica) -> None:
    with pytest.raises(ValueError, match="did you mean 'infinipot'"):
        pot(replica, policy="infinipto")
    for options in ({"catalyst": "general"}, {"answer_prefix": "1. "}):
        with pytest.raises(ValueError, match="the end of each prompt"):
            pot(replica, **options)
    assert pot(replica, pot_size=96).pot_config == PotConfig(pot_size=96)


def task_file(folder: Path) -> Path:
    """A task of the harness's own kind with rows of its own, no network."""
    rows = [
        {"text": " ".join(WORDS * n), "choices": [" left", " rain"], "label": n % 2}
        for n in (1, 2, 9)
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "ships.yaml").write_text(
        f"task: ships\ndataset_path: json\ndataset_kwargs:\n  data_files:\n    test: {folder / 'rows.jsonl'}\ntest_split: test\n"
        "output_type: multiple_choice\ndoc_to_text: text\ndoc_to_choice: choices\ndoc_to_target: label\nmetric_list:\n  - metric: acc\n"
    )
    return folder


def test_every_method_gets_the_same_texts(
    replica: Replica, tiny: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a task makes its own, by chance that runs on from one loading to the next."""
    (tmp_path / "makes.py").write_text(
        "import random, datasets\nCHANCE = random.Random(1)\n"
        "WORDS = 'the ship left at dawn and nobody saw it go'.split()\n"
        "def rows(**_):\n    texts = [{'text': ' '.join(CHANCE.sample(WORDS, 6))} for _ in range(3)]\n"
        "    return {'test': datasets.Dataset.from_list(texts)}\n"
    )
    (tmp_path / "chance.yaml").write_text(
        "task: chance\ndataset_path: ''\ncustom_dataset: !function makes.rows\ntest_split: test\noutput_type: generate_until\n"
        "doc_to_text: text\ndoc_to_target: text\ngeneration_kwargs:\n  until: ['zz']\n  max_gen_toks: 3\n"
        "metric_list:\n  - metric: exact_match\n"
    )
    seen: list[list[str]] = []

    def answering(self: PotLM, requests: list[Instance], **_: Any) -> list[str]:
        seen.append([request.args[0] for request in requests])
        return ["" for _ in requests]

    monkeypatch.setattr(PotLM, "generate_until", answering)
    for label in ("full", "infinipot", "streaming"):
        TaskUnit(
            model=tiny, method=method(label, {"pot_size": 128}), task="chance", include=tmp_path
        ).run(replica)
    assert len(seen) == 3
    assert seen[0] == seen[1] == seen[2]
    assert len({*seen[0]}) == 3


def test_the_command(
    tiny: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    args = ["eval", "lm", tiny.name, "--tasks", "ships", "--include", str(task_file(tmp_path)), "--policy", "full,infinipot:novelty=0",
            "--pot-size", "128", "--limit", "2", "--device", "cpu", "-o", str(tmp_path / "out")]  # fmt: skip
    assert main(args) == 0
    shown = capsys.readouterr().out
    assert "ships acc" in shown
    assert "infinipot novelty 0, question known" in shown
    records = [
        json.loads(line) for line in (tmp_path / "out" / "lm.jsonl").read_text().splitlines()
    ]
    assert [record["results"]["ships"]["acc,none"] in (0, 0.5, 1) for record in records] == [
        True,
        True,
    ]
    assert main(args) == 0
    assert capsys.readouterr().out == shown
    assert main([*args[:4], "shipz", *args[5:]]) == 2
    assert "shipz" in capsys.readouterr().err
