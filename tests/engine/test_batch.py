"""Rows of a batch: each with its own pot, its own distillations, the same answer as alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import CATALYST, assert_close, config_for, greedy, kept, random_ids
from tiny import make_tiny

import infinipot
from infinipot import PotConfig, Sampling, Session
from infinipot.engine.decode import InvalidLogits, pick, together
from infinipot.engine.distill import score_novelty
from infinipot.engine.generation import Generation
from infinipot.engine.sampling import Sampler
from infinipot.model.runner import ModelRunner
from infinipot.server import step as server

LENGTHS = (150, 23, 71, 40)
NEW = 20


def padded(prompts: list[list[int]]) -> dict[str, torch.Tensor]:
    width = max(map(len, prompts))
    rows = [[0] * (width - len(prompt)) + prompt for prompt in prompts]
    mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    return {"input_ids": torch.tensor(rows), "attention_mask": torch.tensor(mask)}


@pytest.mark.parametrize(
    ("family", "policy"),
    [
        ("qwen3", "infinipot"),
        ("llama", "streaming"),
        ("qwen3", "h2o"),
        ("llama", "tova"),
        ("llama", "snapkv"),
        ("llama", "kvzip"),
        ("llama", "sirllm"),
        ("qwen3", "keydiff"),
        ("llama", "full"),
        ("llama", "self_extend"),
    ],
)
def test_rows_answer_as_alone(family: str, policy: str) -> None:
    model = make_tiny(family)
    config = config_for(policy, pot_size=64, distill_to=24, window=6, group=4, neighbours=16)
    prompts = [random_ids(length, seed=length) for length in LENGTHS]
    options = {
        "custom_generate": infinipot.generate,
        "pot": config,
        "max_new_tokens": NEW,
        "do_sample": False,
        "pad_token_id": 0,
    }
    batch = model.generate(**padded(prompts), **options)
    assert batch.shape == (4, max(LENGTHS) + NEW)
    for row, prompt in zip(batch, prompts, strict=True):
        alone = model.generate(torch.tensor([prompt]), **options)[0]
        assert row[-NEW:].tolist() == alone[-NEW:].tolist()


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"novelty": 0.6, "score_memory": "once"},
        {"policy": "sirllm"},
        {"layer_budget": (3.0, 1.0)},
    ],
)
def test_steps_in_fewer_operations_are_the_same_steps(
    family: str, options: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows turned together, and novelty when it is needed: against each row turned, and each token scored, by itself."""
    runner, ended = ModelRunner(make_tiny(family)), []
    for slow in (False, True):
        with monkeypatch.context() as patch:
            if slow:
                patch.setattr("infinipot.cache.batch.rotate_alike", lambda layers, counts: False)
            sessions = [
                Session(runner, None, PotConfig(pot_size=64, distill_to=24, **options))
                for _ in LENGTHS
            ]
            for session, length in zip(sessions, LENGTHS, strict=True):
                if slow:
                    session.pot.score_at_once()
                session.append(random_ids(length, seed=length), question=CATALYST)
            generations = [
                s.generation(
                    random_ids(5, seed=3), max_tokens=60, pick=greedy, keep=True, stop_ids=set()
                )
                for s in sessions
            ]
            said: dict[int, list[int]] = {}
            for step in together(generations):
                for number, token in step:
                    said.setdefault(number, []).append(token)
            for session in sessions:
                assert slow or bool(session.pot.unscored) == session.pot.scores
                score_novelty(runner, session.pot)
            ended.append(
                (
                    said,
                    [kept(session) for session in sessions],
                    [session.pot.novelty for session in sessions],
                )
            )
            assert all(session.pot.logits is None for session in sessions), (
                "not longer than they are of use"
            )
    assert ended[0][:2] == ended[1][:2]
    for fast, plain in zip(ended[0][2], ended[1][2], strict=True):
        assert_close("novelty", fast, plain)
        assert fast.shape[1] and fast.min() >= 0


def test_rows_that_end_early_are_padded_and_disturb_nobody() -> None:
    model = make_tiny("llama")
    prompts = [random_ids(length, seed=length) for length in LENGTHS]
    options = {
        "custom_generate": infinipot.generate,
        "pot": PotConfig(pot_size=64, distill_to=24),
        "max_new_tokens": NEW,
        "pad_token_id": 0,
    }
    free = model.generate(**padded(prompts), do_sample=False, **options)[:, max(LENGTHS) :]
    end = int(free[1, 9])
    batch = model.generate(**padded(prompts), do_sample=False, eos_token_id=end, **options)[
        :, max(LENGTHS) :
    ]
    for row, unended in zip(batch.tolist(), free.tolist(), strict=True):
        stop = unended.index(end) + 1 if end in unended else len(row)
        assert row[:stop] == unended[:stop]
        assert set(row[stop:]) <= {0}


