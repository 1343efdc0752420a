"""One token for each of several answers: what is picked ahead, what is not, and what fails."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from infinipot.config import Sampling
from infinipot.engine import decode
from infinipot.engine.decode import InvalidLogits, next_tokens, pick, pick_ahead, sampled
from infinipot.engine.sampling import PickedTokens, Sampler

GREEDY = Sampler(Sampling(temperature=0))


def answer_of(picker: Any = GREEDY, picked: Any = None) -> Any:
    return SimpleNamespace(options=SimpleNamespace(pick=picker), picked=picked)


def test_what_is_picked_ahead_is_taken_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others' tokens are picked now, and a row without numbers has an error."""
    ahead = PickedTokens(torch.tensor([11, -1, 13, 0]))
    answers = [
        answer_of(),
        *(answer_of(picked=(ahead, row)) for row in (2, 1)),
        answer_of(),
        answer_of(picked=(ahead, 3)),
    ]
    asked: list[list[Any]] = []

    def predicted(others: list[Any]) -> torch.Tensor:
        asked.append(others)
        return torch.eye(97)[20 : 20 + len(others)]

    monkeypatch.setattr(decode, "predict", predicted)
    tokens = next_tokens(answers)
    assert tokens[:2] == [20, 13]
    assert isinstance(tokens[2], InvalidLogits)
    assert tokens[3:] == [21, 0]
    assert asked == [[answers[0], answers[3]]]
    assert [one.picked for one in answers] == [None] * 5
    ready = [answer_of(picked=(ahead, row)) for row in (0, 2)]
    assert next_tokens(ready) == [11, 13]
    assert len(asked) == 1, "nothing was left to predict"


def test_tokens_are_picked_ahead_for_samplers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.eye(97)[[5, 7, 9]]
    logits[1, 3] = torch.nan
    answers = [answer_of() for _ in range(3)]
    pick_ahead(answers, logits)
    tokens = next_tokens(answers)
    assert [tokens[0], tokens[2]] == [5, 9]
    assert isinstance(tokens[1], InvalidLogits)
    mixed = [answer_of(), answer_of(lambda row: int(row.argmin()))]
    pick_ahead(mixed, logits[::2])
    assert [one.picked for one in mixed] == [None, None]
    assert pick(mixed, logits[::2]) == [5, 0]
    damaged = pick([answer_of(lambda row: 3)] * 2, logits[:2])
    assert damaged[0] == 3
    assert isinstance(damaged[1], InvalidLogits)
    assert sampled([GREEDY] * 3, logits)[[0, 2]].tolist() == [5, 9]
    assert int(sampled([GREEDY] * 3, logits)[1]) < 0

    def fails(problem: Exception) -> None:
        def raising(*_: Any) -> Any:
            raise problem

        monkeypatch.setattr(decode, "sampled", raising)
        pick_ahead(answers, logits)

    fails(MemoryError())
    assert [one.picked for one in answers] == [None] * 3
    with pytest.raises(RuntimeError, match="a fault of its own"):
        fails(RuntimeError("a fault of its own"))


def test_nothing_to_advance_is_nothing() -> None:
    decode.advance([])
    assert list(decode.together([])) == []
