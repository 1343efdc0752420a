"""NuC equals the cross-entropy of the whole model, in slices."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from helpers import CATALYST, assert_close, config_for, greedy, kept, random_ids
from tiny import FAMILIES, make_tiny
from torch.utils._python_dispatch import TorchDispatchMode

from infinipot import PotConfig, Session
from infinipot.engine import distill
from infinipot.engine.distill import score_novelty
from infinipot.model.runner import ModelRunner
from infinipot.scoring.novelty import novelty


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("chunk", [1, 7, 512])
@pytest.mark.parametrize("at_once", [False, True])
def test_equals_cross_entropy_of_stock(family: str, chunk: int, at_once: bool) -> None:
    """Whether it is computed at once, or for all tokens together when a distillation needs it."""
    model, ids = make_tiny(family), random_ids(60)
    session = Session(
        model, None, PotConfig(pot_size=64, distill_to=20, novelty=1.0, chunk_tokens=chunk)
    )
    if at_once:
        session.score_all()
    session.append(ids)
    assert bool(session.pot.unscored) != at_once
    score_novelty(session.runner, session.pot)
    assert not session.pot.unscored
    expected = F.cross_entropy(
        model(torch.tensor([ids])).logits[0, :-1], torch.tensor(ids[1:]), reduction="none"
    )
    assert session.pot.novelty[0, 0] == 0
    assert_close("novelty", session.pot.novelty[0, 1:], expected)


@pytest.mark.parametrize("block", [1, 10, 96, 97, 1000])
def test_blocks_do_not_matter(block: int) -> None:
    runner, hidden = ModelRunner(make_tiny("qwen2")), torch.randn(2, 9, 64)
    targets = torch.randint(0, 97, (2, 9))
    whole = F.cross_entropy(
        runner.head(hidden).flatten(0, 1), targets.flatten(), reduction="none"
    ).view(2, 9)
    assert_close("novelty", novelty(runner.head, hidden, targets, 97, block), whole)


def test_scaled_and_capped_logits_are_the_models_own() -> None:
    """Gemma-2 caps its logits, Granite and Cohere scale them: the output layer alone would be wrong."""
    import transformers as tf

    sizes = dict(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=97,
        pad_token_id=0,
    )
    configs = [
        tf.Gemma2Config(
            **sizes, head_dim=8, final_logit_softcapping=0.5, layer_types=["full_attention"] * 2
        ),
        tf.GraniteConfig(**sizes, logits_scaling=3.0),
        tf.CohereConfig(**sizes, logit_scale=0.2),
    ]
    ids = torch.tensor([random_ids(30)])
    for config in configs:
        torch.manual_seed(0)
        model = tf.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
        runner = ModelRunner(model)
        with torch.no_grad():
            hidden, logits = model.base_model(ids).last_hidden_state, model(ids).logits
        assert_close(type(config).__name__, runner.head(hidden), logits, 1e-6)
        expected = F.cross_entropy(logits[0, :-1], ids[0, 1:], reduction="none")
        assert_close(
            type(config).__name__,
            novelty(runner.head, hidden[:, :-1], ids[:, 1:], 97, 20)[0],
            expected,
        )


def test_never_a_chunk_times_the_vocabulary() -> None:
    """No tensor made while reading is as large as chunk x vocabulary."""
    vocabulary, chunk = 40_000, 128
    model = make_tiny("llama", vocab=vocabulary)
    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor) and not out._is_view():
                shape = tuple(out.shape)
                if shape[-1:] == (vocabulary,) or out.numel() >= chunk * vocabulary:
                    largest = max(largest, out.numel())
            return out

    session = Session(model, None, PotConfig(pot_size=512, chunk_tokens=chunk))
    with Watch():
        session.append(random_ids(400), question=[1, 2, 3])
    assert largest < chunk * vocabulary


def novelties(session: Session) -> list[torch.Tensor]:
    """NuC of all entries, by layer."""
    score_novelty(session.runner, session.pot)
    return [session.pot.described([layer])[1] for layer in session.pot.bounded]


def assert_same(one: Session, other: Session) -> None:
    """The same survivors, with the same novelty, and the same prediction."""
    assert kept(one) == kept(other)
    for mine, yours in zip(novelties(one), novelties(other), strict=True):
        assert float(mine.max()) > 0
        assert_close("novelty", mine, yours, 1e-5)
    assert_close("logits", one.logits, other.logits)


POLICIES = {
    "default": {"policy": "infinipot"},
    "novelty alone": {"policy": "infinipot", "novelty": 1.0},
    "scored once": {"policy": "infinipot", "score_memory": "once"},
    "sirllm": {"policy": "sirllm"},
    "budgets": {"policy": "infinipot", "layer_budget": (3.0, 1.0)},
    "shared_heads": {"policy": "infinipot", "shared_heads": True},
}
"""Policies that need novelty."""


def pair(options: dict) -> tuple[Session, Session]:
    """A session whose novelty waits for a distillation, and one that computes it at once."""
    runner = ModelRunner(make_tiny("qwen3"))
    config = config_for(pot_size=64, distill_to=24, chunk_tokens=10, **options)
    late, at_once = Session(runner, None, config), Session(runner, None, config)
    at_once.score_all()
    return late, at_once


@pytest.mark.parametrize("options", POLICIES.values(), ids=POLICIES)
def test_later_is_as_at_once(options: dict, tmp_path: Path) -> None:
    """Through distillations, answers that are removed or stay, a fork and a file."""
    late, at_once = pair(options)
    for seed, length in enumerate((150, 7, 1, 33)):
        for session in (late, at_once):
            session.append(random_ids(length, seed=seed), question=CATALYST)
        assert not at_once.pot.unscored
        said = [
            list(
                session.stream_ids(
                    random_ids(5, seed=seed),
                    max_tokens=8,
                    pick=greedy,
                    keep=seed == 2,
                    stop_ids=set(),
                )
            )
            for session in (late, at_once)
        ]
        assert said[0] == said[1]
    assert late.stats.distillations == at_once.stats.distillations > 2
    assert late.pot.unscored, "some tokens wait when the copies are made"
    twins = [session.fork() for session in (late, at_once)]
    for session, name in ((late, "late"), (at_once, "at_once")):
        twins.append(session.fork())  # a file is written of each
        twins[-1].save(tmp_path / name)
        twins[-1] = Session.load(tmp_path / name, session.runner)
    for twin in twins:
        twin.append(random_ids(61, seed=8), question=CATALYST)
        assert_same(twin, twins[0])
    assert late.pot.unscored, "a fork's distillation leaves what waits in the pot"
    assert_same(late, at_once)


def test_an_answer_that_is_removed_leaves_what_waits() -> None:
    """Short, and long enough for distillations of a copy."""
    late, at_once = pair(POLICIES["default"])
    for session in (late, at_once):
        session.append(random_ids(150), question=CATALYST)
        session.append(random_ids(3, seed=1), question=CATALYST)
    waits = late.pot.unscored
    for count in (2, 90):
        for session in (late, at_once):
            list(session.stream_ids(random_ids(4), max_tokens=count, pick=greedy, stop_ids=set()))
        assert late.pot.unscored is waits
    assert_same(late, at_once)


def test_asked_for_at_once_later_on() -> None:
    """What waits then is computed with the next chunk, whose values come last."""
    late, at_once = pair(POLICIES["default"])
    for session in (late, at_once):
        session.append(random_ids(20), question=CATALYST)
    assert late.pot.unscored
    late.score_all()
    for session in (late, at_once):
        session.append(random_ids(7, seed=1), question=CATALYST)
    assert not late.pot.unscored
    assert late.pot.novelty.shape == (1, 27)
    assert_close("novelty", late.pot.novelty, at_once.pot.novelty, 1e-5)


def test_few_hidden_states_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distill, "MOST_UNSCORED", 25)
    late, at_once = pair(POLICIES["default"])
    most: list[int] = []
    for seed in range(8):
        for session in (late, at_once):
            session.append(random_ids(23, seed=seed), question=CATALYST)
        most.append(sum(ids.shape[1] for ids, _ in late.pot.unscored))
    assert 0 < max(most) <= 25
    assert_same(late, at_once)


def test_a_state_is_whole() -> None:
    late, _ = pair(POLICIES["default"])
    late.append(random_ids(20), question=CATALYST)
    with pytest.raises(AssertionError, match="wait for their novelty"):
        late.pot.state()
