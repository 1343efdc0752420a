"""Ranks by several signals against plain loops, and what real sessions keep by them."""

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
from infinipot.policies.ranked import Ranked
from infinipot.scoring.ranks import pool_spans, ranks, span_numbers, union
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
                pool=3,
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


def plain_smooth(scores: list[float], policy: Ranked, layer: Observation) -> list[float]:
    if policy.sentences is None:
        side = layer.pool // 2
        windows = [scores[max(0, place - side) : place + side + 1] for place in range(len(scores))]
        return [sum(window) / len(window) for window in windows]
    spans = layer.require("sentences").tolist()[-len(scores) :]
    own = {
        span: [score for score, other in zip(scores, spans, strict=True) if other == span]
        for span in spans
    }
    reduce = max if policy.sentences == "max" else lambda some: sum(some) / len(some)
    reduced = {span: reduce(some) for span, some in own.items()}
    return [reduced[span] for span in spans]


def plain_ranks(scores: list[float]) -> list[float]:
    return [sum(other <= score + 1e-7 for other in scores) / len(scores) for score in scores]


def plain_mean(rows: list[list[float]]) -> list[float]:
    return [sum(column) / len(rows) for column in zip(*rows, strict=True)]


def plain_scores(layers: list[Observation], policy: Ranked, start: int) -> list[list[list[float]]]:
    """[layer][head] -> the ranks of the new entries."""
    found: dict[str, list[list[list[float]]]] = {}
    for name, weight in policy.weights.items():
        if not weight:
            continue
        rows = [
            [
                plain_ranks(plain_smooth(plain_signal(layer, name, head)[start:], policy, layer))
                for head in range(HEADS)
            ]
            for layer in layers
        ]
        if policy.shared_layers:
            one = plain_ranks(plain_mean([row for heads in rows for row in heads]))
            rows = [[one] * HEADS for _ in layers]
        elif policy.shared_heads:
            rows = [[plain_ranks(plain_mean(heads))] * HEADS for heads in rows]
        found[name] = rows
    largest = max(policy.weights.values())

    def joined(values: dict[str, float]) -> float:
        return max(1 - (1 - v) * largest / policy.weights[n] for n, v in values.items())

    return [
        [
            plain_ranks(
                [
                    joined({name: rows[number][head][place] for name, rows in found.items()})
                    for place in range(layers[0].index.shape[-1] - start)
                ]
            )
            for head in range(HEADS)
        ]
        for number in range(len(layers))
    ]


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
    [
        {},
        {"by_novelty": 0.0},
        {"by_keys": 0.3, "by_novelty": 1.0, "by_catalyst": 0.7},
        {"sentences": "mean"},
        {"sentences": "max", "shared_heads": True, "by_novelty": 0.3},
        {"sentences": "mean", "shared_layers": True},
        {"shared_layers": True, "score_memory": 0.5},
        {"by_keys": 0.0, "by_novelty": 0.0, "by_catalyst": 2, "score_memory": "once"},
    ],
)
def test_ranks_are_those_of_plain_loops(options: dict[str, Any]) -> None:
    policy = Ranked(**options)
    fade = {"once": 1.0}.get(policy.score_memory, policy.score_memory)
    layers = observations(OLD)
    expected = torch.tensor(plain_scores(layers, policy, OLD))
    found = policy.judge_layers(layers)
    assert_close("new", found[..., OLD:], expected, tolerance=1e-6)
    for layer, row in zip(layers, found, strict=True):
        assert_close("old", row[..., :OLD], fade * layer.past[0])
    together = policy.judge_layers([stacked(layers[:2]), *layers[2:]])
    assert torch.equal(together, found)


def test_the_first_distillation_and_a_policy_without_memory_rank_all() -> None:
    layers = observations(0)
    expected = torch.tensor(plain_scores(layers, Ranked(), 0))
    assert_close("all", Ranked().judge_layers(layers), expected, tolerance=1e-6)
    assert_close("one", Ranked().judge(layers[1]), expected[1:2], tolerance=1e-6)
    assert not PotConfig(policy="ranked", score_memory=0).policy.score_memory


