"""Sessions: asking leaves the pot alone, chatting does not, copies are independent, streams equal wholes."""

from __future__ import annotations

import re

import pytest
import torch
from helpers import CATALYST, assert_close, greedy, kept, random_ids
from tiny import make_tiny, make_tokenizer

from infinipot import PotConfig, Session
from infinipot.catalysts import PROMPTS
from infinipot.model.runner import ModelRunner

MODEL = make_tiny("llama")
TEXT = "The keeper hid the letter under the third step. Nobody saw it, but the dog did. " * 12
SMALL = PotConfig(pot_size=160, distill_to=60, chunk_tokens=32)


def session(config: PotConfig = SMALL, **options) -> Session:
    return Session(MODEL, make_tokenizer(), config, **options)


def state(of: Session) -> tuple:
    return (
        kept(of),
        of.logits.tolist(),
        of.stats.entries,
        of.stats.tokens_read,
        of.stats.distillations,
    )


@pytest.mark.parametrize(
    "length", [30, 130, 900], ids=["fits", "needs a distillation to answer", "long"]
)
def test_ask_leaves_the_pot_as_it_was(length: int) -> None:
    one = session()
    one.append(TEXT[:length], question="Who?")
    before, memory = state(one), [layer.keys.clone() for layer in one.pot.bounded]
    first = one.ask("Who saw it?", max_tokens=40)
    assert state(one) == before
    assert one.ask("Who saw it?", max_tokens=40) == first
    assert state(one) == before
    for layer, keys in zip(one.pot.bounded, memory, strict=True):
        assert torch.equal(layer.keys[:, :, : layer.length], keys[:, :, : layer.length])


def test_stream_equals_ask_and_may_stop_early() -> None:
    one = session()
    one.append(TEXT)
    before, whole = state(one), one.ask("Who?", max_tokens=30)
    assert "".join(one.stream("Who?", max_tokens=30)) == whole
    pieces = one.stream("Who?", max_tokens=30)
    next(pieces)
    with pytest.raises(RuntimeError, match="still being streamed"):
        one.append("more")
    pieces.close()
    assert state(one) == before


def test_text_ids_and_streams_are_the_same() -> None:
    whole, stream = session(), session()
    whole.append(TEXT, question="Who?")
    stream.append((TEXT[i : i + 7] for i in range(0, len(TEXT), 7)), question="Who?")
    assert state(whole) == state(stream)
    ids = random_ids(300)
    by_list, by_tensor = session(), session()
    by_list.append(ids, question=CATALYST)
    by_tensor.append(torch.tensor([ids]), question=CATALYST)
    assert state(by_list) == state(by_tensor)
    assert by_list.stats.tokens_read == 300, "ids are read as they are"


def test_two_appends_are_one_text() -> None:
    once, twice = session(), session()
    once.append(random_ids(300), question=CATALYST)
    twice.append(random_ids(300)[:111], question=CATALYST)
    twice.append(random_ids(300)[111:], question=CATALYST)
    assert kept(once) == kept(twice)
    assert_close("logits", twice.logits, once.logits)


def test_fork_then_diverge() -> None:
    parent = session()
    parent.append(TEXT)
    before = state(parent)
    child = parent.fork()
    child.append("Something else happened on the next day. " * 20)
    child.chat("And then?", max_tokens=20)
    assert state(parent) == before
    assert state(child) != before
    again = parent.fork()
    again.append("Something else happened on the next day. " * 20)
    again.chat("And then?", max_tokens=20)
    assert state(again) == state(child)


def test_interleaved_sessions_equal_each_alone() -> None:
    texts = [TEXT, "Numbers: 1 2 3 4 5. Letters: a b c d e f g. " * 20]
    alone = []
    for text in texts:
        one = session()
        for i in range(0, len(text), 200):
            one.append(text[i : i + 200])
        alone.append(state(one))
    both = [session(), session()]
    for i in range(0, max(map(len, texts)), 200):
        for one, text in zip(both, texts, strict=True):
            if text[i : i + 200]:
                one.append(text[i : i + 200])
    assert [state(one) for one in both] == alone


def test_chat_becomes_part_of_the_pot() -> None:
    one = session(system="Be brief.")
    head = one.chat("Hello there", max_tokens=10)
    assert isinstance(head, str)
    assert one.stats.tokens_read > 10
    read = one.stats.tokens_read
    for _ in range(8):
        one.chat("Tell me more about it, please.", max_tokens=30)
    assert one.stats.tokens_read > read + 8 * 30
    assert one.stats.distillations >= 1
    assert one.stats.peak_entries <= 160
    pinned = one.pot.pinned
    assert pinned == len(make_tokenizer().encode("<|system|>Be brief.<|end|><|user|>"))
    assert all(head[:pinned] == list(range(pinned)) for layer in kept(one) for head in layer)


