"""No layer ever holds more than the pot's size, whatever the entries are for."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from helpers import config_for, greedy, random_ids
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import make_tiny

from infinipot import PotConfig, Session

MODEL = make_tiny("llama", layers=2)


class Counter:
    """Counts what attention really sees, and what the layers really store, apart from what the pot says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.most = 0
        original = F.scaled_dot_product_attention

        def counted(
            query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *args, **kwargs
        ) -> torch.Tensor:
            self.most = max(self.most, key.shape[2], value.shape[2])
            return original(query, key, value, *args, **kwargs)

        monkeypatch.setattr(F, "scaled_dot_product_attention", counted)


STEPS = st.one_of(
    st.tuples(st.just("read"), st.integers(0, 120), st.integers(1, 40)),
    st.tuples(st.just("ask"), st.integers(0, 40), st.integers(1, 20)),
    st.tuples(st.just("chat"), st.integers(0, 40), st.integers(1, 20)),
)


@settings(deadline=None, max_examples=100)
@given(
    size=st.integers(2, 90),
    kept=st.integers(1, 60),
    chunk=st.integers(1, 100),
    novelty=st.sampled_from([0.0, 0.3, 1.0]),
    policy=st.sampled_from(["infinipot", "streaming", "truncate"]),
    steps=st.lists(STEPS, min_size=1, max_size=4),
)
def test_bound(
    size: int, kept: int, chunk: int, novelty: float, policy: str, steps: list[tuple[str, int, int]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        counter = Counter(patch)
        try:
            session = Session(
                MODEL,
                None,
                config_for(
                    policy, pot_size=size, distill_to=kept, chunk_tokens=chunk, novelty=novelty
                ),
            )
        except ValueError as refused:
            assert "do not fit" in str(refused) or "is not allowed" in str(refused)
            return
        counter.most = 0  # the probe's four tokens
        for step, length, more in steps:
            try:
                if step == "read":
                    session.append(random_ids(length), question=random_ids(more))
                else:
                    asked = random_ids(length) or None
                    said = list(
                        session.stream_ids(
                            asked, max_tokens=more, pick=greedy, keep=step == "chat", stop_ids=set()
                        )
                    )
                    assert len(said) == more
            except ValueError as refused:
                assert any(
                    words in str(refused)
                    for words in ("leaves no room", "nothing has been read", "no tokenizer")
                ), refused
            stored = max(
                (layer.keys.shape[2] for layer in session.pot.layers if layer.is_initialized),
                default=0,
            )
            assert counter.most <= size
            assert stored <= size
            assert session.stats.peak_entries == counter.most
            assert session.stats.entries <= size


def test_arithmetic_in_the_message() -> None:
    session = Session(MODEL, None, PotConfig(pot_size=64, distill_to=40))
    with pytest.raises(
        ValueError,
        match=r"pot_size=64 leaves no room: distill_to 40 \+ catalyst 30 \+ pinned 0 needs more than 70",
    ):
        session.append(random_ids(10), question=random_ids(30))
    assert session.stats.tokens_read == 0


def test_overflow_is_impossible_to_miss() -> None:
    from infinipot.cache.layer import PotLayer, PotOverflow

    layer = PotLayer(4, None)
    layer.update(torch.zeros(1, 1, 3, 8), torch.zeros(1, 1, 3, 8))
    with pytest.raises(PotOverflow):
        layer.update(torch.zeros(1, 1, 2, 8), torch.zeros(1, 1, 2, 8))
