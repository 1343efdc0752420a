"""Relevance against plain loops, and what real sessions keep by it."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers import assert_close, kept
from test_outliers import ENTRIES, HEADS, OLD, observations, stacked
from tiny import make_tiny, make_tokenizer

from infinipot import PotConfig, Session
from infinipot.policies import Observation
from infinipot.policies.relevance import LEAST, Relevance


def plain_scores(layer: Observation, weight: float, start: int) -> list[list[float]]:
    """[head] -> the scores of the new entries of a layer."""
    own = (layer.require("catalyst")[0, :, start:] * ENTRIES).tolist()
    count = len(own[0])
    spans = layer.require("sentences").tolist()[-count:]
    heads = [sum(row[entry] for row in own) / HEADS for entry in range(count)]
    found = []
    for row in own:
        scores = []
        for entry in range(count):
            some = [heads[other] for other in range(count) if spans[other] == spans[entry]]
            sentence = sum(some) / len(some)
            scores.append(math.log(row[entry] + LEAST) + weight * math.log(sentence + LEAST))
        found.append(scores)
    return found


@pytest.mark.parametrize("weight", [2.0, 0.5, 0])
def test_scores_are_those_of_plain_loops(weight: float) -> None:
    policy = Relevance(by_sentence=weight)
    layers = observations(OLD)
    found = policy.judge_layers(layers)
    for layer, row in zip(layers, found, strict=True):
        expected = torch.tensor(plain_scores(layer, weight, OLD))
        assert_close("new", row[..., OLD:], expected, tolerance=1e-5)
        assert torch.equal(row[..., :OLD], layer.past[0])
        assert torch.equal(policy.judge(layer)[0], row), "layers do not depend on each other"
    assert torch.equal(policy.judge_layers([stacked(layers[:2]), *layers[2:]]), found)


def test_the_first_distillation_scores_all() -> None:
    layer = replace(observations(0)[0], sentences=torch.arange(3 + ENTRIES) // 4)
    expected = torch.tensor(plain_scores(layer, 2.0, 0))
    assert_close("all", Relevance().judge(layer)[0], expected, tolerance=1e-5)


def session_of(policy: Relevance) -> Session:
    text = "The key lies under the piano. A dog ran away, and nobody saw it! It was cold. " * 6
    session = Session(
        make_tiny("llama"),
        make_tokenizer(size=100),
        PotConfig(pot_size=128, distill_to=64, policy=policy),
    )
    session.append(text, question="Where is the key?")
    return session


def test_sentences_stay_whole_and_files_go_on(tmp_path: Path) -> None:
    """With the sentence alone, entries of one sentence have one score: what stays are whole sentences, but for the one that has no more room."""
    session = session_of(Relevance(by_sentence=1e6, recent=0))
    assert session.stats.distillations >= 5
    entry = session_of(Relevance(by_sentence=0, recent=0))
    gaps = [
        sum(b - a > 1 for a, b in itertools.pairwise(head))
        for layer in kept(session)
        for head in layer
    ]
    alone = [
        sum(b - a > 1 for a, b in itertools.pairwise(head))
        for layer in kept(entry)
        for head in layer
    ]
    assert sum(gaps) < sum(alone) / 2
    session.save(tmp_path / "a.pot")
    again = Session.load(tmp_path / "a.pot", session.runner.model, session.tokenizer)
    assert kept(again) == kept(session)
    for one in (session, again):
        one.append("Then all was quiet. " * 8, question="Where is the key?")
    assert kept(again) == kept(session)


@pytest.mark.parametrize("value", [-1, float("nan"), "much"])
def test_bad_weights(value: object) -> None:
    with pytest.raises((TypeError, ValueError), match="by_sentence"):
        Relevance(by_sentence=value)  # type: ignore[arg-type]