def test_equal_scores_have_equal_ranks() -> None:
    scores = torch.tensor([[[3.0, 1.0, 3.0, 2.0]]])
    assert ranks(scores).tolist() == [[[4, 1, 4, 2]]]


def test_signals_get_places_by_weight() -> None:
    """Of 40 entries with opposite ranks by two signals, weights 3 : 1 give 15 : 5 of the best 20."""
    up = torch.arange(1, 41).float().view(1, 1, -1)
    best = union([up, up.flip(-1)], [3.0, 1.0])[0, 0].argsort(descending=True)[:20]
    assert sum(place >= 20 for place in best.tolist()) == 15


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
    assert pool_spans(scores, spans, "mean").tolist() == [[[2.0, 2.0, -5.0]]]
    assert pool_spans(scores, spans, "max").tolist() == [[[3.0, 3.0, -5.0]]]


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


def text_session(policy: Ranked, **options: Any) -> tuple[Session, list[int]]:
    """A session with a tokenizer, and the ids of 90 sentences."""
    tokenizer = make_tokenizer()
    model = make_tiny("llama", layers=3, vocab=len(tokenizer))
    config = PotConfig(policy=policy, **{"pot_size": 256, "distill_to": 192, **options})
    text = "".join(SENTENCES[(7 * n * n) % 4] for n in range(90))
    ids = tokenizer.encode(text, add_special_tokens=False)
    return Session(model, tokenizer, config, template=False), ids


class Twin:
    """Chooses beside a session, by plain loops, what each distillation keeps."""

    def __init__(self, policy: Ranked, ends: Tensor) -> None:
        self.policy = policy
        self.ends = ends
        self.known: dict[tuple[int, int], dict[int, float]] = {}
        """The ranks of the survivors by place in the text, of each layer and head."""
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
                pool=7,
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
        fade = self.policy.score_memory
        scores = [fade * old[place] for place in here[: len(old)]] + new
        free = range(len(here) - plan.recent)
        order = sorted(free, key=lambda slot: (-scores[slot], slot))
        slots = sorted(order[: plan.budget - plan.recent]) + list(range(len(here)))[len(free) :]
        self.known[number, head] = {here[slot]: scores[slot] for slot in slots}
        return [here[slot] for slot in slots]


