"""Faults once found by trying to break the engine: each kind stays ruled out."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import CATALYST, assert_close, greedy, kept, random_ids
from tiny import make_tiny, make_tokenizer

from infinipot import PotConfig, PotFileError, Sampling, Session, generate, pot_file
from infinipot.model.runner import ModelRunner

MODEL, TOKENIZER = make_tiny("llama"), make_tokenizer()
SMALL = PotConfig(pot_size=64, distill_to=20, novelty=0.0, chunk_tokens=8)


def read(
    ids: list[int], question: list[int] = CATALYST, config: PotConfig = SMALL, runner=MODEL
) -> Session:
    session = Session(runner, None, config)
    session.append(ids, question=question)
    return session


def test_an_error_in_a_layer_leaves_all_layers_as_they_were() -> None:
    session = read(random_ids(20))

    def boom(*args) -> None:
        raise MemoryError

    hook = MODEL.model.layers[1].register_forward_pre_hook(boom)
    with pytest.raises(MemoryError):
        session.append(random_ids(10, seed=1), question=CATALYST)
    hook.remove()
    assert {layer.length for layer in session.pot.layers} == {20}
    session.append(random_ids(10, seed=1), question=CATALYST)
    assert_close("logits", session.logits, read(random_ids(20) + random_ids(10, seed=1)).logits)


@pytest.mark.parametrize("first", [[1], random_ids(10)])
def test_a_longer_catalyst_after_an_interrupted_reading(first: list[int]) -> None:
    session = Session(MODEL, None, SMALL)

    def stop() -> None:
        if session.stats.entries > 50:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        session.append(random_ids(200), question=first, progress=stop)
    session.append(torch.tensor([], dtype=torch.long), question=random_ids(20))
    session.append(random_ids(100), question=random_ids(30))
    assert session.stats.peak_entries <= 64


def in_threads(*works: Callable[[], Any]) -> list[Any]:
    """What each returns, all of them run side by side; switched often, so that they meet."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(len(works)) as pool:
            return [future.result() for future in [pool.submit(work) for work in works]]
    finally:
        sys.setswitchinterval(before)


def test_two_threads_read_with_one_model() -> None:
    runner = ModelRunner(MODEL)
    works = [
        lambda seed=seed: kept(read(random_ids(200, seed=seed), runner=runner)) for seed in (1, 2)
    ]
    assert in_threads(*works) == [kept(read(random_ids(200, seed=seed))) for seed in (1, 2)]
    assert MODEL.config._attn_implementation != "infinipot"


def test_threads_answer_from_forks() -> None:
    """More ids than one block of novelty, so that a part of the output layer stands in for it, too."""
    model = make_tiny("llama", vocab=6000)
    trunk = model.base_model
    session = read(random_ids(200), runner=ModelRunner(model))
    questions = [random_ids(5, seed=seed) for seed in range(4)]

    def answers(fork: Session, question: list[int]) -> list[list[int]]:
        return [
            list(fork.stream_ids(question, max_tokens=8, pick=greedy, stop_ids=set(), keep=True))
            for _ in range(5)
        ]

    expected = [answers(session.fork(), question) for question in questions]
    for _ in range(3):
        forks = [session.fork() for _ in questions]
        got = in_threads(
            *[lambda f=f, q=q: answers(f, q) for f, q in zip(forks, questions, strict=True)]
        )
        assert got == expected
    assert model.base_model is trunk
    assert type(model.lm_head) is torch.nn.Linear


def test_a_model_is_looked_at_while_another_thread_reads(tmp_path: Path) -> None:
    model = make_tiny("llama", vocab=6000)
    runner = ModelRunner(model)
    session, origin = read(random_ids(100), runner=runner), pot_file.origin(model, None)

    def look() -> None:
        for number in range(5):
            session.save(tmp_path / f"{number}.pot")
            assert pot_file.origin(model, None) == origin
            assert kept(read(random_ids(100), runner=ModelRunner(model))) == kept(session)

    in_threads(look, lambda: [read(random_ids(200), runner=runner) for _ in range(10)])


def test_a_dropped_answer_frees_its_session() -> None:
    session = Session(MODEL, TOKENIZER, PotConfig(pot_size=160, distill_to=60))
    session.append("x " * 100)
    gc.disable()
    try:
        for _ in session.stream("Who?", max_tokens=30):
            break
        session.append("x")
    finally:
        gc.enable()


