"""Which prompt a distillation goes by, and what a session notes of its dialogue."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers import CATALYST, greedy, random_ids
from tiny import make_tiny, make_tokenizer

from infinipot import PotConfig, PotFileError, Session
from infinipot.model.runner import ModelRunner
from infinipot.session import catalyst as module
from infinipot.session.catalyst import answer_catalyst, catalyst_kind, new_catalyst
from infinipot.session.file import check_numbers

TOKENIZER = make_tokenizer()
RUNNER = ModelRunner(make_tiny("llama", vocab=len(TOKENIZER)))
NEEDS = frozenset({"catalyst"})


def reader_with(
    kind: str | None, latest: Any = None, needs: Any = NEEDS, in_force: Any = NEEDS
) -> Any:
    """needs: of the policy. in_force: of the plan."""
    told: list[Any] = []
    return SimpleNamespace(
        policy=SimpleNamespace(name="own", catalyst=kind, needs=lambda: needs),
        plan=SimpleNamespace(needs=in_force, catalyst="before"),
        last_catalyst=latest,
        has_room_for=lambda pot, catalyst: True,
        pot=SimpleNamespace(pinned=0),
        told=told,
        settle=told.append,
        check_room=lambda ids, pinned: told.append((ids, pinned)),
    )


@pytest.mark.parametrize(
    ("policy", "question", "kind"),
    [
        *((None, None, "general"), (None, "Why?", "question"), (None, [5], "question")),
        *(("question", "Why?", "question"), ("facts", None, "facts"), ("facts", "Why?", "facts")),
        *(("Name all.", None, "Name all."), ("plain", "Why?", "plain")),
    ],
)
def test_the_kind_of_a_catalyst(policy: str | None, question: Any, kind: str) -> None:
    assert catalyst_kind(reader_with(policy), question) == kind
    assert catalyst_kind(reader_with(policy, needs=frozenset({"novelty"})), question) is None


def test_a_catalyst_that_needs_a_question() -> None:
    with pytest.raises(ValueError, match="catalyst='question' needs the question while reading"):
        catalyst_kind(reader_with("question"), None)


@pytest.mark.parametrize(
    ("policy", "question", "aware", "latest", "asked"),
    [
        (None, "Why?", True, "latest", "Why?"),
        (None, "Why?", True, None, "Why?"),
        (None, "Why?", False, "latest", "latest"),
        (None, "Why?", False, None, None),
        (None, None, True, "latest", "latest"),
        (None, None, True, None, None),
        (None, [], True, "latest", "latest"),
        ("question", "Why?", False, "latest", "Why?"),
        ("facts", "Why?", False, "latest", "latest"),
    ],
)
def test_the_catalyst_of_an_answer(
    policy: str | None, question: Any, aware: bool, latest: Any, asked: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Its question, if that may be, else the latest, else a new one."""
    made: list[Any] = []

    def new(reader: Any, dialogue: Any, own: Any) -> Any:
        made.append((dialogue, own))
        return "new"

    monkeypatch.setattr(module, "new_catalyst", new)
    reader = reader_with(policy, latest)
    got = answer_catalyst(reader, "dialogue", question, aware=aware)  # type: ignore[arg-type]
    if asked == "latest":
        assert (got, made) == ("latest", [])
    else:
        assert (got, made) == ("new", [("dialogue", asked)])


@pytest.mark.parametrize(("pinned", "head", "counted"), [(0, 4, 4), (3, 4, 3), (0, 0, 0)])
def test_a_new_catalyst_settles_and_is_checked(
    pinned: int, head: int, counted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "catalyst_ids", lambda *of: of[2:])
    dialogue: Any = SimpleNamespace(head=lambda: [1] * head)
    reader = reader_with(None)
    reader.pot.pinned = pinned
    got = new_catalyst(reader, dialogue, "Why?")
    assert got == ("question", "Why?")
    assert reader.told == ["question", (got, counted)]
    reader.has_room_for = lambda pot, catalyst: False
    assert new_catalyst(reader, dialogue, "Why?") is None
    assert reader.told[-1] == "before", "the text was read without a catalyst"
    reader.last_catalyst = "latest"
    assert new_catalyst(reader, dialogue, "Why?") == got
    reader = reader_with(None, needs=frozenset())
    assert new_catalyst(reader, dialogue, "Why?") is None
    assert reader.told == []
    reader = reader_with(None, in_force=frozenset({"novelty"}))
    assert new_catalyst(reader, dialogue, None) is None
    assert reader.told == ["general"], "and the plan that came of it needs none"


def test_a_reading_that_fails_at_once_leaves_the_dialogue_as_it_was() -> None:
    """But for what was read before it failed."""

    def stop() -> None:
        raise KeyboardInterrupt

    def refuse(*_: Any) -> Any:
        raise MemoryError

    session = Session(RUNNER, TOKENIZER, PotConfig(pot_size=200, distill_to=40))
    list(session.stream_ids("Why?", keep=True, max_tokens=3, pick=greedy, stop_ids=set()))
    dialogue = session._dialogue
    state = dialogue.in_text, dialogue.answered
    assert state == (False, True)
    read = session._reader.text_passes
    session._reader.text_passes = refuse
    with pytest.raises(MemoryError):
        session.append("A text.")
    assert (dialogue.in_text, dialogue.answered) == state
    session._reader.text_passes = read
    with pytest.raises(KeyboardInterrupt):
        session.append("A text.", progress=stop)
    assert (dialogue.in_text, dialogue.answered) == (True, False)


