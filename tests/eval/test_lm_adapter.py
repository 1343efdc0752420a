"""The adapter for lm-evaluation-harness on a small stand-in for the harness's own model class: runs
everywhere. `test_lm.py` has the harness itself."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from helpers import random_ids
from tiny import make_tiny, make_tokenizer

from infinipot import PotConfig, generate
from infinipot.catalysts import PROMPTS
from infinipot.model.runner import ModelRunner
from infinipot.policies import POLICIES
from infinipot.session import Session

TOKENIZER = make_tokenizer()
MODEL = make_tiny("llama", vocab=len(TOKENIZER))
REGISTERED: dict[str, type] = {}


class StandIn:
    """What the adapter uses of lm_eval's HFLM."""

    def __init__(self, pretrained: Any, tokenizer: Any, backend: str, **options: Any) -> None:
        assert backend == "causal"
        self.model, self.tokenizer, self.options = pretrained, tokenizer, options
        self.rank = 0
        self.prefix_token_id = 1
        self.cached: list[tuple[str, Any, Any]] = []
        self.cache_hook = SimpleNamespace(add_partial=lambda *row: self.cached.append(row))

    def tok_encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)

    def _model_generate(self, context: Any, max_length: int, stop: list[str], **more: Any) -> Any:
        self.given = more
        return self.model.generate(context, max_length=max_length, **more)


def register_model(name: str) -> Any:
    def register(cls: type) -> type:
        REGISTERED[name] = cls
        return cls

    return register


@pytest.fixture(scope="module")
def adapter() -> Iterator[type]:
    modules = {
        name: ModuleType(name)
        for name in ("lm_eval", "lm_eval.api", "lm_eval.api.registry", "lm_eval.models")
    }
    modules["lm_eval.models.huggingface"] = SimpleNamespace(HFLM=StandIn)  # type: ignore[assignment]
    modules["lm_eval.api.registry"].register_model = register_model  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        for name, module in modules.items():
            patch.setitem(sys.modules, name, module)
        patch.delitem(sys.modules, "infinipot.eval.lm", raising=False)
        made = importlib.import_module("infinipot.eval.lm")
        yield made.PotLM
        sys.modules.pop("infinipot.eval.lm")


def rated(ids: list[int], count: int) -> tuple[float, bool]:
    """The stock model's log-likelihood of the last `count` ids, and whether they are its own choice."""
    logits = MODEL(torch.tensor([ids])).logits[0, -count - 1 : -1]
    chosen = torch.tensor(ids[-count:])
    likely = logits.log_softmax(dim=-1).gather(1, chosen[:, None]).sum()
    return float(likely), bool((logits.argmax(dim=-1) == chosen).all())


