"""No layer ever holds more than the pot's size, whatever the entries are for."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from helpers import greedy, random_ids
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import make_tiny

import pytest
from infinipot import PotConfig, Session

MODEL = make_tiny("llama", layers=2)


class Counter:
    """Counts what attention really sees, and what the layers really store, apart from what the pot says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.most = 0
        original = F.scaled_dot_product_attention

        def counted(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *args, **kwargs) -> torch.Tensor:
            self.most = max(self.most, key.shape[2], value.shape[2])
            return original(query, key, value, *args, **kwargs)

        monkeypatch.setattr(F, "scaled_dot_product_attention", counted)


@settings(deadline=None, max_examples=60)
@given(
    size=st.integers(2, 90),
    kept=st.integers(1, 60),
    catalyst=st.integers(1, 40),
    length=st.integers(1, 160),
    chunk=st.integers(1, 100),
    question=st.integers(0, 30),
    answer=st.integers(1, 20),
    novelty=st.sampled_from([0.0, 0.3, 1.0]),
    policy=st.sampled_from(["infinipot", "streaming", "truncate"]),
    keep=st.booleans(),
)
def test_bound(size, kept, catalyst, length, chunk, question, answer, novelty, policy, keep) -> None:
    with pytest.MonkeyPatch.context() as patch:
        counter = Counter(patch)
        try:
            config = PotConfig(pot_size=size, distill_to=kept, chunk_tokens=chunk, novelty=novelty, policy=policy)
            session = Session(MODEL, None, config)
            counter.most = 0
            session.append(random_ids(length), question=random_ids(catalyst))
            asked = random_ids(question) or None
            said = list(session.stream_ids(asked, max_tokens=answer, pick=greedy, keep=keep, stop_ids=set()))
        except ValueError as refused:
            text = str(refused)
            assert any(word in text for word in ("leaves no room", "do not fit", "is not allowed")), text
            assert str(size) in text or str(kept) in text
            assert counter.most <= size
            return
        assert len(said) == answer
        stored = max(layer.keys.shape[2] for layer in session.pot.layers)
        assert counter.most <= size
        assert stored <= size
        assert session.stats.peak_entries == counter.most
        assert session.stats.entries <= size


def test_arithmetic_in_the_message() -> None:
    session = Session(MODEL, None, PotConfig(pot_size=64, distill_to=40))
    with pytest.raises(ValueError, match=r"pot_size=64 leaves no room: distill_to 40 \+ catalyst 30 \+ pinned 0 needs more than 70"):
        session.append(random_ids(10), question=random_ids(30))
    assert session.stats.tokens_read == 0


def test_overflow_is_impossible_to_miss() -> None:
    from infinipot.layers import PotLayer, PotOverflow

    layer = PotLayer(4, None)
    layer.update(torch.zeros(1, 1, 3, 8), torch.zeros(1, 1, 3, 8))
    with pytest.raises(PotOverflow):
        layer.update(torch.zeros(1, 1, 2, 8), torch.zeros(1, 1, 2, 8))
