"""Configs, tokenizers and inputs that differ from what a pot expects: the same answer, or a sentence before anything is read."""

from __future__ import annotations

import copy
import json
import pickle
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import make_tiny, make_tokenizer
from transformers import AutoConfig

from infinipot import PotConfig, Session, compat, load
from infinipot.checks import ModelWarning
from infinipot.model.attention import IN_USE
from infinipot.model.runner import ModelRunner

TOKENIZER = make_tokenizer()
TEXT = "The keeper hid the letter under the third step. Nobody saw it, but the dog did. " * 8
CONFIG = PotConfig(pot_size=200, distill_to=80)


def answer(model) -> str:
    session = Session(model, TOKENIZER, CONFIG)
    session.append(TEXT)
    return session.ask("Where?", max_tokens=8)


@pytest.mark.parametrize(
    "fields",
    [
        {"return_dict": False},
        {"use_cache": False},
        {"output_hidden_states": True},
        {"output_attentions": True},
        {"attn_implementation": "eager"},
        {"attn_implementation": "flash_attention_2"},
        {"attn_implementation": "nonsense"},
        {"attn_implementation": 7, "return_dict": False, "use_cache": False},
    ],
)
def test_what_a_config_asks_of_outputs_changes_nothing(tmp_path: Path, fields: dict) -> None:
    make_tiny("llama").save_pretrained(tmp_path)
    TOKENIZER.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
    model, _ = load(str(tmp_path), device="cpu", dtype="float32")
    assert answer(model) == answer(make_tiny("llama"))


def test_a_token_without_an_embedding_is_found_before_anything_is_read() -> None:
    tokenizer = make_tokenizer()
    session = Session(make_tiny("llama"), tokenizer, CONFIG)
    session.append("before", question="?")
    tokenizer.add_tokens(["<new>"])
    read = session.stats.tokens_read
    for act in (
        lambda: session.append(TEXT + "<new>", question="?"),
        lambda: session.append("then", question="<new>?"),
        lambda: session.ask("<new>?"),
        lambda: session.append(iter(["a <new> b"]), question="?"),
    ):
        with pytest.raises(
            ValueError, match=r"gives the id 97, .*only ids below 97: .*resize_token"
        ):
            act()
        assert session.stats.tokens_read == read
    session.append("a token that is not used does no harm", question="?")
    larger = make_tiny("llama")
    larger.resize_token_embeddings(98)
    session = Session(larger, tokenizer, CONFIG)
    session.append("a <new> b", question="?")
    assert session.stats.tokens_read > 3


@pytest.mark.parametrize("kind", ["cpu_offload", "disk_offload"])
def test_offloaded_weights_are_refused(tmp_path: Path, kind: str) -> None:
    accelerate = pytest.importorskip("accelerate")
    place = {"execution_device": torch.device("cpu")}
    if kind == "disk_offload":
        place["offload_dir"] = tmp_path
    model = getattr(accelerate, kind)(make_tiny("llama"), **place)
    with pytest.raises(ValueError, match="21 weights of LlamaForCausalLM are offloaded"):
        ModelRunner(model)


def test_a_model_that_changes_its_type_after_reading() -> None:
    model = make_tiny("llama")
    session = Session(model, TOKENIZER, CONFIG)
    session.append(TEXT)
    expected = session.ask("Where?", max_tokens=8)
    model.to(torch.bfloat16)
    for act in (lambda: session.ask("Where?"), lambda: session.append("x"), session.fork):
        with pytest.raises(RuntimeError, match=r"was torch.float32 on cpu .*torch.bfloat16 on cpu"):
            act()
    model.to(torch.float32)
    session.append("and on")
    assert expected


def test_sessions_are_saved_not_pickled() -> None:
    session = Session(make_tiny("llama"), TOKENIZER, CONFIG)
    for act in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match=r"session.save.*session.fork"):
            act(session)


IDS = list(range(5, 25))


def test_arrays_of_ids() -> None:
    model = make_tiny("llama")

    def logits(ids: object) -> torch.Tensor:
        session = Session(model, None, PotConfig(pot_size=64, policy="streaming"))
        session.append(ids)
        return session.logits

    for ids in (np.array(IDS), np.array([IDS]), np.array(IDS, dtype=np.uint16)):
        assert torch.equal(logits(ids), logits(IDS))
    wrong = (
        np.array([IDS, IDS]),
        np.array(5),
        np.array(IDS) + 0.5,
        np.array(IDS) > 9,
        torch.tensor([IDS, IDS]),
        [1.5],
        [np.array([1, 2])],
    )
    session = Session(model, TOKENIZER, CONFIG)
    for ids in wrong:
        for act in (lambda: session.append(ids), lambda: session.ask(ids)):  # noqa: B023
            with pytest.raises(ValueError, match="ids (must be|are) whole numbers"):
                act()
    assert session.stats.tokens_read == 0


@pytest.mark.parametrize(
    ("fields", "length"),
    [
        ({}, 256),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}, 1024),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}, 256),
        ({"rope_type": "linear", "factor": 2.0}, 512),
    ],
)
def test_a_pot_larger_than_the_model_was_trained_for(fields: dict, length: int) -> None:
    model = make_tiny("llama")
    if fields:
        rope = {"rope_theta": 10000.0, **fields}
        small = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
        config = AutoConfig.for_model(
            "llama", max_position_embeddings=256, rope_parameters=rope, num_hidden_layers=1, **small
        )
        model = type(model)(config).eval()
    assert compat.trained_length(model) == length
    runner = ModelRunner(model)
    with pytest.warns(
        ModelWarning, match=f"pot_size={length + 1} is more than the {length} tokens"
    ):
        Session(runner, None, PotConfig(pot_size=length + 1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Session(runner, None, PotConfig(pot_size=length))
        Session(runner, None, PotConfig(policy="full"))


def test_a_look_at_the_model_waits_for_other_threads() -> None:
    """While a thread computes logits, the trunk and the output layer are replaced, and no weight is left to look at."""
    runner = ModelRunner(make_tiny("llama"))
    problems: list[BaseException] = []

    def look() -> None:
        try:
            runner.check_unchanged()
        except BaseException as problem:
            problems.append(problem)

    thread = threading.Thread(target=look)
    with IN_USE, runner._stand_ins(torch.zeros(1, 1, 64), slice(0, 4)):
        thread.start()
        thread.join(0.2)
        assert thread.is_alive() and not problems
    thread.join()
    assert not problems
