"""Room for catalysts, prompts and answers, at the entry where each decision turns."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers import CATALYST, kept, random_ids
from tiny import make_tiny, make_tokenizer

from infinipot import PotConfig, Session
from infinipot.engine.late import LateDistillation
from infinipot.engine.reader import NoRoom
from infinipot.model.runner import ModelRunner

TOKENIZER = make_tokenizer()
RUNNER = ModelRunner(make_tiny("llama", vocab=len(TOKENIZER)))


def opened(**options: Any) -> Session:
    return Session(RUNNER, None, PotConfig(**{"pot_size": 48, "distill_to": 20, **options}))


def catalyst(length: int) -> torch.Tensor:
    return torch.tensor([random_ids(length)])


def test_what_a_reader_has_room_for() -> None:
    session = opened()
    reader = session._reader
    session.append(random_ids(43), question=CATALYST)
    for length, room in ((4, True), (5, True), (6, False)):
        assert reader.has_room_for(session.pot, catalyst(length)) == room
    assert (reader.fits(5), reader.fits(6)) == (True, False)
    assert (reader.fits(2, catalyst(3)), reader.fits(3, catalyst(3))) == (True, False)
    assert reader.has_room_for(session.pot, None)


def test_a_token_can_be_read_after_a_distillation() -> None:
    reader = opened()._reader
    for length, pinned, allowed in ((26, 1, True), (26, 2, False), (27, 0, True), (28, 0, False)):
        if allowed:
            reader.check_room(catalyst(length), pinned)
            continue
        told = f"distill_to 20 \\+ catalyst {length} \\+ pinned {pinned} needs more than 48"
        with pytest.raises(NoRoom, match=f"pot_size=48 leaves no room: {told}"):
            reader.check_room(catalyst(length), pinned)
    reader.check_room(None, 27)
    with pytest.raises(NoRoom):
        reader.check_room(None, 28)
    opened(policy="full")._reader.check_room(None, 99)


def test_how_long_the_next_chunk_is() -> None:
    session = opened(chunk_tokens=16)
    distiller = session._reader.distiller
    session.append(random_ids(20), question=CATALYST)
    lengths = []
    for count in (0, 7, 9, 6):
        if count:
            session.append(random_ids(count), question=CATALYST)
        lengths.append(distiller.make_room(session.pot, torch.tensor([CATALYST])))
    assert lengths == [16, 16, 7, 1]
    session.append(random_ids(1), question=CATALYST)
    assert distiller.make_room(session.pot, torch.tensor([CATALYST])) == 16
    assert (session.stats.distillations, session.stats.entries) == (1, 20)


def test_where_a_catalyst_is_read_behind_a_chunk() -> None:
    """If the chunk fills the pot up to it, and if it can be removed again."""
    session = opened()
    distiller = session._reader.distiller
    session.append(random_ids(30), question=CATALYST)
    asked = torch.tensor([CATALYST, CATALYST[::-1]])
    for count, behind in ((12, False), (13, True), (14, False)):
        suffix = distiller.suffix(session.pot, catalyst(count), asked)
        assert (suffix is not None) == behind
        if suffix is not None:
            assert suffix.ids.tolist() == [CATALYST]
            assert suffix.look.rows == len(CATALYST)
    assert distiller.suffix(session.pot, catalyst(18), None) is None
    newest = session.pot.newest
    assert distiller.suffix(session.pot, newest[:, : 18 - newest.shape[1]], newest) is None
    for options, alone in (
        ({}, True),
        ({"policy": "kvzip", "catalyst": "question"}, False),
        ({"policy": "h2o"}, False),
        ({"policy": "snapkv"}, False),
        ({"policy": "streaming"}, False),
        ({"novelty": 1.0}, False),
    ):
        other = opened(**options)
        assert other._reader.distiller.reads_catalyst_alone(other.pot) == alone
        assert other._reader.distiller.can_append_catalyst(other.pot, asked) == alone
        assert not other._reader.distiller.can_append_catalyst(other.pot, other.pot.newest)
    plan = distiller.plan
    for more, alone in (
        ("novelty", True),
        ("newest", False),
        ("received", False),
        ("replay", False),
    ):
        distiller.plan = dataclasses.replace(plan, needs=frozenset({"catalyst", more}))
        assert distiller.reads_catalyst_alone(session.pot) == alone


class Entries:
    """Stands in for a pot: its room, its tokens, and what it is told."""

    def __init__(self, room: float) -> None:
        self.room = room
        self.tokens_read = 100
        self.told: list[Any] = []

    def mark(self) -> Any:
        return SimpleNamespace(books=SimpleNamespace(tokens_read=self.tokens_read))

    def rollback(self, mark: Any) -> None:
        self.told.append(("back", mark.books.tokens_read))


def late_for(room: float) -> tuple[Entries, LateDistillation]:
    pot = Entries(room)
    reader: Any = SimpleNamespace(
        plan=SimpleNamespace(reserve=lambda ids: 5),
        last_catalyst="latest",
        distiller=SimpleNamespace(distill=lambda pot, ids: pot.told.append(("distil", ids))),
        read_into=lambda pot, ids, own: pot.told.append(("read", ids, own)),
    )
    return pot, LateDistillation(reader, pot, "own")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("room", "first", "used"),
    [(20, 10, "own"), (15, 10, "own"), (14, 9, "own"), (5, 0, "own"), (4, 0, "latest"), (0, 0, "latest")],
)  # fmt: skip
def test_a_prompt_is_split_where_the_catalyst_still_has_room(
    room: int, first: int, used: str
) -> None:
    """The latest catalyst is used where its own, a longer one, has none."""
    prompt = list(range(10))
    pot, late = late_for(room)
    assert late.split(prompt) == (prompt[:first], prompt[first:])
    late.set_mark(prompt[first:], 0)
    pot.tokens_read += 10 - first
    late.distill([])
    assert pot.told == [("back", 100), ("distil", used), ("read", prompt[first:], "own")]


def test_an_answer_is_distilled_late() -> None:
    """The pot is marked while the catalyst has room, and goes back when it has no room for a token."""
    pot, late = late_for(7)
    said = [50, 51, 52, 53, 54, 55, 56, 57, 58]
    states = []
    for tokens in range(9):
        states.append((late.full(tokens), late.mark is not None, late.tight))
        pot.room -= 1
        pot.tokens_read += 1
    assert states == [
        *[(False, False, False)] * 2,
        (False, True, False),
        *[(False, True, True)] * 4,
        *[(True, True, True)] * 2,
    ]
    assert (late.tokens_before, late.since) == (2, [])
    pot.tokens_read = 102 + 5
    late.distill(said)
    assert pot.told == [("back", 102), ("distil", "own"), ("read", [52, 53, 54, 55, 56], "own")]
    _, without = late_for(3)
    assert not without.tight


def test_processes_that_share_a_model_pick_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(RUNNER.shards, "count", 2)
    session = Session(RUNNER, TOKENIZER, PotConfig(pot_size=200))
    session.append("The dog saw it.")
    session.ask("Who?", max_tokens=2, temperature=0)
    session.ask("Who?", max_tokens=2, temperature=0.7, seed=3)
    with pytest.raises(ValueError, match="give a seed"):
        session.ask("Who?", max_tokens=2, temperature=0.7)


@pytest.mark.parametrize("count", [7, 13])
def test_a_prompt_that_is_split_is_read_again_with_its_answer(count: int) -> None:
    """From the mark on: as if the pot had been distilled there, before the rest of the prompt."""
    prompt = random_ids(count, seed=2)
    said = random_ids(30, seed=3)
    late, early = opened(), opened()
    for session in (late, early):
        session.append(random_ids(34), question=CATALYST)
    words = iter(said)
    options: Any = {"keep": True, "stop_ids": set(), "pick": lambda logits: next(words)}
    list(late.stream_ids(prompt, max_tokens=30, aware=False, **options))
    early.append([*prompt, *said], question=CATALYST)
    assert late.stats.tokens_read == early.stats.tokens_read == 34 + count + 30
    assert late.stats.distillations == early.stats.distillations > 0
    assert kept(late) == kept(early)
    torch.testing.assert_close(late.logits, early.logits, rtol=1e-4, atol=1e-4)