def own_choice(context: list[int], count: int) -> list[int]:
    ids = list(context)
    for _ in range(count):
        ids.append(int(MODEL(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(context) :]


def test_scores_are_stocks_in_the_order_of_the_requests(
    adapter: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contexts in any order are read once each; a continuation leaves nothing for the next."""
    one, two = random_ids(40, seed=1), random_ids(9, seed=2)
    requests = [
        (("a", "1"), one, random_ids(3, seed=3)),
        (("b", "2"), two, own_choice(two, 3)),
        (("a", "3"), one, own_choice(one, 2)),
        (("b", "4"), two, random_ids(1, seed=4)),
        (("a", "5"), one, random_ids(3, seed=3)),
    ]
    opened: list[int] = []
    append = Session.append
    monkeypatch.setattr(
        Session,
        "append",
        lambda self, ids, **more: opened.append(len(ids)) or append(self, ids, **more),
    )
    model = adapter(MODEL, TOKENIZER, pot_size=64)
    got = model._loglikelihood_tokens(requests, disable_tqdm=True)
    assert opened == [40, 9]
    expected = [rated(context + more, len(more)) for _, context, more in requests]
    assert [greedy for _, greedy in got] == [greedy for _, greedy in expected]
    assert [greedy for _, greedy in got][1:3] == [True, True]
    assert [value for value, _ in got] == pytest.approx([value for value, _ in expected], rel=1e-4)
    assert sorted(model.cached, key=lambda row: row[1][1]) == [
        ("loglikelihood", texts, score) for (texts, *_), score in zip(requests, got, strict=True)
    ]


def test_whole_texts_are_stocks_however_they_are_read(adapter: type) -> None:
    texts = ["word and word again, " * 6, "x"]
    requests = [SimpleNamespace(args=(text,)) for text in texts]
    expected = [
        rated([1, *ids], len(ids))[0]
        for ids in (TOKENIZER.encode(text, add_special_tokens=False) for text in texts)
    ]
    for options in ({"policy": "full"}, {"pot_size": 256, "chunk_tokens": 7}):
        model = adapter(MODEL, TOKENIZER, **options)
        got = model.loglikelihood_rolling(requests)
        assert got == pytest.approx(expected, rel=1e-4)
        assert model.cached == [
            ("loglikelihood_rolling", (text,), value)
            for text, value in zip(texts, got, strict=True)
        ]


def test_whole_texts_in_a_small_pot(adapter: type) -> None:
    """Every token counts once, also when the pot is distilled on the way: by the newest text."""
    ids = random_ids(300, vocabulary=len(TOKENIZER))
    model = adapter(MODEL, TOKENIZER, pot_size=96, distill_to=32, contrast="unrelated")
    losses: list[torch.Tensor] = []

    def note() -> None:
        count = session.stats.tokens_read - sum(map(len, losses))
        losses.append(session.pot.novelty[0, -count:])

    config = PotConfig(pot_size=96, distill_to=32, catalyst="plain")
    session = Session(ModelRunner(MODEL), None, config)
    session.score_all()
    session.append(ids, progress=note)
    assert session.stats.distillations >= 4
    expected = torch.cat(losses)
    assert expected.shape == (300,)
    assert model.total_loss(ids) == pytest.approx(float(expected.sum()), rel=1e-5)
    streaming = adapter(MODEL, TOKENIZER, policy="streaming", pot_size=96, distill_to=32)
    assert streaming.total_loss(ids) != pytest.approx(float(expected.sum()), rel=1e-5)
    with pytest.raises(ValueError, match="policy 'truncate' leaves out most"):
        adapter(MODEL, TOKENIZER, policy="truncate", pot_size=96).total_loss(ids)


def test_answers_are_those_of_generate(adapter: type) -> None:
    """The runner is made once, and the pot's options and the contrast's ids go along."""
    ids = torch.tensor([random_ids(120, vocabulary=len(TOKENIZER))])
    for options in ({}, {"contrast": "unrelated"}, {"contrast": "Tell a joke."}):
        config = PotConfig(pot_size=80, distill_to=24, **options)
        model = adapter(MODEL, TOKENIZER, pot_size=80, distill_to=24, **options)
        more = {"do_sample": False, "pad_token_id": 0, "eos_token_id": None}
        got = model._model_generate(ids, 126, [], **more)
        assert model.given["runner"] is model.runner
        assert model.given["pot"] == model.pot_config == config
        text = PROMPTS.get(options.get("contrast"), options.get("contrast"))
        wanted = TOKENIZER.encode(f"\n\n{text}\n") if text else []
        assert model.contrast_ids == wanted
        assert got.shape == (1, 126)
        stock = {**more, "custom_generate": generate, "pot": config, "contrast_ids": wanted}
        assert torch.equal(got, MODEL.generate(ids, max_length=126, **stock))


@pytest.mark.parametrize(
    ("options", "length", "end"),
    [
        ({"pot_size": 200, "distill_to": 100}, 90, 32),
        ({"pot_size": 96, "distill_to": 66}, 90, 15),
        ({"pot_size": 66, "distill_to": 64}, 5, 1),
        ({"pot_size": 200, "distill_to": 100}, 9, 9),
        ({"policy": "streaming", "pot_size": 96}, 90, 0),
        ({"policy": "full"}, 90, 0),
    ],
)
def test_the_end_of_a_context_is_the_catalyst(
    adapter: type, options: dict[str, Any], length: int, end: int
) -> None:
    """At most half of the room, and at most 32 ids; none where no policy looks at it."""
    context = random_ids(length)
    session = adapter(MODEL, TOKENIZER, **options)._session(context)
    catalyst = session._reader.last_catalyst
    assert (catalyst[0].tolist() if end else catalyst) == (context[-end:] if end else None)
    assert session.stats.tokens_read == length


def test_options_go_where_they_belong(adapter: type) -> None:
    assert REGISTERED["infinipot"] is adapter
    model = adapter(MODEL, TOKENIZER, policy="snapkv(window=5)", pot_size=96, batch_size=3, pool=3)
    assert model.options == {"batch_size": 3}
    assert model.pot_config == PotConfig(policy="snapkv", window=5, pot_size=96, pool=3)
    own = adapter(MODEL, TOKENIZER, policy=POLICIES["h2o"](gqa="max"))
    assert own.pot_config == PotConfig(policy="h2o", gqa="max")
    assert own.max_length > 10**9, "nothing is cut off"
    with pytest.warns(DeprecationWarning, match="persist is called score_memory now"):
        old = adapter(MODEL, TOKENIZER, persist=0.5)
    assert old.pot_config == PotConfig(score_memory=0.5)
    with pytest.raises(ValueError, match="did you mean 'infinipot'"):
        adapter(MODEL, TOKENIZER, policy="infinipto")
    for options in ({"catalyst": "general"}, {"answer_prefix": "1. "}):
        with pytest.raises(ValueError, match="the end of each prompt"):
            adapter(MODEL, TOKENIZER, **options)
    assert adapter(MODEL, TOKENIZER, catalyst="question").pot_config.catalyst == "question"


def test_a_model_by_name_is_loaded(adapter: type, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []

    def load(name: str, device: str, dtype: str, weights: str | None) -> tuple[Any, Any]:
        asked.append((name, device, dtype, weights))
        return MODEL, TOKENIZER

    monkeypatch.setattr(sys.modules["infinipot.eval.lm"], "load", load)
    assert adapter("some").model is MODEL
    assert adapter("other", device="cpu", dtype="float32", weights="int8").tokenizer is TOKENIZER
    assert asked == [("some", "auto", "auto", None), ("other", "cpu", "float32", "int8")]