def test_refusals_change_nothing() -> None:
    session = Session(MODEL, TOKENIZER, PotConfig(pot_size=100, distill_to=60, catalyst="question"))
    with pytest.raises(ValueError, match="needs the question"):
        session.append("text")
    with pytest.raises(ValueError, match="leaves no room"):
        session.append("text", question="x" * 60)
    assert session.stats.tokens_read == 0
    session.append(random_ids(5), question=CATALYST)
    assert session.stats.tokens_read == 5, "still free to begin with ids"
    with pytest.raises(ValueError, match="half of it"):
        Session(
            MODEL, TOKENIZER, PotConfig(pot_size=20, policy="truncate"), system="x" * 60
        ).append("hello")


def test_pots_begun_in_inference_mode_or_autocast_go_on_outside() -> None:
    expected = read(random_ids(200))
    for context in (torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16)):
        session = Session(MODEL, None, SMALL)
        with context:
            session.append(random_ids(200)[:100], question=CATALYST)
        session.append(random_ids(200)[100:], question=CATALYST)
        assert kept(session) == kept(expected)


def test_dropout_is_off_while_reading_and_the_mode_stays() -> None:
    import transformers as tf

    sizes = dict(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        pad_token_id=0,
    )
    model = tf.PhiForCausalLM(tf.PhiConfig(**sizes, resid_pdrop=0.5, embd_pdrop=0.5)).eval()
    expected = read(random_ids(100), runner=model).logits
    model.train()
    assert torch.equal(read(random_ids(100), runner=model).logits, expected)
    assert model.training


def test_an_output_layer_exchanged_later_stays() -> None:
    model = make_tiny("llama", vocab=20_000)
    session = Session(model, None, PotConfig(pot_size=64))
    model.resize_token_embeddings(20_064)
    head = model.lm_head
    session.append(random_ids(20), question=[1])
    assert model.lm_head is head


def test_generate_reads_what_fits_whole() -> None:
    ids, options = (
        torch.tensor([random_ids(100)]),
        {"max_new_tokens": 20, "do_sample": False, "pad_token_id": 0},
    )
    whole = MODEL.generate(ids, custom_generate=generate, pot=PotConfig(pot_size=120), **options)
    assert torch.equal(whole, MODEL.generate(ids, **options))
    MODEL.generate(
        ids, custom_generate=generate, pot=PotConfig(pot_size=40, distill_to=39 - 1), **options
    )
    with pytest.raises(ValueError, match="the prompt's end is the catalyst"):
        MODEL.generate(ids, custom_generate=generate, pot=PotConfig(catalyst="general"), **options)
    for prefix in ("1. ", "question"):
        with pytest.raises(ValueError, match=f"answer_prefix='{prefix}' is not possible here"):
            MODEL.generate(
                ids, custom_generate=generate, pot=PotConfig(answer_prefix=prefix), **options
            )
    with pytest.raises(TypeError, match="PotConfig"):
        MODEL.generate(ids, custom_generate=generate, pot={"pot_size": 64}, **options)


def test_every_bit_of_a_pot_file_counts(tmp_path: Path) -> None:
    path = tmp_path / "a.pot"
    read(random_ids(100)).save(path)
    good = path.read_bytes()
    end = 8 + int.from_bytes(good[:8], "little")
    for place in range(8, end, 37):
        path.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        with pytest.raises(PotFileError):
            Session.load(path, MODEL)
    with pytest.raises(PotFileError, match="cannot save"):
        pot_file.write(tmp_path / ("x" * 300), {"a": torch.zeros(1)}, {})


def test_a_saved_pot_that_needs_no_catalyst_goes_on(tmp_path: Path) -> None:
    session = Session(MODEL, TOKENIZER, PotConfig(pot_size=64, distill_to=24, policy="streaming"))
    session.append("x" * 63)
    session.save(tmp_path / "a.pot")
    again = Session.load(tmp_path / "a.pot", MODEL, TOKENIZER)
    assert again.chat("hi", max_tokens=10) == session.chat("hi", max_tokens=10)


