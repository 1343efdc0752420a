"""Each policy against an independent statement of what it keeps."""

from __future__ import annotations

import pytest
import torch
from helpers import CATALYST, assert_close, greedy, kept, random_ids
from tiny import make_tiny, make_tokenizer

from infinipot import PotConfig, Session
from infinipot.engine.distill import score_novelty
from infinipot.policies import POLICIES, Observation
from infinipot.policies.keydiff import KeyDiff
from infinipot.scoring.selection import choose, pool, reduce_groups

MODEL = make_tiny("llama")


def test_registry_key_is_file_name_and_cli_value() -> None:
    for name, policy in POLICIES.items():
        assert policy.name == name
        assert policy.__module__ == f"infinipot.policies.{name}"
        assert policy.summary


def observation(entries: int = 40, **options) -> Observation:
    random = torch.Generator().manual_seed(1)
    keys = torch.randn(1, 2, entries, 8, generator=random)
    novelty, scores = (
        torch.rand(1, 2, entries, generator=random),
        torch.rand(1, 2, entries, generator=random),
    )
    index = torch.arange(entries).expand(1, 2, -1)
    options = {"sinks": 2, "recent": 3, "pool": 0, "pool_mode": "avg", **options}
    attention = dict.fromkeys(("catalyst", "received", "newest", "replay"), scores)
    return Observation(
        keys=keys,
        values=keys,
        rotate=lambda: keys.flip(-1),
        index=index,
        novelty=novelty,
        sentences=torch.arange(entries) // 5,
        **attention,
        **options,
    )


@pytest.mark.parametrize("name", [name for name, policy in POLICIES.items() if policy.bounded])
@pytest.mark.parametrize("budget", [5, 6, 17, 40])
def test_every_policy_keeps_the_budget_in_text_order(name: str, budget: int) -> None:
    seen = observation()
    policy = POLICIES[name]()
    indices = policy.choose(seen, policy.judge(seen), budget)
    assert indices.shape == (1, 2, budget)
    assert (indices.diff(dim=-1) > 0).all(), "ascending, none twice"
    for head in indices[0].tolist():
        assert {0, 1, 37, 38, 39} <= set(head), "sinks and recent entries stay"


def test_streaming_keeps_the_first_and_the_newest() -> None:
    session = Session(MODEL, None, PotConfig(pot_size=64, distill_to=20, policy="streaming"))
    session.append(random_ids(300))
    expected: list[int] = []
    for token in range(300):
        if len(expected) == 64:
            expected = expected[:4] + expected[-16:]
        expected.append(token)
    assert all(head == expected for layer in kept(session) for head in layer)


def test_sliding_window_keeps_the_newest() -> None:
    session = Session(MODEL, None, PotConfig(pot_size=64, distill_to=63, policy="sliding_window"))
    session.append(random_ids(200))
    assert all(head == list(range(136, 200)) for layer in kept(session) for head in layer)


def test_keydiff_by_the_paper() -> None:
    """Similarity of each key to the mean of the normalised keys of its head; the least similar stay."""
    seen = observation(sinks=0, recent=0)
    for head, indices in zip(
        seen.rotated[0], KeyDiff().choose(seen, KeyDiff().judge(seen), 10)[0].tolist(), strict=True
    ):
        anchor = sum(key / key.norm() for key in head) / len(head)
        likeness = [float(key @ anchor / (key.norm() * anchor.norm())) for key in head]
        assert indices == sorted(sorted(range(40), key=lambda slot: likeness[slot])[:10])


def test_sirllm_keeps_the_most_surprising_in_all_heads() -> None:
    session = Session(MODEL, None, PotConfig(pot_size=64, distill_to=24, policy="sirllm"))
    session.append(random_ids(64))
    score_novelty(session.runner, session.pot)
    losses = session.pot.novelty[0].tolist()
    session.append(random_ids(1, seed=1))
    expected = [0, 1, 2, 3, *sorted(sorted(range(4, 64), key=lambda slot: -losses[slot])[:20]), 64]
    assert all(head == expected for layer in kept(session) for head in layer)


def test_random_differs_by_head_and_repeats() -> None:
    sessions = [
        Session(MODEL, None, PotConfig(pot_size=64, distill_to=24, policy="random"))
        for _ in range(2)
    ]
    for session in sessions:
        session.append(random_ids(200))
    assert kept(sessions[0]) == kept(sessions[1])
    heads = [head for layer in kept(sessions[0]) for head in layer]
    assert len({tuple(head) for head in heads}) > 1