def test_recall_is_a_chat_that_was_held_elsewhere() -> None:
    answer = "Nobody but the dog saw it."
    ids = make_tokenizer().encode(answer, add_special_tokens=False)
    held = session()
    told = session()
    for message in ("Who saw it?", "Who saw it, and when? " * 12):
        words = iter(ids)
        options = {"keep": True, "aware": False, "stop_ids": set()}
        pick = lambda logits, words=words: next(words)  # noqa: E731
        list(held.stream_ids(message, max_tokens=len(ids), pick=pick, **options))
        told.recall(message, answer)
        assert state(held)[2:] == state(told)[2:]
    assert held.stats.distillations
    assert torch.allclose(told.logits, held.logits, atol=1e-4)
    assert held.chat("Why?", max_tokens=8) == told.chat("Why?", max_tokens=8)


def test_template_stands_where_transformers_puts_it() -> None:
    tokenizer = make_tokenizer()
    seen: list[int] = []
    one = session(PotConfig(pot_size=400))
    original = one.runner.read

    def record(ids, pot, observe=None):
        seen.extend(ids[0].tolist())
        return original(ids, pot, observe)

    one.runner.read = record  # type: ignore[method-assign]
    one.append("A text.")
    answer = list(one.stream_ids("Why?", max_tokens=5, pick=greedy, keep=True, stop_ids=set()))
    list(one.stream_ids("And?", max_tokens=1, pick=greedy))
    messages = [
        {"role": "user", "content": "A text.\n\nWhy?"},
        {"role": "assistant", "content": tokenizer.decode(answer)},
        {"role": "user", "content": "And?"},
    ]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert seen == tokenizer.encode(text, add_special_tokens=False)


def test_long_answers_distil_on_the_way() -> None:
    one = session()
    one.append(TEXT)
    said = list(one.stream_ids("Go on.", max_tokens=400, pick=greedy, stop_ids=set()))
    assert len(said) == 400
    assert one.stats.peak_entries <= 160


def test_stop_texts_and_ends() -> None:
    one = session()
    one.append(TEXT)
    answer = one.ask("Who?", max_tokens=40)
    stop = answer[5:8]
    assert one.ask("Who?", max_tokens=40, stop=(stop,)) == answer[: answer.index(stop)]
    ids = list(one.stream_ids("Who?", max_tokens=40, pick=greedy, stop_ids=set()))
    assert (
        list(one.stream_ids("Who?", max_tokens=40, pick=greedy, stop_ids={ids[3], 96}))
        == ids[: ids.index(ids[3])]
    )


def test_seed_repeats() -> None:
    one = session()
    one.append(TEXT)
    options = {"max_tokens": 30, "temperature": 1.5, "top_p": 0.9, "top_k": 40, "min_p": 0.01}
    assert one.ask("Who?", seed=1, **options) == one.ask("Who?", seed=1, **options)
    assert one.ask("Who?", seed=1, **options) != one.ask("Who?", seed=2, **options)


def test_interrupted_reading_leaves_a_whole_pot() -> None:
    one, other = session(), session()
    chunks = 0

    def stop() -> None:
        nonlocal chunks
        chunks += 1
        if chunks == 9:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        one.append(random_ids(900), question=CATALYST, progress=stop)
    other.append(random_ids(900)[: one.stats.tokens_read], question=CATALYST)
    assert state(one) == state(other)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: PotConfig(policy="infinpot"), "did you mean 'infinipot'"),
        (lambda: PotConfig(catalyst="generl"), "did you mean 'general'"),
        (lambda: PotConfig(pool=6), "must be odd"),
        (lambda: PotConfig(novelty=1.5), "between 0 and 1"),
        (lambda: PotConfig(pot_size=100, distill_to=100), "between 1 and 99"),
        (
            lambda: PotConfig(pot_size=100, distill_to=10, sinks=8, recent=8),
            "do not fit in distill_to=10",
        ),
        (lambda: PotConfig(pot_size=1.5), "whole number"),
        (lambda: session().append([1, 2, 97]), "97 is not a token id"),
        (lambda: session().append([1, 2, -1]), "-1 is not a token id"),
        (lambda: session().append(torch.zeros(2, 3, dtype=torch.long)), "shape"),
        (lambda: session().append(iter(["a", 3])), "must yield str"),
        (lambda: session().append([{"role": "user", "content": "x"}]), "texts, not messages"),
        (lambda: session().append({"role": "user", "content": "x"}), "texts, not messages"),
        (lambda: session().append({"input_ids": [1]}), "give the input_ids alone"),
        (lambda: session().append("a", question=[{"role": "user"}]), "texts, not messages"),
        (lambda: session().ask([{"role": "user"}]), "texts, not messages"),
        (
            lambda: session(PotConfig(catalyst="question")).append(TEXT),
            "needs the question while reading",
        ),
        (lambda: Session(MODEL).append("text"), "no tokenizer"),
        (lambda: Session(MODEL, config=PotConfig(novelty=0.5)).append([1, 2, 3]), "no tokenizer"),
        (lambda: Session(MODEL).ask("Why?"), "no tokenizer"),
        (lambda: session().ask("Why?", max_tokens=0), "at least 1"),
        (lambda: session().ask("Why?", stop="x"), "tuple of texts"),
        (lambda: session().ask("Why?", max_tokenz=3), "unknown option of an answer 'max_tokenz'"),
        (
            lambda: session().ask("Why?", do_sample=True),
            r"do_sample is called temperature \(0 is greedy\) here",
        ),
        (lambda: session().ask("Why?", top_p=2), "between 0 and 1"),
        (lambda: session(system="x", template=False), None),
        (lambda: session(SMALL, template=False).ask(""), "nothing has been read"),
        (lambda: session().logits, "nothing has been read"),
    ],
)
def test_bad_use_is_refused_in_words(call, message: str | None) -> None:
    if message is None:
        with pytest.raises(ValueError, match="system is given"):
            call().append("x")
        return
    with pytest.raises((ValueError, TypeError), match=message):
        call()