@pytest.mark.parametrize(
    "wrong", [b"hello", {"input_ids": [1]}, 5, [True, False], torch.tensor([True])]
)
def test_what_is_no_text_is_refused(wrong: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        Session(MODEL, TOKENIZER, SMALL).append(wrong)  # type: ignore[arg-type]


def test_stale_streams_are_refused() -> None:
    session = read(random_ids(30))
    tokens = session.stream_ids([1, 2, 3], max_tokens=30, pick=greedy, stop_ids=set())
    session.append(random_ids(20), question=CATALYST)
    with pytest.raises(RuntimeError, match="read on"):
        next(tokens)


def test_threads_append_one_after_the_other_or_are_refused() -> None:
    """One text at a time: the session holds whole texts, and whoever came too soon is told."""
    one = Session(MODEL, None, PotConfig(pot_size=256, distill_to=100, policy="streaming"))
    begun = threading.Event()
    go_on = threading.Event()

    def wait() -> None:
        begun.set()
        assert go_on.wait(60)

    first = threading.Thread(target=one.append, args=(random_ids(60),), kwargs={"progress": wait})
    first.start()
    assert begun.wait(60)
    for act in (
        lambda: one.append(random_ids(20)),
        lambda: next(one.stream_ids([5], max_tokens=1, pick=greedy)),
        one.fork,
        lambda: one.save("never"),
    ):
        with pytest.raises(RuntimeError, match="a text is being read into this session"):
            act()
    go_on.set()
    first.join()
    one.append(random_ids(20, seed=2))
    alone = Session(MODEL, None, one.config)
    alone.append([*random_ids(60), *random_ids(20, seed=2)])
    assert one.pot.tokens_read == 80
    torch.testing.assert_close(one.logits, alone.logits, atol=1e-4, rtol=1e-4)


def test_from_its_own_progress_a_session_can_be_asked_but_not_fed() -> None:
    one = Session(MODEL, None, PotConfig(pot_size=256, distill_to=100, policy="streaming"))
    seen = []

    def look() -> None:
        seen.append(list(one.stream_ids([5], max_tokens=2, pick=greedy, stop_ids=set())))
        with pytest.raises(RuntimeError, match="a text is being read"):
            one.append([5])

    one.append(random_ids(30), progress=look)
    assert [len(answer) for answer in seen] == [2]
    assert one.pot.tokens_read == 30


def test_a_pot_that_is_not_numbers_is_not_saved(tmp_path: Path) -> None:
    model = make_tiny("llama")
    model.model.layers[1].self_attn.v_proj.weight.data[0] = float("nan")
    one = Session(model, make_tokenizer(), PotConfig(pot_size=256, distill_to=60))
    one.append("Anna hid it.")
    with pytest.raises(ValueError, match=r"logits are not numbers.*bfloat16 or float32"):
        one.ask("Who?", temperature=1.0)
    with pytest.raises(PotFileError, match=r"not numbers.*bfloat16 or float32"):
        one.save(tmp_path / "a.pot")
    assert list(tmp_path.iterdir()) == []
    ids = torch.tensor([random_ids(10)])
    with pytest.raises(ValueError, match="logits are not numbers"):
        model.generate(ids, max_new_tokens=2, pad_token_id=0, custom_generate=generate)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("temperature", [float("inf"), float("nan"), -1.0, "1", True]),
        ("seed", [2**64, -(2**63) - 1, 1.5, True, "1"]),
        ("top_p", [float("nan"), 1.5, -0.1, "x", True]),
        ("min_p", [float("nan"), 2.0, None]),
        ("top_k", [-1, 1.5, float("nan"), True]),
        ("max_tokens", [0, -1, 1.5, float("inf"), True, "5"]),
        ("stop", ["END", ("a", 5), ("",), 5]),
    ],
)
def test_numbers_of_sampling_that_cannot_be(name: str, values: list) -> None:
    for value in values:
        with pytest.raises((ValueError, TypeError), match=f"^{name}.*(not allowed|empty)"):
            Sampling(**{name: value})


def test_numbers_of_sampling_at_their_ends() -> None:
    one = Session(MODEL, make_tokenizer(), PotConfig(pot_size=128, distill_to=60))
    one.append("Anna hid it.")
    greedy_answer = one.ask("Who?", max_tokens=6)
    for cold in (1e-38, 5e-324, 1e-6):
        assert one.ask("Who?", max_tokens=6, temperature=cold, seed=1) == greedy_answer
    for options in (
        {"temperature": 1e308, "seed": 2**64 - 1},
        {"temperature": 1, "seed": -(2**63), "top_k": 2**40, "top_p": 0.0, "min_p": 1.0},
    ):
        answers = {one.ask("Who?", max_tokens=6, **options) for _ in range(2)}
        assert len(answers) == 1
    assert next(one.stream("Who?", max_tokens=10**18)) == greedy_answer[:1]
