"""Which catalyst is read, when, and for whom: the ids that really go through the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from helpers import CATALYST, config_for, greedy, random_ids
from tiny import make_tiny, make_tokenizer

from infinipot import PotConfig, Session
from infinipot.catalysts import ANSWER_PREFIXES, PROMPTS
from infinipot.engine.decode import together
from infinipot.model.runner import ModelRunner
from infinipot.policies import Observation, Policy
from infinipot.scoring.representativeness import contrasted
from infinipot.text.chat_template import Dialogue

TOKENIZER = make_tokenizer()
MODEL = make_tiny("llama", vocab=len(TOKENIZER))


@dataclass(frozen=True, kw_only=True)
class Notes(Policy):
    """Keeps the newest entries, and notes what it was shown. window: of `newest`."""

    wanted: tuple[str, ...]
    window: int = 4

    def needs(self) -> frozenset[str]:
        return frozenset(self.wanted)

    def score(self, layer: Observation) -> torch.Tensor:
        noted.append(
            {name: getattr(layer, name) for name in ("received", "newest", "index", "window")}
        )
        return layer.index.float()


noted: list[dict[str, Any]] = []


@pytest.mark.parametrize("other", ["received", "newest"])
def test_a_catalyst_is_no_part_of_the_attention_that_is_remembered(other: str) -> None:
    """A policy that looks at both sees of the text what one without a catalyst sees, in a pot that is
    smaller by the catalyst."""
    seen = []
    for wanted, size in (((other,), 48), ((other, "catalyst"), 48 + len(CATALYST))):
        noted.clear()
        config = PotConfig(
            policy=Notes(wanted=wanted), pot_size=size, distill_to=20, chunk_tokens=64
        )
        session = Session(ModelRunner(make_tiny("llama")), None, config)
        session.append(random_ids(150), question=CATALYST)
        assert session.stats.distillations == 4
        seen.append(list(noted))
        assert {row["window"] for row in noted} == {4 if other == "newest" else 0}
    for one, two in zip(*seen, strict=True):
        assert torch.equal(one["index"], two["index"])
        torch.testing.assert_close(one[other], two[other], rtol=1e-4, atol=1e-5)


@dataclass(frozen=True, kw_only=True)
class Looks(Policy):
    """Keeps the newest entries, and notes the entries it is shown."""

    def score(self, layer: Observation) -> torch.Tensor:
        noted.append({name: getattr(layer, name).clone() for name in ("keys", "values", "rotated")})
        return layer.index.float()


@pytest.mark.parametrize("pinned", [0, 3])
def test_a_policy_is_shown_the_entries_themselves(pinned: int) -> None:
    """Raw keys, rotated keys and values, without the pinned ones."""
    noted.clear()
    session = Session(
        make_tiny("llama"), None, PotConfig(policy=Looks(), pot_size=24, distill_to=10)
    )
    session._reader.pin(random_ids(pinned, seed=2))
    session.append(random_ids(24 - pinned))
    expected = [
        {
            "keys": layer.keys[:, :, pinned:24].clone(),
            "values": layer.values[:, :, pinned:24].clone(),
            "rotated": layer.read_keys(pinned, 24).clone(),
        }
        for layer in session.pot.bounded
    ]
    session.append([5])
    for seen, own in zip(noted, expected, strict=True):
        assert all(torch.equal(seen[name], own[name]) for name in own)


@dataclass(frozen=True, kw_only=True)
class Remembers(Policy):
    """Scores by the place in the text alone, so that anyone knows each entry's earlier score."""

    score_memory: float = 0.5

    def score(self, layer: Observation) -> torch.Tensor:
        scores = 1 + (7 * layer.index % 11).float()
        if layer.past is not None:
            old = layer.index[..., : layer.past.shape[-1]]
            noted.append({"past": layer.past, "before": 1 + (7 * old % 11).float()})
        return scores


@pytest.mark.parametrize("pinned", [0, 1, 6])
def test_past_scores_are_those_of_their_own_entries(pinned: int) -> None:
    """Behind pinned entries too, which have none."""
    noted.clear()
    session = Session(
        make_tiny("llama"), None, PotConfig(policy=Remembers(), pot_size=48, distill_to=20)
    )
    session._reader.pin(random_ids(pinned, seed=2))
    session.append(random_ids(150))
    assert session.stats.distillations >= 4
    assert len(noted) >= 6
    for seen in noted:
        assert seen["past"].shape[-1] == 20
        assert torch.equal(seen["past"], seen["before"])