def test_what_opens_a_part_counts_where_the_pot_fills() -> None:
    """After an answer, in the chat template: the opening stands before the part's ids."""
    for extra, more, told, distilled in (
        *((-1, True, -1, False), (0, True, 0, True), (1, False, 0, True), (0, False, 0, False)),
    ):
        session = Session(RUNNER, TOKENIZER, PotConfig(pot_size=200, distill_to=40))
        list(session.stream_ids("Why?", keep=True, max_tokens=3, pick=greedy, stop_ids=set()))
        opening = len(session._dialogue.opening())
        assert opening > 1
        ids = random_ids(250)
        question = [7, 8]
        catalyst = len(session._dialogue.catalyst(question))
        room = 200 - session.pot.length - catalyst - opening
        count = session.append_part(ids[: room + extra], question, 999, more)
        assert count == room + told
        assert session.distillation_due == distilled


def test_logits_are_float32_and_those_of_the_last_token() -> None:
    model = make_tiny("llama").to(torch.bfloat16)
    session = Session(model, None, PotConfig(pot_size=64))
    session.append(random_ids(9), question=CATALYST)
    assert session.logits.dtype == torch.float32
    assert session.logits.shape == (1, 97)
    assert torch.equal(session.logits, session.runner.head(session.pot.hidden)[:, 0].float())


def test_a_loaded_session_has_its_system_prompt(tmp_path: Path) -> None:
    session = Session(RUNNER, TOKENIZER, PotConfig(pot_size=200), system="Be brief.")
    session.append("The dog saw it.")
    session.save(tmp_path / "pot")
    for chunk, length in ((None, 1024), (16, 16)):
        again = Session.load(tmp_path / "pot", RUNNER, TOKENIZER, chunk_tokens=chunk)
        assert (again.system, again.template) == ("Be brief.", True)
        assert again._reader.config.chunk_tokens == length
        assert again._dialogue.in_text
        assert again.ask("Who?", max_tokens=4) == session.ask("Who?", max_tokens=4)


def test_entries_that_are_no_numbers_are_not_saved() -> None:
    """One is enough. Of other tensors they may be saved: an impossible token has infinite novelty."""
    for name in ("hidden", "layers.0.keys", "layers.1.values", "layers.0.keys_scale"):
        for value in (torch.nan, torch.inf, -torch.inf):
            for dtype in (torch.float32, torch.bfloat16):
                with pytest.raises(PotFileError, match="its entries are not numbers"):
                    check_numbers({name: torch.tensor([1.0, value], dtype=dtype)})
        check_numbers({name: torch.tensor([1.0, -2.0])})
        check_numbers({name: torch.ones(3, dtype=torch.int8)})
    damaged = torch.tensor([1.0, torch.nan]).to(torch.float8_e4m3fn)
    with pytest.raises(PotFileError, match="its entries are not numbers"):
        check_numbers({"layers.0.keys": damaged})
    check_numbers(
        {"novelty": torch.tensor([torch.inf]), "layers.0.novelty": torch.tensor([torch.inf])}
    )


@pytest.mark.parametrize("usual", [False, True])
def test_special_tokens_count_as_the_call_or_else_the_session_says(usual: bool) -> None:
    """In every text and question anew."""
    session = Session(RUNNER, TOKENIZER, PotConfig(pot_size=200), special_tokens=usual)
    before = session._dialogue_for(raw=False)
    assert before.special_tokens == usual
    session.append("The dog saw it.")
    for asked, counts in ((None, usual), (True, True), (False, False), (None, usual)):
        dialogue = session._dialogue_for(False, asked)
        assert dialogue is session._dialogue
        assert dialogue.special_tokens == counts
    lengths = []
    for asked in (True, False):
        fork = session.fork()
        fork.append("<|end|>", special_tokens=asked)
        lengths.append(fork.stats.tokens_read - session.stats.tokens_read)
    assert lengths == [1, len("<|end|>")]
    raw = Session(RUNNER, TOKENIZER, PotConfig(pot_size=200))._dialogue_for(raw=True)
    assert not raw.templated
    assert before.templated


def test_a_loaded_session_goes_on_with_what_waited(tmp_path: Path) -> None:
    """Of a text that is truncated: its end, and the number of ids in between."""
    session = Session(RUNNER, TOKENIZER, PotConfig(policy="truncate", pot_size=40))
    session.append(random_ids(90))
    assert session._reader.waiting() == (random_ids(90)[70:], 50)
    session.save(tmp_path / "pot")
    again = Session.load(tmp_path / "pot", RUNNER, TOKENIZER)
    assert again._reader.waiting() == session._reader.waiting()
    assert again.stats.tokens_skipped == session.stats.tokens_skipped == 50
    assert again.stats.tokens_read == session.stats.tokens_read


@pytest.mark.parametrize("how", ["append", "append_part", "chat", "ask"])
@pytest.mark.parametrize("count", [43, 44, 60, 64])
def test_a_question_that_has_no_room_behind_an_unasked_text(how: str, count: int) -> None:
    """The text was read without a catalyst, so its distillation needs none, however long the question is."""
    session = Session(make_tiny("llama"), None, PotConfig(pot_size=64, distill_to=24))
    session.append(random_ids(count))
    question = random_ids(20, seed=7)
    if how == "append":
        session.append(random_ids(9), question=question)
    elif how == "append_part":
        session.append_part(random_ids(9), question, 30, False)
    else:
        options = {"max_tokens": 12, "pick": greedy, "keep": how == "chat", "stop_ids": set()}
        assert len(list(session.fork().stream_ids(question, **options))) == 12
        session.append(random_ids(40), question=question)
    session.append(random_ids(100), question=question)
    assert session.pot.distillations
    assert session._reader.plan.policy.name == ("infinipot" if count <= 44 else "outliers")
