"""What users of transformers are used to works, or its error says what to write instead."""

from __future__ import annotations

import dataclasses
import io
import threading
from typing import Any, get_args, get_type_hints

import pytest
import torch
from commands import save_tiny
from tiny import make_tiny
from transformers import TextIteratorStreamer, TextStreamer

import infinipot
from infinipot import PotConfig, Sampling, Session, load, option_types
from infinipot.cache.storage import QUANTISED
from infinipot.config import PRESETS
from infinipot.model.load import DTYPES
from infinipot.policies import POLICIES
from infinipot.policies.registry import OPTIONS
from infinipot.scoring.selection import POOLINGS, REDUCTIONS


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    folder = tmp_path_factory.mktemp("tiny")
    save_tiny(folder)
    session = Session(*load(str(folder), dtype=torch.float32, device=torch.device("cpu")))
    session.append("The letter was hidden")
    return session


def streamed(session: Session, work: Any) -> tuple[str, list[Exception]]:
    """What a TextIteratorStreamer gives while another thread works, and the errors of that."""
    streamer = TextIteratorStreamer(session.tokenizer, timeout=30)
    problems: list[Exception] = []

    def run() -> None:
        try:
            work(streamer)
        except Exception as problem:
            problems.append(problem)

    thread = threading.Thread(target=run)
    thread.start()
    text = "".join(streamer)
    thread.join()
    return text, problems


def test_streamers_of_answers(session: Session, capsys: pytest.CaptureFixture[str]) -> None:
    expected = session.ask("By whom?", max_tokens=8)
    ask = session.ask
    got = streamed(session, lambda streamer: ask("By whom?", max_tokens=8, streamer=streamer))
    assert got == (expected, [])
    twin = session.fork()
    chat = twin.chat("By whom?", max_tokens=8, streamer=TextStreamer(session.tokenizer))
    assert (chat, capsys.readouterr().out) == (expected, f"{expected}\n")
    for wrong in ({"temperature": -1}, {"max_new_tokens": 5}):
        text, (problem,) = streamed(session, lambda to, w=wrong: ask("Who?", streamer=to, **w))
        assert (text, type(problem)) in (("", ValueError), ("", TypeError))
    text, problems = streamed(session, lambda to: session.fork().chat([300], streamer=to))
    assert (text, len(problems)) == ("", 1)


@pytest.mark.parametrize("wrong", [{"pot": 5}, {"return_dict_in_generate": True}, {}])
def test_a_streamer_of_generate_never_waits(session: Session, wrong: Any) -> None:
    ids = torch.tensor([[5, 6, 7, 8]])
    options = {"max_new_tokens": 3, "custom_generate": infinipot.generate, **wrong}
    model = session.runner.model
    _, problems = streamed(session, lambda to: model.generate(ids, streamer=to, **options))
    assert len(problems) == len(wrong)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_new_tokens": 5}, "max_new_tokens is called max_tokens here"),
        ({"do_sample": True}, "called temperature"),
        ({"temprature": 1}, "did you mean 'temperature'?"),
        ({"num_beams": 2}, r"known: max_tokens, temperature"),
    ],
)
def test_names_of_other_libraries(session: Session, options: Any, words: str) -> None:
    for answer in (session.ask, session.chat, session.stream):
        with pytest.raises(TypeError, match=words):
            answer("Who?", **options)


def test_a_pot_is_no_cache_of_the_model_alone(session: Session) -> None:
    model = session.runner.model
    before = session.ask("Who?", max_tokens=4)
    ids = torch.tensor([[5, 6]])
    for call in (
        lambda: model.generate(ids, past_key_values=session.pot, max_new_tokens=2),
        lambda: model(ids, past_key_values=session.pot),
        lambda: model.generate(
            ids, past_key_values=session.pot, max_new_tokens=2, custom_generate=infinipot.generate
        ),
    ):
        with pytest.raises(ValueError, match=r"session\.ask"):
            call()
    assert session.ask("Who?", max_tokens=4) == before


MESSAGE = {"role": "user", "content": "Who?"}


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda s: s.chat([MESSAGE]), "not messages"),
        (lambda s: s.ask(MESSAGE), "not messages"),
        (lambda s: s.append([MESSAGE, MESSAGE]), "not messages"),
        (lambda s: s.append(s.tokenizer("a b")), "input_ids"),
        (lambda s: s.append(io.BytesIO(b"a b")), "open the file as text"),
        (lambda s: Session("smollm2"), r"Session\(\*load\('smollm2'\)\)"),
        (lambda s: Session((s.runner, s.tokenizer)), r"Session\(\*load"),
        (lambda s: Session(s.runner, s.tokenizer, {"pot_size": 64}), r"PotConfig\(pot_size"),
        (lambda s: load("smollm2", dtype=torch.float64), "unknown dtype 'float64'"),
    ],
)
def test_what_is_no_text_and_no_model(session: Session, call: Any, words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        call(session)


def test_what_a_session_and_the_package_show(session: Session) -> None:
    tokens = session.stats.tokens_read
    assert repr(session) == (
        f"<Session: LlamaForCausalLM, policy infinipot, {tokens} of 2,048 entries, "
        f"{tokens} tokens read, 0 distillations>"
    )
    assert dir(infinipot) == sorted([*infinipot.__all__, "__version__"])
    assert all(hasattr(infinipot, name) for name in dir(infinipot))


def names(hint: Any) -> set[Any]:
    """The names in a Literal, or in a union with Literals."""
    inner = get_args(hint)
    return {one for one in inner if isinstance(one, str)}.union(*map(names, inner))


def test_types_of_options_are_those_of_the_classes() -> None:
    pot = get_type_hints(option_types.PotOptions)
    fields = {field.name for field in dataclasses.fields(PotConfig)} - {"policy"}
    assert set(pot) == fields | {*OPTIONS, "preset"}
    sampling = get_type_hints(option_types.SamplingOptions)
    assert set(sampling) == {field.name for field in dataclasses.fields(Sampling)}
    assert names(option_types.PolicyName) == set(POLICIES)
    assert names(option_types.DtypeName) == {"auto", *DTYPES}
    for name, allowed in (
        ("preset", PRESETS),
        ("pot_dtype", QUANTISED),
        ("gqa", REDUCTIONS),
        ("pool_mode", POOLINGS),
        ("prefill", ("bounded", "whole")),
    ):
        assert names(pot[name]) == set(allowed)


def test_adapters() -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed")
    model = make_tiny("llama")
    config = PotConfig(pot_size=64, distill_to=24, policy="snapkv", window=4)
    ids = list(range(5, 85))

    def answer(model: Any) -> list[int]:
        session = Session(model, None, config)
        session.append(ids)
        return list(session.stream_ids([5], max_tokens=5, pick=lambda x: int(x.argmax())))

    plain = answer(model)
    lora = peft.LoraConfig(target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    adapted = peft.get_peft_model(model, lora)
    with adapted.disable_adapter():
        assert answer(adapted) == plain
    own = answer(adapted)
    assert own == answer(adapted.merge_and_unload()) != plain
    prompt = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4)
    with pytest.raises(ValueError, match="learned prompt"):
        Session(peft.get_peft_model(make_tiny("llama"), prompt))