def test_a_session_without_a_tokenizer() -> None:
    one = Session(MODEL, None, PotConfig(pot_size=64, distill_to=20, policy="streaming"))
    one.append(random_ids(300))
    assert len(list(one.stream_ids(max_tokens=5, pick=greedy, stop_ids=set()))) == 5
    assert one.stats.peak_entries <= 64


CATALYSTS = ("general", "facts", "unrelated", "plain", "question", "List every name and number.")


@pytest.mark.parametrize("catalyst", CATALYSTS)
def test_every_catalyst(catalyst: str) -> None:
    one = session(PotConfig(pot_size=300, distill_to=60, catalyst=catalyst))
    one.append(TEXT, question="Who?" if catalyst == "question" else None)
    assert one.stats.distillations >= 2
    assert one.stats.peak_entries <= 300
    ids = one._reader.last_catalyst
    if catalyst == "plain":
        assert ids is one.pot.newest
    else:
        asked = "Who?" if catalyst == "question" else PROMPTS.get(catalyst, catalyst)
        words = re.sub(r"\s+", "", asked)
        assert words in re.sub(r"\s+", "", one.tokenizer.decode(ids[0]))
    assert one.ask("Who?", max_tokens=3) is not None


def test_the_catalyst_ends_in_a_begun_answer() -> None:
    def catalyst(**options) -> str:
        one = session(PotConfig(pot_size=300, distill_to=60, **options))
        one.append(TEXT, question="Who?")
        return one.tokenizer.decode(one._reader.last_catalyst[0])

    plain = catalyst()
    assert "Who?" in plain
    assert catalyst(answer_prefix="It was ") == plain + "It was "
    assert catalyst(catalyst="facts").endswith("1. ")
    assert not catalyst(catalyst="facts", answer_prefix="").endswith("1. ")


def test_no_chat_template() -> None:
    one = Session(MODEL, make_tokenizer(template=None, bos=True), SMALL)
    one.append(TEXT)
    one.chat("Why?", max_tokens=5)
    assert one.pot.pinned == 1
    with pytest.raises(ValueError, match="no chat template"):
        Session(MODEL, make_tokenizer(template=None), SMALL, system="x").append(TEXT)


def test_a_stream_is_read_in_chunks_of_few_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the pieces it comes in: what runs for one length of chunk is kept for the next, so memory does not creep."""
    runner, tokenizer = ModelRunner(make_tiny("llama")), make_tokenizer()
    text = "The keeper wrote down every ship that passed, and what the weather was. " * 60
    lengths, sessions = [], []
    original = ModelRunner.read

    def noted(self, ids, pots, observe=None):
        lengths[-1].append(ids.shape[1])
        return original(self, ids, pots, observe)

    monkeypatch.setattr(ModelRunner, "read", noted)
    for pieces in ([text], [text[i : i + 31] for i in range(0, len(text), 31)]):
        session = Session(
            runner, tokenizer, PotConfig(pot_size=200, distill_to=80, chunk_tokens=64)
        )
        lengths.append([])
        session.append(iter(pieces), question="How many ships?")
        sessions.append(session)
    assert kept(sessions[0]) == kept(sessions[1])
    for counts in lengths:
        assert len(set(counts)) <= 8, set(counts)
        assert len(counts) > 40


def test_old_names_of_members_go_on_working_for_one_release() -> None:
    with pytest.warns(DeprecationWarning, match="survivors is called mean_budget now"):
        assert SMALL.survivors == SMALL.mean_budget == 60
    asked = session()
    asked.append(TEXT)
    with pytest.warns(DeprecationWarning, match="turn is called generation now"):
        asked.turn("Who?", max_tokens=2, pick=greedy)
