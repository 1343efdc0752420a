"""The demo: what it reads, where its questions stand, and that its progress is seen without a terminal."""

from __future__ import annotations

import importlib.util
import re
import sys
import warnings
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from tiny import make_tiny, make_tokenizer

from infinipot import PotConfig, Session

PATH = Path(__file__).parent.parent / "demo" / "demo.py"


@pytest.fixture(scope="module")
def demo() -> ModuleType:
    spec = importlib.util.spec_from_file_location("demo", PATH)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.setenv("TQDM_DISABLE", "1")  # as it was before, once the script is read
        patch.setitem(sys.modules, "demo", module)  # dataclasses look for it
        spec.loader.exec_module(module)
    return module


def test_the_questions_stand_in_the_middles_of_equal_parts(
    demo: ModuleType, smollm2_tokenizer: Any
) -> None:
    text, last = demo.reference(smollm2_tokenizer)
    assert last > demo.FIRST_TOPIC
    tokens = len(smollm2_tokenizer.encode(text))
    assert demo.TOKENS - 100 <= tokens <= demo.TOKENS + 500
    assert tokens > 8 * PotConfig().pot_size
    places = {}
    for number, question in enumerate(demo.QUESTIONS):
        found = [match.start() for match in re.finditer(question.sentence, text)]
        assert len(found) <= 1
        if found:  # older references lack a sentence, and the demo leaves its question out
            places[(2 * number + 1) / (2 * len(demo.QUESTIONS))] = found[0] / len(text)
    assert len(places) >= len(demo.QUESTIONS) / 2
    assert list(places.values()) == pytest.approx(list(places), abs=0.05)


@pytest.mark.parametrize(
    ("reply", "right"),
    [("Section 3.13.", True), ("3.130", False), ("13.13", False), ("3.13.1", False), ("", False)],
)
def test_an_answer_is_right_if_it_holds_the_words(
    demo: ModuleType, reply: str, right: bool
) -> None:
    assert demo.Question("?", "3.13", "").right(reply) is right


def test_progress_is_seen_without_a_terminal(
    demo: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line every EVERY_S seconds, with what is left by the speed until then."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(demo.time, "monotonic", lambda: clock.now)
    stats = SimpleNamespace(tokens_read=0, peak_entries=64, pot_bytes=3 * 2**20)
    progress = demo.Progress(SimpleNamespace(stats=stats), 4000)
    for clock.now, stats.tokens_read in ((4.0, 400), (10.0, 1000), (12.0, 1200)):
        progress()
    progress.close()
    assert capsys.readouterr().out == "  1,000 of 4,000 tokens read, about 30 s left\n"
    assert progress.marks[1] == (1000, 10.0, 64, 3.0)


def test_the_table_shows_each_place_once(
    demo: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Speeds are of the stretch since the row before; sizes of the full cache are stock's own."""
    model = make_tiny("llama")
    session = Session(model, None, PotConfig(pot_size=64, distill_to=20))
    session.append([1] * 100)
    monkeypatch.setattr(demo, "SHOWN", (32, 60, 1000))
    marks = [(30, 1.0, 30, 0.1), (62, 3.0, 62, 0.1), (100, 5.0, 64, 0.1)]
    *rows, last = demo.compare(session, marks, [1] * 300)
    assert [(row["tokens"], row["read_tps"]) for row in rows] == [(30, 30), (62, 16), (100, 19)]
    cache = model(input_ids=torch.tensor([[1] * 100]), use_cache=True).past_key_values
    size = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    assert rows[-1]["full"]["mib"] * 2**20 == size
    assert last["answer_tps"] > 0
    assert len(capsys.readouterr().out.splitlines()) == 10


def test_how_likely_a_sentence_is(demo: ModuleType) -> None:
    """The geometric mean of its tokens' probabilities."""

    def stream_ids(question: str, *, pick: Any, max_tokens: int, stop_ids: set[int]) -> Any:
        assert (question, max_tokens, stop_ids) == ("Who?", 2, set())
        for odds in ([0.2, 0.8], [0.5, 0.5]):
            yield pick(torch.tensor([odds]).log())

    tokenizer = SimpleNamespace(encode=lambda text, add_special_tokens: [1, 0])
    session = SimpleNamespace(tokenizer=tokenizer, stream_ids=stream_ids)
    assert demo.likely(session, "Who?", "It was she.") == pytest.approx((0.8 * 0.5) ** 0.5)


@pytest.mark.filterwarnings("ignore:pot_size=2048 is more than")
def test_a_page_is_answered_as_by_plain_transformers(
    demo: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line says so, and says if it is not so."""
    tokenizer = make_tokenizer()
    session = Session(make_tiny("llama", vocab=len(tokenizer)), tokenizer)
    question = demo.Question("Who hid it?", "Tom", "Tom")
    demo.short_text(session, "The letter was hidden by Tom. " * 3, question)
    assert capsys.readouterr().out.endswith("plain transformers: yes\n")
    monkeypatch.setattr(demo, "stock_answer", lambda *of: "another")
    demo.short_text(session, "The letter was hidden by Tom. " * 3, question)
    assert capsys.readouterr().out.endswith("plain transformers: no\n")


def test_the_score_has_all_ways_to_ask(
    demo: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = []
    for right, likely in ((True, 0.1), (False, 0.4)):
        rows.append({name: right for name in demo.NAMES})
        rows[-1] |= {f"{name}_likely": likely for name in demo.NAMES}
    rows[1]["page"] = True
    demo.report(rows)
    lines = capsys.readouterr().out.splitlines()
    for line, title in zip(lines[2:6], demo.NAMES.values(), strict=True):
        assert title in line
    assert [line.split()[-5:] for line in lines[4:6]] == [
        ["1", "of", "2", "20", "%"],
        ["2", "of", "2", "20", "%"],
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_full_cache_has_the_models_own_type(demo: ModuleType, dtype: torch.dtype) -> None:
    model = make_tiny("llama").to(dtype)
    cache = demo.full_cache(model, 20)
    assert {layer.keys.dtype for layer in cache.layers} == {dtype}
    assert cache.get_seq_length() == 20
    assert model(torch.tensor([[1, 2]]), past_key_values=cache).logits.dtype == dtype
