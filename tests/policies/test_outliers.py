"""Outliers against plain loops, and what real sessions keep by them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import CATALYST, assert_close, kept, random_ids
from tiny import make_tiny, make_tokenizer
from torch import Tensor

from infinipot import PotConfig, Session, generate
from infinipot.cache.choice import rotated_keys
from infinipot.engine import distill
from infinipot.engine.distill import Distiller, score_novelty
from infinipot.policies import Observation
from infinipot.policies.outliers import Outliers
from infinipot.scoring.outliers import span_means, span_numbers, standard_scores
from infinipot.text.sentences import ends_sentence, sentence_ends

ENTRIES, OLD, LAYERS, HEADS = 30, 12, 3, 2
SPANS = [0] * 4 + [1] * 7 + [2] + [3] * 6


def observations(old: int) -> list[Observation]:
    random = torch.Generator().manual_seed(5)

    def draw(*more: int) -> Tensor:
        return torch.randn(1, HEADS, ENTRIES, *more, generator=random)

    found = []
    for _ in range(LAYERS):
        keys = draw(8)
        found.append(
            Observation(
                keys=draw(8),
                values=draw(8),
                rotate=lambda keys=keys: keys,
                index=torch.arange(ENTRIES).expand(1, HEADS, -1),
                past=draw().abs()[..., :old] if old else None,
                sentences=torch.tensor([0] * 3 + SPANS),  # the first three are pinned
                **{name: draw().abs() for name in ("novelty", "catalyst")},
            )
        )
    return found


def plain_signal(layer: Observation, name: str, head: int) -> list[float]:
    if name != "keys":
        return layer.require(name)[0, head].tolist()
    unit = [key / key.norm() for key in layer.rotated[0, head]]
    anchor = sum(unit) / len(unit)
    return [-float(key @ anchor / anchor.norm()) for key in unit]


def plain_standard(scores: list[float]) -> list[float]:
    mean = sum(scores) / len(scores)
    deviation = (sum((score - mean) ** 2 for score in scores) / len(scores)) ** 0.5
    return [(score - mean) / max(deviation, 1e-6) for score in scores]


def plain_scores(layers: list[Observation], policy: Outliers, start: int) -> list[list[Any]]:
    """[layer][head] -> the scores of the new entries."""
    totals = []
    for layer in layers:
        for head in range(HEADS):
            keys = plain_standard(plain_signal(layer, "keys", head)[start:])
            if policy.by_novelty:
                novelty = plain_standard(plain_signal(layer, "novelty", head)[start:])
                keys = [k + policy.by_novelty * n for k, n in zip(keys, novelty, strict=True)]
            totals.append(keys)
    found = [plain_standard(total) for total in totals]
    if policy.by_sentence:
        everywhere = [sum(column) / len(totals) for column in zip(*totals, strict=True)]
        spans = layers[0].require("sentences").tolist()[-len(everywhere) :]
        means = []
        for span in spans:
            some = [x for x, other in zip(everywhere, spans, strict=True) if other == span]
            means.append(sum(some) / len(some))
        whole = plain_standard(means)
        found = [
            [own + policy.by_sentence * more for own, more in zip(row, whole, strict=True)]
            for row in found
        ]
    return [found[number * HEADS :][:HEADS] for number in range(len(layers))]


def stacked(layers: list[Observation]) -> Observation:
    """The same as one observation of several layers, as the engine makes it."""
    tensors = {
        name: torch.cat([getattr(layer, name) for layer in layers])
        for name in ("index", "novelty", "catalyst", "past")
    }
    keys = torch.cat([layer.rotated for layer in layers])
    return replace(layers[0], rotate=lambda: keys, **tensors)


@pytest.mark.parametrize(
    "options",
    [{}, {"by_novelty": 0.0}, {"by_novelty": 2.0, "by_sentence": 0.5}, {"by_sentence": 0}],
)
def test_scores_are_those_of_plain_loops(options: dict[str, Any]) -> None:
    policy = Outliers(**options)
    layers = observations(OLD)
    expected = torch.tensor(plain_scores(layers, policy, OLD))
    found = policy.judge_layers(layers)
    assert_close("new", found[..., OLD:], expected, tolerance=1e-5)
    for layer, row in zip(layers, found, strict=True):
        assert_close("old", row[..., :OLD], layer.past[0])
    together = policy.judge_layers([stacked(layers[:2]), *layers[2:]])
    assert torch.equal(together, found)


def test_the_first_distillation_scores_all() -> None:
    layers = observations(0)
    layers = [replace(layer, sentences=torch.tensor([0] * 12 + SPANS)) for layer in layers]
    expected = torch.tensor(plain_scores(layers, Outliers(), 0))
    assert_close("all", Outliers().judge_layers(layers), expected, tolerance=1e-5)
    alone = torch.tensor(plain_scores(layers[1:2], Outliers(), 0))
    assert_close("one", Outliers().judge(layers[1]), alone, tolerance=1e-5)


def test_equal_scores_do_not_stand_out() -> None:
    assert standard_scores(torch.full((1, 2, 5), 3.0)).tolist() == [[[0.0] * 5] * 2]
    assert standard_scores(torch.tensor([[[7.0]]])).tolist() == [[[0.0]]]
    assert standard_scores(torch.tensor([1, 3])).tolist() == [-1.0, 1.0]


@pytest.mark.parametrize(
    ("longest", "numbers"), [(64, [0, 0, 0, 1, 2, 2]), (2, [0, 0, 1, 2, 3, 3])]
)
def test_spans_end_with_sentences_and_have_a_greatest_length(
    longest: int, numbers: list[int]
) -> None:
    ends = torch.tensor([False, False, True, True, False, False])
    assert span_numbers(ends, longest).tolist() == numbers


def test_a_span_has_one_score() -> None:
    scores = torch.tensor([[[1.0, 3.0, -5.0]]])
    spans = torch.tensor([0, 0, 1])
    assert span_means(scores, spans).tolist() == [[[2.0, 2.0, -5.0]]]


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        ("end.", True),
        ('?" ', True),
        ("!\n", True),
        ("\n\n", True),
        ("。", True),
        ("word", False),
        ("\n", False),
        (",", False),
        ("3.5", False),
    ],
)
def test_what_ends_a_sentence(text: str, ends: bool) -> None:
    assert ends_sentence(text) is ends


SENTENCES = ["one two.", " four!", " six.", " seven eight?"]


def text_session(policy: Outliers, **options: Any) -> tuple[Session, list[int]]:
    """A session with a tokenizer, and the ids of 90 sentences."""
    tokenizer = make_tokenizer()
    model = make_tiny("llama", layers=3, vocab=len(tokenizer))
    config = PotConfig(policy=policy, **{"pot_size": 256, "distill_to": 192, **options})
    text = "".join(SENTENCES[(7 * n * n) % 4] for n in range(90))
    ids = tokenizer.encode(text, add_special_tokens=False)
    return Session(model, tokenizer, config, template=False), ids


class Twin:
    """Chooses beside a session, by plain loops, what each distillation keeps."""

    def __init__(self, policy: Outliers, ends: Tensor) -> None:
        self.policy = policy
        self.ends = ends
        self.known: dict[tuple[int, int], dict[int, float]] = {}
        """The scores of the survivors by place in the text, of each layer and head."""
        self.checked = 0

    def sentences(self, ids: list[int]) -> Tensor:
        numbers = []
        number = length = 0
        for token in ids:
            if length == 64:
                number += 1
                length = 0
            numbers.append(number)
            length += 1
            if self.ends[token]:
                number += 1
                length = 0
        return torch.tensor(numbers)

    def expected(self, distiller: Distiller, pot: Any) -> list[list[list[int]]]:
        """[layer][head] -> the places of the survivors."""
        score_novelty(distiller.runner, pot)
        layers = []
        for layer in pot.bounded:
            index, novelty = pot.described([layer])
            keys = layer.read_keys(0, layer.length)
            seen = Observation(
                keys=keys,
                values=keys,
                rotate=lambda keys=keys: keys,
                index=index,
                novelty=novelty,
                sentences=self.sentences(pot.fresh[0].tolist()),
            )
            layers.append(seen)
        places = [[head.tolist() for head in layer.index[0]] for layer in layers]
        start = len(self.known.get((0, 0), ()))
        new = plain_scores(layers, self.policy, start)
        plan = distiller.plan.layers[0]
        return [
            [self.best(n, k, here, new[n][k], plan) for k, here in enumerate(heads)]
            for n, heads in enumerate(places)
        ]

    def best(self, number: int, head: int, here: list[int], new: list[float], plan: Any) -> Any:
        old = self.known.get((number, head), {})
        scores = [old[place] for place in here[: len(old)]] + new
        free = range(len(here) - plan.recent)
        order = sorted(free, key=lambda slot: (-scores[slot], slot))
        slots = sorted(order[: plan.budget - plan.recent]) + list(range(len(here)))[len(free) :]
        self.known[number, head] = {here[slot]: scores[slot] for slot in slots}
        return [here[slot] for slot in slots]


@pytest.mark.parametrize(
    ("options", "keys"),
    [({}, 1 << 26), ({"by_novelty": 1.0, "recent": 0}, 1), ({"by_sentence": 3.0, "sinks": 2}, 1)],
)
def test_a_session_keeps_what_plain_loops_choose(
    options: dict[str, Any], keys: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All layers are seen at once, or one after the other."""
    policy = Outliers(**options)
    session, ids = text_session(policy, pot_size=96, distill_to=60)
    twin = Twin(policy, sentence_ends(session.tokenizer, session.runner.vocabulary))
    whole = Distiller.distill

    def both(self: Distiller, pot: Any, *more: Any) -> None:
        expected = twin.expected(self, pot)
        whole(self, pot, *more)
        assert [[head.tolist() for head in layer.index[0]] for layer in pot.bounded] == expected
        twin.checked += 1

    monkeypatch.setitem(distill.MOST_KEYS, "cpu", keys)
    monkeypatch.setattr(Distiller, "distill", both)
    session.append(ids[:220])
    assert twin.checked == session.stats.distillations > 3


