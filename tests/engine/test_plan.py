"""What is shown of a pot's options is what its distillations go by, and they are looked up once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers import CATALYST, random_ids
from tiny import make_tiny, make_tokenizer

import infinipot.policies.base
from infinipot import PotConfig, Session, pot_file
from infinipot.engine.plan import Plan
from infinipot.policies import POLICIES, Policy

TOKENIZER = make_tokenizer()
MODEL = make_tiny("llama", vocab=len(TOKENIZER))
SIZES = {"pot_size": 200, "distill_to": 60, "chunk_tokens": 64}
WIDE = (5, "trailing")
NARROW = (7, "avg")
TEXT = "word and word again, " * 20


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[tuple]:
    """(pool, pool_mode, sinks, recent) of every choice of a layer. With a question known, the window is wide at any size."""
    choices: list[tuple] = []
    choose = POLICIES["infinipot"].choose

    def noted(self: Policy, seen: Any, scores: Any, budget: int) -> Any:
        choices.append((seen.pool, seen.pool_mode, seen.sinks, seen.recent))
        return choose(self, seen, scores, budget)

    monkeypatch.setattr(POLICIES["infinipot"], "choose", noted)
    monkeypatch.setattr(
        POLICIES["infinipot"],
        "default_smoothing",
        lambda self, budget, asked: WIDE if asked else NARROW,
    )
    return choices


def shown(config: PotConfig) -> tuple:
    return config.pool, config.pool_mode, config.sinks, config.recent


@pytest.mark.parametrize("first", [None, "Why?"])
@pytest.mark.parametrize("second", [None, "Why?"])
def test_what_is_shown_is_what_is_used(
    first: str | None, second: str | None, used: list[tuple], tmp_path: Path
) -> None:
    """Texts with a question and without, before the first distillation and after it."""
    session = Session(MODEL, TOKENIZER, PotConfig(**SIZES, novelty=0.3))
    session.append("A title.", question=second)  # no distillation, so nothing is decided
    assert not used
    assert session.plan is None
    assert (session.config.pool, session.config.pool_mode) == (None, None)
    assert (session.config.recent, session.config.distill_to) == (5, 60), (
        "these do not depend on it"
    )
    session.append(TEXT, question=first)
    expected = (*(WIDE if first else NARROW), 0, 5)
    assert set(used) == {expected}
    session.append(TEXT, question=second)
    session.chat("How many?", max_tokens=150)
    assert set(used) == {expected}
    session.save(tmp_path / "a.pot")
    again = Session.load(tmp_path / "a.pot", MODEL, TOKENIZER)
    again.append(TEXT, question=second)
    assert set(used) == {expected}
    for one in (session, session.fork(), again):
        assert shown(one.config) == expected
        assert one.plan == session.plan is not None
        assert one.plan.catalyst == ("question" if first else "general")
        assert {
            (layer.pool, layer.pool_mode, layer.sinks, layer.recent) for layer in one.plan.layers
        } == {expected}
    config, plan = pot_file.in_force(tmp_path / "a.pot", pot_file.describe(tmp_path / "a.pot"))
    assert (config, plan) == (session.config, session.plan)


def test_a_file_keeps_the_plan_also_when_defaults_change(
    used: list[tuple], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session(MODEL, TOKENIZER, PotConfig(**SIZES))
    session.append(TEXT, question="Why?")
    session.save(tmp_path / "a.pot")
    monkeypatch.setattr(
        POLICIES["infinipot"], "default_smoothing", lambda self, budget, asked: (0, "max")
    )
    monkeypatch.setattr(POLICIES["infinipot"], "default_recent", lambda self, budget: 1)
    again = Session.load(tmp_path / "a.pot", MODEL, TOKENIZER)
    used.clear()
    again.append(TEXT, question="Why?")
    assert set(used) == {(*WIDE, 0, 5)}
    assert (shown(again.config), again.plan) == ((*WIDE, 0, 5), session.plan)


def test_what_does_not_depend_on_the_question_is_shown_at_once() -> None:
    assert Session(MODEL, TOKENIZER, PotConfig(**SIZES)).plan is None
    for options in ({"novelty": 0.3}, {"catalyst": "general"}, {"policy": "h2o"}, {"pool": 3}):
        session = Session(MODEL, TOKENIZER, PotConfig(**SIZES, **options))
        assert session.plan is not None
        assert None not in (session.config.pool, session.config.pool_mode, session.config.recent)


def test_layers_with_budgets_of_their_own_are_in_the_plan() -> None:
    session = Session(MODEL, TOKENIZER, PotConfig(**SIZES, layer_budget=(3.0, 1.0)))
    session.append(TEXT)
    assert session.plan is not None
    assert [layer.recent for layer in session.plan.layers] == [90 // 12, 30 // 12]
    assert [layer.budget for layer in session.plan.layers] == [90, 30]
    assert (
        [layer.size for layer in session.plan.layers]
        == [layer.size for layer in session.pot.bounded]
        == [230, 170]
    )
    assert session.config.recent is None, "each layer has its own"


@pytest.mark.parametrize("policy", [name for name, policy in POLICIES.items() if policy.bounded])
def test_nothing_is_looked_up_inside_a_distillation(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalyst = {"catalyst": "question"} if policy == "kvzip" else {}
    session = Session(MODEL, TOKENIZER, PotConfig(**SIZES, policy=policy, **catalyst))
    session.append(random_ids(190), question=CATALYST)
    looked: list[str] = []

    def forbid(owner: Any, name: str) -> None:
        before = getattr(owner, name)
        monkeypatch.setattr(
            owner, name, lambda *args, **options: looked.append(name) or before(*args, **options)
        )

    for name in ("needs", "newest_kept", "smoothing", "default_smoothing", "default_recent"):
        forbid(POLICIES[policy], name)
    forbid(PotConfig, "__getattr__")
    forbid(infinipot.policies.base.Policy, "options")
    monkeypatch.setattr(Plan, "of", lambda *args, **options: looked.append("of"))
    before = session.stats.distillations
    session._reader.read(random_ids(400), session._reader.last_catalyst)
    assert session.stats.distillations > before + 1
    assert looked == []


def test_the_pot_has_few_options_and_policies_their_own() -> None:
    import dataclasses

    assert len(dataclasses.fields(PotConfig)) <= 9
    assert POLICIES["streaming"].options() == ["sinks"]
    assert POLICIES["full"].options() == []
    config = PotConfig(policy=POLICIES["snapkv"](window=5), pot_size=64)
    assert config == PotConfig(policy="snapkv", window=5, pot_size=64)
    assert (
        config.window,
        config.replace(window=7).policy.window,
        dataclasses.replace(config, pool=3).pool,
    ) == (5, 7, 3)
    assert config.replace(policy="h2o").policy == POLICIES["h2o"]()
    with pytest.raises(AttributeError, match="no option 'windows'"):
        _ = config.windows
    for wrong in (
        {"policy": "snapkv", "novelty": 0.1},
        {"policy": POLICIES["snapkv"](), "novelty": 0.1},
    ):
        with pytest.raises(
            TypeError, match=r"policy 'snapkv' has no option 'novelty' \(its options: .*window"
        ):
            PotConfig(**wrong)
    with pytest.raises(TypeError, match="policy 'snapkv' has no option 'novelty'"):
        POLICIES["snapkv"](novelty=0.1)


@pytest.mark.parametrize(
    ("old", "new", "value"),
    [
        ("begun", "answer_prefix", "1. "),
        ("persist", "score_memory", 0.5),
        ("pool_kind", "pool_mode", "max"),
    ],
)
def test_old_names_go_on_working_for_one_release(old: str, new: str, value: Any) -> None:
    from infinipot.eval.methods import method

    with pytest.warns(DeprecationWarning, match=f"{old} is called {new} now"):
        config = PotConfig(**{old: value})
    assert config == PotConfig(**{new: value})
    with pytest.warns(DeprecationWarning, match="is called"):
        assert getattr(config, old) == value
    with pytest.warns(DeprecationWarning, match="is called"):
        assert config.replace(**{old: value}) == config
    with pytest.warns(DeprecationWarning, match="is called"):
        label = method(f"infinipot:{old}={value!r}", {})
    assert getattr(label.config, new) == value
    with (
        pytest.raises(TypeError, match="are the same option"),
        pytest.warns(DeprecationWarning, match="is called"),
    ):
        PotConfig(**{old: value, new: value})
