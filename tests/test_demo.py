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

from infinipot import PotConfig

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
    session = SimpleNamespace(stats=SimpleNamespace(tokens_read=0))
    progress = demo.Progress(session, 4000)
    for clock.now, session.stats.tokens_read in ((4.0, 400), (10.0, 1000), (12.0, 1200)):
        progress()
    progress.close()
    assert capsys.readouterr().out == "  1,000 of 4,000 tokens read, about 30 s left\n"