def test_sentences_stay_whole_if_only_they_count() -> None:
    """In all heads of all layers."""
    session, ids = text_session(Outliers(by_sentence=1e6, recent=0))
    session.append(ids[:300])
    assert session.stats.distillations == 1
    ends = sentence_ends(session.tokenizer, session.runner.vocabulary)[ids].tolist()
    sentence = [sum(ends[:place]) for place in range(256)]
    whole = []
    for places in (head for layer in kept(session) for head in layer):
        here = [sentence[place] for place in places if place < 256]
        whole.append({n for n in here if here.count(n) == sentence.count(n)})
        assert len(set(here) - whole[-1]) <= 1
    assert all(numbers == whole[0] for numbers in whole)
    assert len(whole[0]) > 8


def test_without_a_tokenizer_sentences_are_64_tokens() -> None:
    session = Session(make_tiny("llama"), None, PotConfig(policy="outliers", pot_size=256))
    session.append(random_ids(300))
    watcher = session._reader.distiller.watcher
    assert watcher.sentences(session.pot).tolist() == [n // 64 for n in range(44)]
    model = make_tiny("llama")
    options = {"max_new_tokens": 2, "pad_token_id": 0, "custom_generate": generate}
    ids = torch.tensor([random_ids(100)])
    assert model.generate(ids, pot=PotConfig(pot_size=64), **options).shape == (1, 102)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"by_novelty": -1}, "by_novelty=-1"),
        ({"by_sentence": "much"}, "by_sentence='much'"),
        ({"by_keys": 1.0}, "no option 'by_keys'"),
        ({"pool": 7}, "no option 'pool'"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises((ValueError, TypeError), match=why):
        Outliers(**options)


def test_reading_in_parts_and_a_fork_keep_the_same() -> None:
    sessions = []
    for chunk in (64, 5):
        config = PotConfig(policy="outliers", pot_size=64, chunk_tokens=chunk)
        one = Session(make_tiny("llama"), None, config)
        one.append(random_ids(150))
        twin = one.fork()
        for session in (one, twin):
            session.append(random_ids(60, seed=2))
        assert kept(one) == kept(twin)
        sessions.append(one)
    assert kept(sessions[0]) == kept(sessions[1])


def test_a_saved_pot_goes_on_as_the_session(tmp_path: Path) -> None:
    """With scores of survivors and a begun sentence in it."""
    session, ids = text_session(Outliers(), pot_size=96, distill_to=60)
    session.append(ids[:150])
    session.save(tmp_path / "outliers.pot")
    loaded = Session.load(tmp_path / "outliers.pot", session.runner.model, session.tokenizer)
    for one in (session, loaded):
        one.append(ids[150:300])
    assert kept(loaded) == kept(session)
    assert loaded.stats.distillations == session.stats.distillations > 4


# ---------------------------------------------------------------- the default without a question


TOKENIZER = make_tokenizer()
MODEL = make_tiny("llama", vocab=len(TOKENIZER))


def opened(**options: Any) -> Session:
    return Session(MODEL, TOKENIZER, PotConfig(pot_size=160, **options), template=False)


@pytest.mark.parametrize(
    ("options", "question", "policy", "catalyst"),
    [
        ({}, None, "outliers", None),
        ({"sinks": 2, "recent": 1}, None, "outliers", None),
        ({}, CATALYST, "infinipot", "question"),
        ({"novelty": 0.5}, None, "infinipot", "general"),
        ({"catalyst": "general"}, None, "infinipot", "general"),
        ({"catalyst": "general"}, CATALYST, "infinipot", "general"),
        ({"preset": "paper"}, None, "infinipot", "general"),
    ],
)
def test_the_question_decides_who_chooses(
    options: dict[str, Any], question: list[int] | None, policy: str, catalyst: str | None
) -> None:
    session = opened(**options)
    session.append(random_ids(400), question=question)
    plan = session._reader.plan
    assert plan.policy.name == policy
    assert (session._reader.last_catalyst is None) is (policy == "outliers")
    if catalyst is not None:
        options = {"catalyst": catalyst, **options}
    twin = opened(policy=policy, **options)
    twin.append(random_ids(400), question=question)
    assert kept(session) == kept(twin)
    assert session.config.policy.name == "infinipot"


def test_who_chooses_is_open_until_the_first_distillation() -> None:
    session = opened()
    session.append(random_ids(20))
    session.append(random_ids(200, seed=3), question=CATALYST)
    assert session._reader.plan.policy.name == "infinipot"
    session.append(random_ids(200, seed=4))
    assert session._reader.plan.policy.name == "infinipot"
    session = opened()
    session.append(random_ids(20), question=CATALYST)
    session.append(random_ids(200, seed=3))
    assert session._reader.plan.policy.name == "outliers"
    session.append(random_ids(200, seed=4), question=CATALYST)
    assert session._reader.last_catalyst is None


@pytest.mark.parametrize("count", [30, 400])
def test_a_saved_pot_remembers_who_chooses(count: int, tmp_path: Path) -> None:
    session = opened()
    session.append(random_ids(count))
    session.save(tmp_path / "default.pot")
    loaded = Session.load(tmp_path / "default.pot", MODEL, TOKENIZER)
    for one in (session, loaded):
        one.append(random_ids(200, seed=3))
    assert kept(loaded) == kept(session)
    assert loaded._reader.plan.policy.name == "outliers"


@pytest.mark.parametrize("options", [{}, {"pot_dtype": "int8"}, {"context_reset": False}])
def test_keys_of_layers_are_those_that_attention_reads(options: dict[str, Any]) -> None:
    """Layers that rotate alike are rotated together, others one by one."""
    session = Session(make_tiny("llama"), None, PotConfig(policy="keydiff", pot_size=64, **options))
    session.append(random_ids(100))
    layers = session.pot.bounded
    expected = torch.cat([one.read_keys(3, one.length) for one in layers])
    assert torch.equal(rotated_keys(layers, 3), expected)
    layers[-1].rotation = replace(layers[-1].rotation)
    assert torch.equal(rotated_keys(layers, 3), expected)
