"""The least and the largest value of every option of a policy, and the defaults that depend on sizes."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from infinipot.engine.plan import checked_needs
from infinipot.policies import POLICIES, Observation, Policy, UnknownOption, policy_of
from infinipot.policies.registry import (
    builtin,
    class_of,
    documentation,
    literals,
    path_of,
    with_options,
)
from infinipot.scoring.selection import pool

ALLOWED: list[tuple[str, dict[str, Any]]] = [
    ("infinipot", {"novelty": 0}),
    ("infinipot", {"novelty": 1}),
    ("infinipot", {"novelty": 1.0}),
    ("infinipot", {"sinks": 0, "recent": 0}),
    ("infinipot", {"pool": 0}),
    ("infinipot", {"pool": 1}),
    ("infinipot", {"pool": 3, "pool_mode": "trailing"}),
    ("infinipot", {"score_memory": 0}),
    ("infinipot", {"score_memory": 1}),
    ("infinipot", {"score_memory": "once"}),
    ("infinipot", {"contrast": "unrelated", "novelty": 0.99}),
    ("infinipot", {"catalyst": "A prompt of several words."}),
    ("infinipot", {"catalyst": "漢字"}),
    ("infinipot", {"answer_prefix": ""}),
    ("snapkv", {"window": 1}),
    ("tova", {"window": 1}),
    ("streaming", {"sinks": 0}),
    ("self_extend", {"group": 1, "neighbours": 1}),
    ("kvzip", {"catalyst": "question", "score_memory": 0.5}),
    ("h2o", {"gqa": "sum", "score_memory": 0.5}),
]
REFUSED: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    ("infinipot", {"novelty": -0.01}, ValueError, "novelty=-0.01.*between 0 and 1"),
    ("infinipot", {"novelty": 1.01}, ValueError, "novelty=1.01.*between 0 and 1"),
    ("infinipot", {"novelty": float("nan")}, ValueError, "novelty=nan"),
    ("infinipot", {"novelty": True}, TypeError, "novelty=True"),
    ("infinipot", {"novelty": "0.5"}, TypeError, "novelty='0.5'.*number between 0 and 1$"),
    ("infinipot", {"sinks": -1}, ValueError, "sinks=-1.*at least 0"),
    ("infinipot", {"sinks": True}, TypeError, "sinks=True"),
    ("infinipot", {"recent": -1}, ValueError, "recent=-1.*at least 0"),
    ("infinipot", {"recent": 1.0}, TypeError, "recent=1.0"),
    ("infinipot", {"pool": -1}, ValueError, "pool=-1.*at least 0"),
    ("infinipot", {"pool": 2}, ValueError, "pool=2.*try 3"),
    ("infinipot", {"pool_mode": "mean"}, ValueError, "unknown pool_mode 'mean'"),
    ("infinipot", {"pool_mode": 1}, TypeError, "pool_mode=1"),
    ("infinipot", {"shared_heads": 1}, TypeError, "shared_heads=1"),
    ("infinipot", {"gqa": None}, TypeError, "gqa=None"),
    ("infinipot", {"score_memory": 1.5}, ValueError, "score_memory=1.5.*between 0 and 1"),
    ("infinipot", {"score_memory": "twice"}, TypeError, "number between 0 and 1, or 'once'$"),
    (
        "infinipot",
        {"score_memory": "once", "novelty": 1},
        ValueError,
        "'once' goes by the catalyst",
    ),
    (
        "infinipot",
        {"contrast": "unrelated", "novelty": 1},
        ValueError,
        "contrast='unrelated' goes by",
    ),
    ("infinipot", {"contrast": "question"}, ValueError, "unknown contrast 'question'"),
    (
        "infinipot",
        {"contrast": "facts", "catalyst": "plain"},
        ValueError,
        "not with catalyst='plain'",
    ),
    ("infinipot", {"catalyst": "generl"}, ValueError, "did you mean 'general'"),
    ("infinipot", {"catalyst": 3}, TypeError, "catalyst=3"),
    ("infinipot", {"answer_prefix": 3}, TypeError, "answer_prefix=3"),
    ("h2o", {"score_memory": "once"}, ValueError, "'once' goes by the catalyst"),
    ("kvzip", {"score_memory": "once"}, ValueError, "'once' goes by the catalyst"),
    ("snapkv", {"window": 0}, ValueError, "window=0.*at least 1"),
    ("tova", {"window": 0}, ValueError, "window=0.*at least 1"),
    ("streaming", {"sinks": -1}, ValueError, "sinks=-1"),
    ("sliding_window", {"sinks": -1}, ValueError, "sinks=-1"),
    ("sliding_window", {"sinks": 0.5}, TypeError, "sinks=0.5"),
    ("self_extend", {"group": 0}, ValueError, "group=0.*at least 1"),
    ("self_extend", {"neighbours": 0}, ValueError, "neighbours=0.*at least 1"),
    ("tova", {"shared_heads": 1}, TypeError, "shared_heads=1"),
    ("snapkv", {"pool": 2}, ValueError, "pool=2"),
    ("kvzip", {"catalyst": 3}, TypeError, "catalyst=3"),
    ("h2o", {"gqa": "least"}, ValueError, "unknown gqa 'least'"),
    ("keydiff", {"pool": 2}, ValueError, "pool=2"),
    ("random", {"recent": -1}, ValueError, "recent=-1"),
    ("sirllm", {"sinks": -1}, ValueError, "sinks=-1"),
    ("streaming", {"recent": 3}, UnknownOption, "its options: sinks"),
    ("full", {"sinks": 3}, UnknownOption, r"its options: none\)"),
]


@pytest.mark.parametrize(("name", "options"), ALLOWED, ids=str)
def test_allowed(name: str, options: dict[str, Any]) -> None:
    policy = POLICIES[name](**options)
    assert {option: getattr(policy, option) for option in options} == options
    assert policy.values == {**POLICIES[name]().values, **options}


@pytest.mark.parametrize(("name", "options", "error", "words"), REFUSED, ids=str)
def test_refused(name: str, options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        POLICIES[name](**options)


def test_defaults_by_size() -> None:
    recent = {
        name: [policy().newest_kept(budget) for budget in (7, 24, 100)]
        for name, policy in POLICIES.items()
    }
    assert recent == {
        **{key: [0, 0, 0] for key in POLICIES},
        "infinipot": [0, 2, 8],
        "outliers": [0, 2, 8],
        "relevance": [0, 2, 8],
        "h2o": [3, 12, 50],
        "snapkv": [3, 12, 32],
    }
    assert POLICIES["h2o"](recent=0).newest_kept(100) == 0
    assert POLICIES["snapkv"](window=5).newest_kept(100) == 5
    smoothing = {name: policy().smoothing(4000, None) for name, policy in POLICIES.items()}
    assert smoothing == {
        **dict.fromkeys(POLICIES, (0, "avg")),
        "infinipot": (45, "trailing"),
        "snapkv": (7, "max"),
    }
    infinipot = POLICIES["infinipot"]
    assert infinipot().smoothing(3072, "question") == (45, "trailing")
    assert (
        infinipot().smoothing(3071, "question")
        == infinipot().smoothing(4000, "facts")
        == (7, "avg")
    )
    assert infinipot(pool=0).smoothing(4000, None) == (0, "avg")
    assert infinipot(pool_mode="max").smoothing(4000, None) == (7, "max")


def test_what_policies_need() -> None:
    needs = {name: set(policy().needs()) for name, policy in POLICIES.items()}
    assert needs == {
        **{key: set() for key in POLICIES},
        "infinipot": {"novelty", "catalyst"},
        "h2o": {"received"},
        "outliers": {"novelty", "sentences"},
        "relevance": {"catalyst", "sentences"},
        "tova": {"newest"},
        "snapkv": {"newest"},
        "sirllm": {"novelty"},
        "kvzip": {"catalyst", "replay"},
    }
    assert POLICIES["infinipot"](novelty=0).needs() == {"catalyst"}
    assert POLICIES["infinipot"](novelty=1).needs() == {"novelty"}
    assert POLICIES["outliers"](by_novelty=0, by_sentence=0).needs() == set()
    assert [name for name, policy in POLICIES.items() if policy().chooses_by_layer] == []


class Own(POLICIES["h2o"]):
    """Chooses by itself_.

    More of it.
    """

    def choose(self, layer: Observation, scores: Any, budget: int) -> torch.Tensor:
        return super().choose(layer, scores, budget)


def test_what_a_policy_of_ones_own_says_of_itself() -> None:
    assert (Own.name, Own.summary) == ("Own", "Chooses by itself_")
    named = type(
        "Named", (Policy,), {"name": "own", "summary": "said by hand", "__doc__": "Not this."}
    )
    assert (named.name, named.summary) == ("own", "said by hand")
    bare = type("Bare", (Policy,), {"__doc__": None})
    assert (bare.name, bare.summary) == ("Bare", "Bare")
    assert Own().chooses_by_layer is True
    assert POLICIES["h2o"]().chooses_by_layer is False
    assert POLICIES["infinipot"].stacks is True
    assert type("Other", (POLICIES["infinipot"],), {}).stacks is True
    assert type("Scores", (POLICIES["infinipot"],), {"score": lambda *_: None}).stacks is False
    assert not builtin(Own)
    with pytest.raises(UnknownOption) as caught:
        Own(windows=3)
    again = pickle.loads(pickle.dumps(caught.value))
    for error in (caught.value, again):
        assert (error.policy, error.option) == (Own, "windows")
        assert "policy 'Own' has no option 'windows' (its options: sinks, recent" in str(error)


@pytest.mark.parametrize("window", [0, -1, None, 1.5, "8"])
def test_a_policy_that_looks_at_the_newest_says_how_many(window: Any) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Newest(Policy):
        window: Any = 8

        def needs(self) -> frozenset[str]:
            return frozenset({"newest"})

    assert checked_needs(Newest(window=1)) == {"newest"}
    with pytest.raises(ValueError, match="'Newest' needs 'newest', with window=.*at least 1"):
        checked_needs(Newest(window=window))


def test_a_policy_asks_for_what_can_be_seen() -> None:
    class Asks(Policy):
        """Asks."""

        def needs(self) -> frozenset[str]:
            return frozenset({"novelti"})

    with pytest.raises(ValueError, match="needs of policy 'Asks'.*did you mean 'novelty'"):
        checked_needs(Asks())


def seen(past: int | None = None, **options: Any) -> Observation:
    random = torch.Generator().manual_seed(0)
    scores = torch.rand(1, 2, 9, generator=random)
    older = None if past is None else torch.rand(1, 2, past, generator=random)
    keys = torch.randn(1, 2, 9, 4, generator=random)
    return Observation(
        keys=keys,
        values=keys,
        rotate=lambda: keys,
        index=torch.arange(9).expand(1, 2, 9),
        received=scores,
        newest=scores,
        catalyst=scores,
        replay=scores,
        past=older,
        **options,
    )


def test_judging_by_hand() -> None:
    """Shared heads, a memory that fades, and scores that are smoothed once."""
    layer = seen(4, pool=3, window=2)
    scores, past = layer.require("catalyst"), layer.past
    assert past is not None
    faded = POLICIES["h2o"](score_memory=0.5).judge(layer)
    expected = scores.clone()
    expected[..., :4] = torch.maximum(scores[..., :4], 0.5 * past)
    assert torch.equal(faded, expected)
    once = POLICIES["infinipot"](score_memory="once").judge(layer)
    assert torch.equal(once, torch.cat((past, pool(scores[..., 4:], 3)), dim=-1))
    first = POLICIES["infinipot"](score_memory="once").judge(seen(None, pool=3))
    assert torch.equal(first, pool(scores, 3))
    assert torch.equal(POLICIES["infinipot"]().judge(seen(None, pool=3)), scores)
    shared = POLICIES["tova"]().judge(seen(None))
    assert torch.equal(shared, scores.mean(dim=1, keepdim=True).expand(1, 2, 9))
    stacked = torch.rand(3, 2, 9, generator=torch.Generator().manual_seed(1))
    layers = Observation(**{**vars(seen(None)), "catalyst": stacked, "index": stacked.long()})
    shared = POLICIES["infinipot"](shared_heads=True).judge(layers)
    assert torch.equal(shared, stacked.mean(dim=1, keepdim=True).expand(3, 2, 9))
    kept = POLICIES["snapkv"]().judge(seen(None, window=2))
    assert torch.equal(kept[..., :7], scores[..., :7])
    assert kept[..., 7:].count_nonzero() == 0
    assert POLICIES["sirllm"]().judge(layer) is None
    smoothed = POLICIES["h2o"]().choose(layer, scores, 4)
    assert torch.equal(smoothed, pool(scores, 3).topk(4, dim=-1).indices.sort(dim=-1).values)
    unsmoothed = POLICIES["infinipot"](score_memory="once").choose(layer, scores, 4)
    assert torch.equal(unsmoothed, scores.topk(4, dim=-1).indices.sort(dim=-1).values)
    with pytest.raises(TypeError, match="replay was not observed"):
        POLICIES["kvzip"]().judge(Observation(**{**vars(seen()), "replay": None}))
    with pytest.raises(TypeError, match="policy 'full' never distils"):
        POLICIES["full"]().judge(layer)


def test_random_scores_are_those_of_the_newest_place() -> None:
    layer = seen()
    one, same = POLICIES["random"]().score(layer), POLICIES["random"]().score(layer)
    later = Observation(**{**vars(layer), "index": layer.index + 1})
    assert torch.equal(one, same)
    assert not torch.equal(one, POLICIES["random"]().score(later))
    newest = torch.Generator().manual_seed(8)
    assert torch.equal(one, torch.rand(1, 2, 9, generator=newest))


def test_policies_by_text() -> None:
    assert policy_of("snapkv") == POLICIES["snapkv"]()
    assert policy_of("snapkv(window=16)") == POLICIES["snapkv"](window=16)
    assert policy_of("infinipot()") == POLICIES["infinipot"]()
    place = "infinipot.policies.h2o:H2O"
    assert policy_of(f"{place}(gqa='max', recent=3)") == POLICIES["h2o"](gqa="max", recent=3)
    assert class_of(place, place) is POLICIES["h2o"]
    assert path_of(POLICIES["h2o"]) == place
    assert all(map(builtin, POLICIES.values()))
    assert literals("(a=0.3, b=(1, 2), c=None, d='x')", "") == {
        "a": 0.3,
        "b": (1, 2),
        "c": None,
        "d": "x",
    }
    for text, words in (
        ("snapkv(window=16", "closing parenthesis is missing, so write 'snapkv\\(window=16\\)'"),
        ("snapkv(16)", "each option needs its name"),
        ("snapkv(window=f(1))", "a value is a number"),
        ("snapkv(window=", "closing parenthesis"),
        ("snapkv(window=)", "cannot be read"),
        ("snapkw", "^unknown policy 'snapkw'.*did you mean 'snapkv'"),
        ("snapkv:window=16", "so write 'snapkv\\(window=16\\)'"),
        ("no.such.module:Class", "cannot import no.such.module"),
        ("infinipot.policies.h2o:H3O", "there is no H3O in infinipot.policies.h2o"),
        ("infinipot.policies.h2o:dataclass", "not a subclass of infinipot.policies.Policy"),
        ("infinipot.policies.registry:OPTIONS", "not a subclass of infinipot.policies.Policy"),
    ):
        with pytest.raises(ValueError, match=words):
            policy_of(text)


def test_policies_with_options() -> None:
    changed = with_options(POLICIES["snapkv"](window=5, recent=3), {"window": None, "pool": 3})
    assert changed == POLICIES["snapkv"](recent=3, pool=3)
    assert with_options("snapkv", {"window": 7, "pool": None}) == POLICIES["snapkv"](window=7)
    for policy, options, error, words in (
        ("snapkw", {}, ValueError, "^unknown policy 'snapkw'"),
        ("snapkv", {"windows": 7}, UnknownOption, "has no option 'windows'"),
        ("snapkv", {"novelty": None}, None, ""),
        (POLICIES["snapkv"](), {"novelty": None}, UnknownOption, "has no option 'novelty'"),
        (POLICIES["snapkv"], {}, TypeError, "give SnapKV\\(\\), an object"),
        (3, {}, TypeError, "an object of a subclass of Policy$"),
    ):
        if error is None:
            assert with_options(policy, options) == POLICIES["snapkv"]()
            continue
        with pytest.raises(error, match=words):
            with_options(policy, options)


def test_every_option_is_documented() -> None:
    for policy in POLICIES.values():
        texts = documentation(policy)
        assert list(texts) == policy.options()
        assert all(texts.values())
    assert documentation(POLICIES["sirllm"])["sinks"].startswith("First entries after the pinned")
    assert documentation(POLICIES["kvzip"])["score_memory"].startswith("How much of its earlier")