def test_full_is_stock_whatever_the_length() -> None:
    ids = random_ids(250)
    session = Session(
        MODEL, None, PotConfig(policy="full", pot_size=8, distill_to=4, chunk_tokens=50)
    )
    session.append(ids)
    assert session.stats.entries == 250
    assert_close("logits", session.logits, MODEL(torch.tensor([ids])).logits[:, -1])


@pytest.mark.parametrize("length", [20, 59, 61, 300])
def test_truncate_reads_what_longbench_would(length: int) -> None:
    """Head and tail of the text, the middle cut out, with room for question and answer; the answer is stock's on that text."""
    ids, question, answer = random_ids(length), random_ids(7, seed=8), 10
    session = Session(MODEL, None, PotConfig(pot_size=64, policy="truncate", chunk_tokens=9))
    for start in range(0, length, 13):
        session.append(ids[start : start + 13])
    room = 64 - len(question) - answer
    cut = ids if length <= room else ids[:32] + ids[length - (room - 32) :]
    stock = MODEL.generate(
        torch.tensor([cut + question]), max_new_tokens=answer, do_sample=False, pad_token_id=0
    )[0, len(cut) + 7 :]
    for _ in range(2):
        assert (
            list(session.stream_ids(question, max_tokens=answer, pick=greedy, stop_ids=set()))
            == stock.tolist()
        )
    assert session.stats.tokens_read == len(cut), "what the model has read, and no more"
    assert session.stats.tokens_read + session.stats.tokens_skipped == length
    assert session.stats.peak_entries <= 64


def test_truncate_chats() -> None:
    session = Session(MODEL, make_tokenizer(), PotConfig(pot_size=200, policy="truncate"))
    for _ in range(10):
        session.chat("Tell me more about the keeper and the dog.", max_tokens=20)
        assert session.stats.tokens_read <= 200
    assert session.stats.peak_entries <= 200
    with pytest.raises(ValueError, match="leaves no room"):
        session.ask("x" * 150, max_tokens=50)


def test_choose_prefers_novelty_then_scores() -> None:
    novelty = torch.tensor([[[0.0, 9.0, 8.0, 0.0, 0.0, 7.0]]])
    scores = torch.tensor([[[5.0, 9.0, 0.0, 4.0, 1.0, 0.0]]])
    assert choose(4, novelty=novelty, scores=scores, share=0.5).tolist() == [[[0, 1, 2, 3]]]
    assert choose(4, novelty=novelty, scores=scores, share=0.0).tolist() == [[[0, 1, 3, 4]]]
    assert choose(3, novelty=novelty, scores=scores, share=1.0).tolist() == [[[1, 2, 5]]]
    assert choose(3, scores=torch.zeros(1, 1, 6)).tolist() == [[[0, 1, 2]]], (
        "of equals the lower slot wins"
    )


def test_pooling_by_hand() -> None:
    scores = torch.tensor([[[1.0, 0.0, 0.0, 6.0, 0.0]]])
    assert pool(scores, 3, "max").tolist() == [[[1.0, 1.0, 6.0, 6.0, 6.0]]]
    assert_close("average", pool(scores, 3, "avg"), torch.tensor([[[0.5, 1 / 3, 2.0, 2.0, 3.0]]]))
    assert torch.equal(pool(scores, 0), scores)


def test_group_reduction_by_hand() -> None:
    scores = torch.tensor([[[1.0], [3.0], [10.0], [20.0]]])
    assert reduce_groups(scores, 2, "mean").tolist() == [[[2.0], [15.0]]]
    assert reduce_groups(scores, 2, "max").tolist() == [[[3.0], [20.0]]]
    assert reduce_groups(scores, 2, "sum").tolist() == [[[4.0], [30.0]]]


def test_novelty_chosen_entries_are_the_same_in_all_heads() -> None:
    session = Session(MODEL, None, PotConfig(pot_size=64, distill_to=24, novelty=1.0))
    session.append(random_ids(300), question=CATALYST)
    heads = [head for layer in kept(session) for head in layer]
    assert all(head == heads[0] for head in heads)