@pytest.mark.parametrize(
    ("options", "keys"),
    [
        ({}, 1 << 26),
        ({"by_keys": 0.33, "by_novelty": 1.0, "score_memory": 0.5, "shared_heads": True}, 1),
        ({"sentences": "mean", "shared_layers": True}, 1 << 26),
        ({"sentences": "max", "recent": 0}, 1),
    ],
)
def test_a_session_keeps_what_plain_loops_choose(
    options: dict[str, Any], keys: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All layers are seen at once, or one after the other."""
    policy = Ranked(**options)
    session, ids = text_session(policy, pot_size=96, distill_to=60)
    twin = Twin(policy, sentence_ends(session.tokenizer, session.runner.vocabulary))
    whole = Distiller.distill

    def both(self: Distiller, pot: Any, *more: Any) -> None:
        expected = twin.expected(self, pot)
        whole(self, pot, *more)
        assert [[head.tolist() for head in layer.index[0]] for layer in pot.bounded] == expected
        twin.checked += 1

    monkeypatch.setattr(distill, "MOST_KEYS", keys)
    monkeypatch.setattr(Distiller, "distill", both)
    session.append(ids[:220])
    assert twin.checked == session.stats.distillations > 3


def test_whole_sentences_stay_in_all_heads_of_all_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the last one that fits, and the newest entries."""
    session, ids = text_session(Ranked(sentences="mean", shared_layers=True, recent=0))
    chunks = []
    whole = Distiller.distill
    monkeypatch.setattr(
        Distiller,
        "distill",
        lambda self, pot, *more: (chunks.append(pot.tokens_read), whole(self, pot, *more))[1],
    )
    session.append(ids)
    assert session.stats.distillations > 3
    ends = sentence_ends(session.tokenizer, session.runner.vocabulary)
    assert 0 < ends[ids].sum() < len(ids)
    sentence: list[int] = []
    number = 0
    for place, token in enumerate(ids):
        number += place in chunks  # a chunk's sentences are its own
        sentence.append(number)
        number += bool(ends[token])
    first, *others = (head for layer in kept(session) for head in layer)
    assert all(head == first for head in others)
    survivors = [place for place in first if place < chunks[-1]]
    assert len(survivors) == 192
    here = [sentence[place] for place in survivors]
    broken = [n for n in set(here) if here.count(n) != sentence[: chunks[-1]].count(n)]
    assert len(broken) <= session.stats.distillations
    assert len(set(here)) - len(broken) >= 8


def test_sentences_need_a_tokenizer() -> None:
    config = PotConfig(policy="ranked", sentences="max", pot_size=64)
    model = make_tiny("llama")
    with pytest.raises(ValueError, match="use a Session with a tokenizer"):
        Session(model, None, config)
    options = {"max_new_tokens": 2, "pad_token_id": 0, "custom_generate": generate}
    with pytest.raises(ValueError, match="use a Session with a tokenizer"):
        model.generate(torch.tensor([random_ids(100)]), pot=config, **options)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"by_keys": -1}, "by_keys=-1"),
        ({"by_novelty": "much"}, "by_novelty='much'"),
        ({"by_keys": 0, "by_novelty": 0}, "all weights are 0"),
        ({"sentences": "sum"}, "sentences"),
        ({"sentences": "mean", "score_memory": 0}, "score_memory above 0"),
        ({"sentences": "mean", "pool": 5}, "sentences='mean' and pool=5"),
        ({"shared_layers": 1}, "shared_layers=1"),
        ({"score_memory": "once"}, "score_memory='once'.*by_catalyst above 0"),
        ({"by_newest": 1.0}, "no option 'by_newest'"),
        ({"union": "mean"}, "no option 'union'"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises((ValueError, TypeError), match=why):
        Ranked(**options)


@pytest.mark.parametrize("catalyst", [0.0, 0.5])
def test_reading_in_parts_and_a_fork_keep_the_same(catalyst: float) -> None:
    config = PotConfig(policy=Ranked(by_catalyst=catalyst), pot_size=64)
    sessions = []
    for chunk in (64, 5):
        model = make_tiny("llama")
        one = Session(model, None, replace(config, chunk_tokens=chunk))
        one.append(random_ids(150), question=CATALYST)
        twin = one.fork()
        for session in (one, twin):
            session.append(random_ids(60, seed=2), question=CATALYST)
        assert kept(one) == kept(twin)
        sessions.append(one)
    assert kept(sessions[0]) == kept(sessions[1])


@pytest.mark.parametrize(("weight", "same"), [(0.0, True), (1.0, False)])
def test_a_question_counts_by_its_weight(weight: float, same: bool) -> None:
    """Without a weight of the catalyst none is read, and its room is the text's."""
    config = PotConfig(policy=Ranked(by_catalyst=weight), pot_size=64)
    sessions = [Session(make_tiny("llama"), None, config) for _ in range(2)]
    for session, question in zip(sessions, (CATALYST, CATALYST[::-1]), strict=True):
        session.append(random_ids(200), question=question)
        assert session.stats.peak_entries == 64
        assert (session._reader.last_catalyst is None) is same
    assert (kept(sessions[0]) == kept(sessions[1])) is same


@pytest.mark.parametrize("options", [{}, {"sentences": "mean", "shared_layers": True}])
def test_a_saved_pot_goes_on_as_the_session(options: dict[str, Any], tmp_path: Path) -> None:
    """With ranks of survivors and a begun sentence in it."""
    session, ids = text_session(Ranked(**options), pot_size=96, distill_to=60)
    session.append(ids[:150])
    session.save(tmp_path / "ranked.pot")
    loaded = Session.load(tmp_path / "ranked.pot", session.runner.model, session.tokenizer)
    assert loaded.config.policy.sentences == session.config.policy.sentences
    for one in (session, loaded):
        one.append(ids[150:300])
    assert kept(loaded) == kept(session)
    assert loaded.stats.distillations == session.stats.distillations > 4


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
