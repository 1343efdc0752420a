"""One token for each of several answers: what is picked ahead, what is not, and what fails."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from infinipot.engine import decode, passes
from infinipot.engine.decode import InvalidLogits, next_tokens, pick, pick_ahead, sampled
from infinipot.engine.observe import CatalystLook
from infinipot.engine.passes import recorded
from infinipot.engine.sampling import PickedTokens, Sampler
from infinipot.sampling import Sampling

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
    impossible = logits[::2].masked_fill(logits[::2] == 0, -torch.inf)
    assert pick(mixed, impossible) == [5, 0], "tokens may be impossible"
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


@pytest.mark.parametrize(
    ("counts", "looks", "by"),
    [
        ([1], False, "step"),
        ([3], False, "chunk"),
        ([1], True, "chunk"),
        ([3], True, "chunk"),
        ([1, 1], False, "step"),
        ([3, 2], False, "step"),
        ([1, 1], True, None),
        ([3, 2], True, None),
    ],
)
def test_what_is_read_by_which_recording(
    counts: list[int], looks: bool, by: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of a step are the texts one after another. Without a recording nothing is read."""
    total = sum(counts)
    ids = torch.arange(total)[None]
    look = CatalystLook(1) if looks else None
    pots = ["first", "second"][: len(counts)]
    states = torch.arange(total * 5.0).view(total, 1, 5)
    asked: list[tuple[Any, ...]] = []

    def chunk(pot: str, read: torch.Tensor, seen: Any, watched: bool) -> Any:
        asked.append((pot, read.tolist(), seen, watched))
        return "hidden", {0: "scores"}

    def step(read_by: list[str], counts: list[int], read: torch.Tensor, watched: bool) -> Any:
        asked.append((read_by, counts, read.tolist(), watched))
        return states, "logits"

    graphs = SimpleNamespace(chunk=chunk, step=step)
    monkeypatch.setattr(passes, "graph_cache", lambda runner: graphs)
    got = recorded("runner", pots, ids, counts, look)  # type: ignore[arg-type]
    if by is None:
        assert (got, asked) == (None, [])
    elif by == "chunk":
        assert got == ("hidden", {0: "scores"})
        assert asked == [("first", ids.tolist(), look, True)]
    else:
        assert asked == [(pots, counts, [[i] for i in range(total)], True)]
        assert got[1] == {}
        assert torch.equal(got[0], states.view(1, total, 5))
        graphs.step = lambda *arguments, watched: None
        assert recorded("runner", pots, ids, counts, look) is None  # type: ignore[arg-type]
