"""Relevance against plain loops, and what real sessions keep by it."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import assert_close, kept
from test_outliers import ENTRIES, HEADS, OLD, observations, stacked
from tiny import make_tiny, make_tokenizer

from infinipot import PotConfig, Session
from infinipot.policies import Observation
from infinipot.policies.relevance import LEAST, Relevance


def plain_scores(layers: list[Observation], weight: float, start: int) -> list[list[list[float]]]:
    """[layer][head] -> the scores of the new entries."""
    own = [(one.require("catalyst")[0, :, start:] * ENTRIES).tolist() for one in layers]
    count = ENTRIES - start
    spans = layers[0].require("sentences").tolist()[-count:]
    rows = [head for layer in own[len(own) // 2 :] for head in layer]
    means = [sum(row[entry] for row in rows) / len(rows) for entry in range(count)]
    sentences = []
    for span in spans:
        some = [mean for mean, other in zip(means, spans, strict=True) if other == span]
        sentences.append(weight * math.log(sum(some) / len(some) + LEAST))
    return [
        [
            [math.log(x + LEAST) + more for x, more in zip(head, sentences, strict=True)]
            for head in layer
        ]
        for layer in own
    ]


@pytest.mark.parametrize("weight", [2.0, 0.5, 0])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_scores_are_those_of_plain_loops(count: int, weight: float) -> None:
    """Of a single layer, of two, and of three, of which the later two make the sentences."""
    policy = Relevance(by_sentence=weight)
    layers = observations(OLD)[:count]
    before = [layer.require("catalyst").clone() for layer in layers]
    found = policy.judge_layers(layers)
    expected = torch.tensor(plain_scores(layers, weight, OLD))
    assert_close("new", found[..., OLD:], expected, tolerance=1e-5)
    for layer, attention, row in zip(layers, before, found, strict=True):
        assert torch.equal(row[..., :OLD], layer.past[0])
        assert torch.equal(layer.require("catalyst"), attention), "what was seen stays"
    for parts in ([stacked(layers)], [stacked(layers[:1]), *layers[1:]]):
        assert torch.equal(policy.judge_layers(parts), found)


def test_layers_that_are_judged_apart_have_their_own_later_half() -> None:
    policy = Relevance()
    layers = observations(OLD)
    for layer in layers:
        alone = torch.tensor(plain_scores([layer], 2.0, OLD))
        assert_close("alone", policy.judge(layer)[..., OLD:], alone, tolerance=1e-5)
    together = policy.judge_layers(layers)
    assert not torch.allclose(together[:1], policy.judge(layers[0]))
    own = Relevance(by_sentence=0)
    assert_close("own", own.judge_layers(layers)[:1], own.judge(layers[0]))


def test_early_layers_count_for_themselves_only() -> None:
    layers = observations(0)
    layers = [replace(one, sentences=torch.arange(3 + ENTRIES) // 4) for one in layers]
    found = Relevance().judge_layers(layers)
    layers[0] = replace(layers[0], catalyst=layers[0].require("catalyst").flip(-1))
    again = Relevance().judge_layers(layers)
    assert torch.equal(found[1:], again[1:])
    assert not torch.equal(found[0], again[0])


def test_the_first_distillation_scores_all() -> None:
    layers = observations(0)
    layers = [replace(one, sentences=torch.arange(3 + ENTRIES) // 4) for one in layers]
    expected = torch.tensor(plain_scores(layers, 2.0, 0))
    assert_close("all", Relevance().judge_layers(layers), expected, tolerance=1e-5)
    alone = torch.tensor(plain_scores(layers[:1], 2.0, 0))
    assert_close("one", Relevance().judge(layers[0]), alone, tolerance=1e-5)


def test_ranks_share_the_sentences_and_half_precision_is_scored_in_float32() -> None:
    """Two ranks with a head each give what one process with both gives."""
    layers = observations(OLD)
    whole = Relevance().judge_layers(layers)

    def half(head: int, mean: Any) -> list[Observation]:
        return [
            replace(
                one,
                catalyst=one.require("catalyst")[:, head : head + 1],
                past=one.past[:, head : head + 1],
                mean_of_ranks=mean,
            )
            for one in layers
        ]

    means: list[torch.Tensor] = []
    for head in range(HEADS):
        Relevance().judge_layers(half(head, lambda x: means.append(x) or x))
    shared = torch.stack(means).mean(dim=0)
    for head in range(HEADS):
        found = Relevance().judge_layers(half(head, lambda x: shared))
        assert_close("rank", found, whole[:, head : head + 1], tolerance=1e-5)
    bfloat = [replace(one, catalyst=one.require("catalyst").bfloat16()) for one in layers]
    assert Relevance().judge_layers(bfloat).dtype == torch.float32


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