def read_ids(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """All ids that the model is given, by forward pass and row."""
    rows: list[list[int]] = []
    original = ModelRunner.read

    def noting(self: Any, ids: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
        rows.extend(ids.tolist())
        return original(self, ids, *args, **options)

    monkeypatch.setattr(ModelRunner, "read", noting)
    return rows


def ends(rows: list[list[int]], catalyst: list[int]) -> int:
    """How many forward passes end in the catalyst."""
    return sum(row[-len(catalyst) :] == catalyst for row in rows)


OWN = "Name all ships."
"""A prompt of one's own."""


@pytest.mark.parametrize(
    "options",
    [
        *({"catalyst": kind} for kind in ("general", "facts", "question", OWN)),
        {"catalyst": OWN, "answer_prefix": "It is "},
        {"catalyst": "facts", "answer_prefix": ""},
        {"catalyst": None},
        {"catalyst": OWN, "score_memory": "once"},
    ],
    ids=str,
)
def test_the_catalyst_that_is_asked_for_is_read(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is asked; once a distillation, letter by letter, with its answer prefix, in the template."""
    kind = options["catalyst"] or "question"
    text = {"question": "Who?", OWN: OWN}.get(kind) or PROMPTS[kind]
    prefix = options.get("answer_prefix")
    prefix = ANSWER_PREFIXES.get(kind, "") if prefix is None else prefix
    dialogue = Dialogue(TOKENIZER, None, True)
    expected = dialogue.catalyst(text) + (TOKENIZER.encode(prefix) if prefix else [])
    session = Session(
        MODEL, TOKENIZER, PotConfig(pot_size=200, distill_to=40, chunk_tokens=64, **options)
    )
    rows = read_ids(monkeypatch)
    session.append("word and word again, " * 20, question="Who?")
    assert session.stats.distillations >= 2
    assert ends(rows, expected) == session.stats.distillations
    assert TOKENIZER.decode(expected).endswith(prefix)


@pytest.mark.parametrize("contrast", ["unrelated", "general", OWN])
def test_the_contrast_that_is_asked_for_is_read(
    contrast: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session(
        MODEL,
        TOKENIZER,
        PotConfig(pot_size=250, distill_to=40, catalyst="facts", contrast=contrast),
    )
    rows = read_ids(monkeypatch)
    session.append("word and word again, " * 20)
    dialogue = Dialogue(TOKENIZER, None, True)
    facts = dialogue.catalyst(PROMPTS["facts"]) + TOKENIZER.encode(ANSWER_PREFIXES["facts"])
    other = dialogue.catalyst(PROMPTS.get(contrast, contrast))
    both = contrasted(torch.tensor([facts]), torch.tensor([other])).tolist()
    assert session.stats.distillations >= 2
    assert [ends(rows, catalyst) for catalyst in both] == [session.stats.distillations] * 2


def test_the_newest_text_is_read_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catalyst `plain`: at each distillation the last 32 ids, those of the chunk before it included."""
    config = PotConfig(pot_size=76, distill_to=20, catalyst="plain", chunk_tokens=13)
    session = Session(MODEL, None, config)
    rows = read_ids(monkeypatch)
    ids = random_ids(130)
    session.append(ids)
    places = [44, 68, 92, 116]
    assert session.stats.distillations == len(places)
    assert [row for row in rows if len(row) == 32] == [ids[place - 32 : place] for place in places]


def test_a_chat_distils_by_the_general_catalyst_and_a_question_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The question where it is known, and when an answer does not fit; else the latest, else the general one,
    if options ask for a catalyst."""
    general = Dialogue(TOKENIZER, None, True).catalyst(PROMPTS["general"])
    why = Dialogue(TOKENIZER, None, True).catalyst("Why?")
    rows = read_ids(monkeypatch)
    for keep, aware, options in (
        (True, False, {"novelty": 0.5}),
        (True, False, {}),
        (False, True, {}),
    ):
        config = PotConfig(pot_size=110, distill_to=20, **options)
        session = Session(MODEL, TOKENIZER, config)
        session.append("word and word again. " * 2)
        rows.clear()
        how = {
            "max_tokens": 65,
            "pick": greedy,
            "keep": keep,
            "aware": aware,
            "stop_ids": set(),
        }
        assert len(list(session.stream_ids("Why?", **how))) == 65
        assert (session.stats.distillations > 0) == keep
        assert (ends(rows, general) > 0) == bool(options)
        assert ends(rows, why) == 1 + int(not keep), "the question itself, and as the catalyst"


SIZES = {"pot_size": 60, "distill_to": 30}


@pytest.mark.parametrize("pinned", [0, 4])
@pytest.mark.parametrize(("policy", "replay"), [("infinipot", 0), ("kvzip", 3)])
def test_sizes_with_exactly_no_room(policy: str, replay: int, pinned: int) -> None:
    """One entry must be free after a distillation: with one less it is refused before anything is read."""
    config = config_for(policy, **SIZES, catalyst="question")
    most = 60 - 30 - pinned - replay - 1
    for count in (most, most + 1):
        session = Session(make_tiny("llama"), None, config)
        session._reader.pin(random_ids(pinned))
        question = random_ids(count, seed=1)
        if count == most:
            session.append(random_ids(40), question=question)
            assert session.stats.distillations >= 1
            assert session.stats.peak_entries == 60
            continue
        with pytest.raises(ValueError, match=r"pot_size=60 leaves no room.*needs more than 60\."):
            session.append(random_ids(3), question=question)
        assert session.stats.tokens_read == pinned


def test_a_system_prompt_that_leaves_exactly_no_room() -> None:
    head = len(Dialogue(TOKENIZER, "Be brief.", True).head())
    for size, allowed in ((30 + head + 1, True), (30 + head, False)):
        config = PotConfig(policy="streaming", pot_size=size, distill_to=30)
        session = Session(MODEL, TOKENIZER, config, system="Be brief.")
        if allowed:
            session.append("word and word again, " * 3)
            assert session.stats.entries <= session.stats.peak_entries == size
            continue
        with pytest.raises(ValueError, match=f"pinned {head} needs more than {size}"):
            session.append("word")
        assert session.stats.tokens_read == 0


def test_an_answer_that_exactly_fits_distils_nothing() -> None:
    """Question and answer fill the pot: not copied, not distilled. With more tokens it is a copy that is distilled, and only when
    it is full: the last token is not read."""
    for more, distillations in ((0, 0), (1, 0), (2, 1)):
        session = Session(make_tiny("llama"), None, PotConfig(**SIZES))
        session.append(random_ids(50), question=CATALYST)
        options = {"max_tokens": 6 + more, "pick": greedy, "stop_ids": set()}
        generation = session.generation(random_ids(4), **options)
        assert generation.fits == (not more)
        assert (generation.pot is session.pot) == (not more)
        list(together([generation]))
        assert generation.pot.distillations == distillations
        assert session.stats.distillations == 0


def test_a_question_that_does_not_fit_is_read_after_a_distillation() -> None:
    """One that fits is not: 50 entries and 10 tokens fill the pot of 60."""
    for length, distillations in ((10, 0), (11, 1)):
        session = Session(make_tiny("llama"), None, PotConfig(**SIZES))
        session.append(random_ids(50), question=CATALYST)
        options = {"max_tokens": 2, "pick": greedy, "stop_ids": set()}
        generation = session.generation(random_ids(length), **options)
        generation.begin()
        assert generation.pot.distillations == distillations
        generation.end()
        assert session.stats.distillations == 0


def test_truncation_with_exactly_no_room() -> None:
    config = PotConfig(policy="truncate", pot_size=20)
    for pinned, allowed in ((9, True), (10, False)):
        session = Session(make_tiny("llama"), None, config)
        if allowed:
            session._reader.check_room(None, pinned)
            continue
        with pytest.raises(ValueError, match="pot_size=20 leaves no room: pinned 10 takes half"):
            session._reader.check_room(None, pinned)
    for count, allowed in ((7, True), (8, False)):
        session = Session(make_tiny("llama"), None, config)
        session.append(random_ids(40))
        assert session.stats.entries == 10
        options = {"max_tokens": count, "pick": greedy, "stop_ids": set()}
        if allowed:
            assert len(list(session.stream_ids([5, 6, 7], **options))) == 7
            assert session.stats.tokens_skipped == 30
            continue
        with pytest.raises(
            ValueError, match="no room: the text's head 10 . question and answer 11"
        ):
            session.stream_ids([5, 6, 7], **options)


def test_a_copy_goes_by_its_own_newest_text() -> None:
    """Catalyst `plain`: an answer that is removed again distils a copy as one that stays distils the pot."""
    survivors = []
    for keep in (False, True):
        config = PotConfig(pot_size=96, distill_to=40, catalyst="plain", novelty=0.0)
        session = Session(make_tiny("llama"), None, config)
        session.append(random_ids(60))
        options = {"max_tokens": 70, "pick": greedy, "stop_ids": set(), "keep": keep}
        generation = session.generation(random_ids(4), **options)
        list(together([generation]))
        assert generation.pot.distillations >= 2
        survivors.append([layer.index[..., :40].tolist() for layer in generation.pot.bounded])
    assert survivors[0] == survivors[1]