def test_stock_when_all_fits() -> None:
    model = make_tiny("qwen2")
    prompts = [random_ids(length, seed=length) for length in (20, 31, 9)]
    options = {"max_new_tokens": 20, "do_sample": False, "pad_token_id": 0}
    stock = model.generate(**padded(prompts), **options)
    ours = model.generate(
        **padded(prompts), **options, custom_generate=infinipot.generate, pot=PotConfig(pot_size=64)
    )
    assert torch.equal(stock, ours)


def test_sessions_answer_together() -> None:
    """Turns of several sessions, of different lengths, some kept, each distilling when its own pot is full."""
    model = make_tiny("llama")
    runner = ModelRunner(model)
    alone, sessions = [], []
    for number, length in enumerate(LENGTHS):
        for group in (alone, sessions):
            session = Session(runner, None, PotConfig(pot_size=64, distill_to=24))
            session.append(random_ids(length, seed=length), question=CATALYST)
            group.append(session)
        options = {
            "max_tokens": 20 + number,
            "pick": greedy,
            "keep": number % 2 == 0,
            "stop_ids": set(),
        }
        alone[-1].said = list(alone[-1].stream_ids(random_ids(4), aware=False, **options))
    generations = [
        Generation(
            session._reader,
            random_ids(4),
            max_tokens=20 + number,
            pick=greedy,
            stop_ids=set(),
            keep=number % 2 == 0,
            catalyst=session._reader.last_catalyst,
        )
        for number, session in enumerate(sessions)
    ]
    said: dict[int, list[int]] = {number: [] for number in range(len(generations))}
    for step in together(generations):
        for number, token in step:
            said[number].append(token)
    for number, session in enumerate(sessions):
        assert said[number] == alone[number].said
        assert not session._reader.busy
        assert session.stats.peak_entries <= 64
        assert session.stats.tokens_read == alone[number].stats.tokens_read
        torch.testing.assert_close(session.logits, alone[number].logits, rtol=1e-4, atol=1e-4)


PICKS = {
    "greedy": lambda: Sampler(Sampling()),
    "seeded": lambda: Sampler(Sampling(temperature=0.7, seed=3)),
    "own": lambda: greedy,
}


def begun(runner: ModelRunner, picks: Any) -> list[Generation]:
    generations = []
    for number in range(3):
        session = Session(runner, None, PotConfig(pot_size=64, distill_to=24))
        session.append(random_ids(20 + number), question=CATALYST)
        generations.append(session.generation([5], max_tokens=9, pick=picks(), stop_ids=set()))
        generations[-1].begin()
    return generations


@pytest.mark.parametrize("picks", PICKS.values(), ids=PICKS)
def test_logits_that_are_not_numbers_fail_their_own_answer(picks: Any) -> None:
    """One NaN is enough. The other answers go on as without it, random ones too."""
    runner = ModelRunner(make_tiny("llama"))
    logits = torch.randn(3, 97, generator=torch.Generator().manual_seed(1))
    expected = pick(begun(runner, picks), logits)
    assert all(isinstance(token, int) for token in expected)
    damaged = logits.clone()
    damaged[1, 50] = torch.nan
    got = pick(begun(runner, picks), damaged)
    assert [got[0], got[2]] == [expected[0], expected[2]]
    assert isinstance(got[1], InvalidLogits)
    generations = begun(runner, picks)
    generations[1].pot.hidden.fill_(torch.nan)
    results = server.step(generations)
    assert isinstance(results[1], ValueError)
    assert "logits are not numbers" in str(results[1])
    assert [results[0], results[2]] == [server.step(begun(runner, picks))[row] for row in (0, 2)]
    assert [len(generation.tokens) for generation in generations] == [1, 0, 1]


def test_a_damaged_model_is_named() -> None:
    """In a session: not a token is said, and the pot is free again."""
    model = make_tiny("llama")
    session = Session(model, None, PotConfig(pot_size=64, distill_to=24))
    session.append(random_ids(20), question=CATALYST)
    model.lm_head.weight.data[7] = torch.nan
    tokens = session.stream_ids([5], max_tokens=9, pick=Sampler(Sampling()))
    with pytest.raises(ValueError, match=r"logits are not numbers.*bfloat16"):
        next(tokens)
    assert not session._reader.busy
    assert session.stats.tokens_read == 20
