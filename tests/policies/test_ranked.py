"""Ranks by several signals against plain loops, and what real sessions keep by them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from helpers import CATALYST, assert_close, kept, random_ids
from tiny import make_tiny, make_tokenizer
from torch import Tensor

from infinipot import PotConfig, Session
from infinipot.engine.distill import Distiller
from infinipot.engine.observe import AHEAD, Watcher
from infinipot.policies import Observation
from infinipot.policies.ranked import Ranked
from infinipot.scoring.expected import expected_attention, statistics
from infinipot.scoring.ranks import pool_spans, ranks, span_numbers, union
from infinipot.scoring.representativeness import Scoring
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
                keys=keys,
                values=draw(8),
                rotate=lambda keys=keys: keys,
                index=torch.arange(ENTRIES).expand(1, HEADS, -1),
                past=draw().abs()[..., :old] if old else None,
                sentences=torch.tensor([0] * 3 + SPANS),  # the first three are pinned
                window=4,
                pool=3,
                **{name: draw().abs() for name in ("novelty", "catalyst", "newest", "expected")},
            )
        )
    return found


def plain_signal(layer: Observation, name: str, head: int) -> list[float]:
    if name == "keys":
        unit = [key / key.norm() for key in layer.keys[0, head]]
        anchor = sum(unit) / len(unit)
        return [-float(key @ anchor / anchor.norm()) for key in unit]
    if name == "values":
        return [float(value.norm()) for value in layer.values[0, head]]
    scores = layer.require(name)[0, head].tolist()
    if name == "newest":
        scores = [score / min(4, ENTRIES - place) for place, score in enumerate(scores)]
    return scores


def plain_smooth(scores: list[float], policy: Ranked) -> list[float]:
    if policy.sentences is None:
        windows = [scores[max(0, place - 1) : place + 2] for place in range(len(scores))]
        return [sum(window) / len(window) for window in windows]
    own = {
        span: [score for score, other in zip(scores, SPANS, strict=True) if other == span]
        for span in SPANS
    }
    reduce = max if policy.sentences == "max" else lambda some: sum(some) / len(some)
    return [reduce(own[span]) for span in SPANS]


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
                plain_ranks(plain_smooth(plain_signal(layer, name, head)[start:], policy))
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
        shares = {name: policy.weights[name] / largest for name in values}
        if policy.union == "mean":
            return sum(shares[n] * v for n, v in values.items()) / sum(shares.values())
        return max(1 - (1 - v) / shares[n] for n, v in values.items())

    return [
        [
            plain_ranks(
                [
                    joined({name: rows[number][head][place] for name, rows in found.items()})
                    for place in range(ENTRIES - start)
                ]
            )
            for head in range(HEADS)
        ]
        for number in range(len(layers))
    ]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"by_newest": 0.5, "by_values": 2.0, "by_catalyst": 0.0},
        {"union": "mean", "by_expected": 0.7, "by_keys": 0.0},
        {"sentences": "mean"},
        {"sentences": "max", "shared_heads": True, "by_novelty": 0.3},
        {"sentences": "mean", "shared_layers": True, "union": "mean"},
        {"shared_layers": True, "score_memory": 0.5},
        {"by_keys": 0.0, "by_novelty": 0.0, "score_memory": "once"},
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


def test_the_first_distillation_and_a_policy_without_memory_rank_all() -> None:
    layers = observations(0)
    expected = torch.tensor(plain_scores(layers, Ranked(), 0))
    assert_close("all", Ranked().judge_layers(layers), expected, tolerance=1e-6)
    assert_close("one", Ranked().judge(layers[1]), expected[1:2], tolerance=1e-6)
    assert not PotConfig(policy="ranked", score_memory=0).policy.score_memory


def test_equal_scores_have_equal_ranks() -> None:
    scores = torch.tensor([[[3.0, 1.0, 3.0, 2.0]]])
    assert ranks(scores).tolist() == [[[4, 1, 4, 2]]]


def test_any_gives_places_by_weight() -> None:
    """Of 40 entries with opposite ranks by two signals, weights 3 : 1 give 15 : 5 of the best 20."""
    up = torch.arange(1, 41).float().view(1, 1, -1)
    best = union([up, up.flip(-1)], [3.0, 1.0], "any")[0, 0].argsort(descending=True)[:20]
    assert sum(place >= 20 for place in best.tolist()) == 15


@pytest.mark.parametrize(("longest", "numbers"), [(64, [0, 0, 0, 1, 2, 2]), (2, [0, 0, 1, 2, 3, 3])])
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


def test_expected_attention_is_that_of_drawn_queries() -> None:
    """The mean of exp(q k) over normal queries, by the formula of their moments, for each query head."""
    random = torch.Generator().manual_seed(3)
    queries = torch.randn(4, 50, 6, generator=random)
    keys = torch.randn(2, 9, 6, generator=random)
    values = torch.randn(2, 9, 6, generator=random)
    mean, covariance = statistics(queries)
    found = expected_attention(mean, covariance, keys, values, Scoring(0.4))
    for head in range(2):
        rows = []
        for group in (2 * head, 2 * head + 1):
            centre = queries[group].mean(0)
            spread = torch.cov(queries[group].T, correction=0)
            logs = [0.4 * k @ centre + 0.08 * k @ spread @ k for k in keys[head]]
            rows.append(torch.stack(logs).softmax(dim=0))
        assert_close("head", found[head], sum(rows) / 2 * values[head].norm(dim=-1), tolerance=1e-5)


def test_queries_to_come_are_turned_to_their_positions() -> None:
    """The mean over the next positions of the rotated mean query, and its covariance, one by one."""
    session = Session(
        make_tiny("llama"), None, PotConfig(policy=Ranked(by_expected=1.0, window=9), pot_size=64)
    )
    session.append(random_ids(40), question=CATALYST)
    pot = session.pot
    layer = pot.bounded[1]
    found = Watcher(session.runner, session._reader.plan).expected(1, layer)
    mean, covariance = statistics(layer.attention_stats.queries[0, :, -9:])
    width = mean.shape[-1]
    turns = torch.zeros(width, width)
    for position in range(40, 40 + AHEAD):
        cos, sin = layer.rotation.table(torch.tensor([position]))
        turn = torch.zeros(width, width)
        for pair in range(width // 2):
            other = pair + width // 2
            turn[pair, pair] = turn[other, other] = cos[0, pair]
            turn[pair, other] = -sin[0, pair]
            turn[other, pair] = sin[0, pair]
        turns += turn / AHEAD
    scoring = session.runner.scorings[1]
    expected = expected_attention(
        mean @ turns.T,
        turns @ covariance @ turns.T,
        layer.read_keys(0, 40)[0],
        layer.read_values(0, 40)[0],
        scoring,
    )
    assert_close("expected", found[0], expected, tolerance=1e-5)


SENTENCES = ["one two.", " four!", " six.", " seven eight?"]


def test_whole_sentences_stay_in_all_heads_of_all_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the last one that fits, and the newest entries."""
    tokenizer = make_tokenizer()
    model = make_tiny("llama", layers=3, vocab=len(tokenizer))
    policy = Ranked(sentences="mean", shared_layers=True, recent=0, by_catalyst=0.0)
    config = PotConfig(policy=policy, pot_size=256, distill_to=192)
    session = Session(model, tokenizer, config, template=False)
    text = "".join(SENTENCES[(7 * n * n) % 4] for n in range(90))
    ids = tokenizer.encode(text, add_special_tokens=False)
    chunks = []
    whole = Distiller.distill
    monkeypatch.setattr(
        Distiller,
        "distill",
        lambda self, pot, *more: (chunks.append(pot.tokens_read), whole(self, pot, *more))[1],
    )
    session.append(ids)
    assert session.stats.distillations > 3
    ends = sentence_ends(tokenizer, session.runner.vocabulary)
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
    with pytest.raises(ValueError, match="no tokenizer"):
        Session(make_tiny("llama"), None, PotConfig(policy="ranked", sentences="max"))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"by_keys": -1}, "by_keys=-1"),
        ({"by_keys": 0, "by_novelty": 0, "by_catalyst": 0}, "all weights are 0"),
        ({"union": "sum"}, "union"),
        ({"sentences": "sum"}, "sentences"),
        ({"sentences": "mean", "score_memory": 0}, "score_memory above 0"),
        ({"shared_layers": 1}, "shared_layers=1"),
        ({"window": 0}, "window"),
        ({"by_catalyst": 0, "score_memory": "once"}, "score_memory='once'"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises((ValueError, TypeError), match=why):
        Ranked(**options)


def test_reading_in_parts_and_a_fork_keep_the_same() -> None:
    config = PotConfig(policy=Ranked(by_newest=1.0, by_expected=1.0, window=6), pot_size=64)
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
