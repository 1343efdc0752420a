"""What rank 0 of `test_followers.py` runs: a model over two processes must do what it does in one."""

from __future__ import annotations

import gc
import os
import signal
import sys
from pathlib import Path

import pytest
import torch
from helpers import CATALYST, assert_close, greedy, kept, random_ids
from tiny import make_tokenizer
from transformers import AutoModelForCausalLM

from infinipot import PotConfig, Session, load
from infinipot.cache.layer import PotOverflow
from infinipot.engine.decode import together
from infinipot.model.runner import ModelRunner
from infinipot.parallel.followers import followers_of
from infinipot.policies import POLICIES
from infinipot.server.jobs.echo import RecordingRunner

TOKENIZER = make_tokenizer()
VOCABULARY = 20_000
"""More than one block of novelty on a CPU."""
SIZES = {"pot_size": 96, "distill_to": 24}
OPTIONS: dict[str, dict] = {
    **{name: {"policy": name} for name, policy in POLICIES.items() if policy.bounded},
    "eight bits": {"pot_dtype": "int8"},
    "all heads at once": {"policy": "outliers", "by_sentence": 1.0},
    "contrast": {"contrast": "unrelated", "catalyst": "general"},
    "plain": {"catalyst": "plain"},
}
ANSWERS = {"infinipot", "h2o", "eight"}
"""Options with which answers are compared. Answers do not depend on the policy."""
DIFFERENT = {"random"}
"""Policies that choose by chance: each rank for its own heads."""


def answer(session: Session, **options) -> list[int]:
    options = {"max_tokens": 4, "pick": greedy, "stop_ids": set(), **options}
    return list(session.stream_ids([5, 6, 7], **options))


def read(runner: ModelRunner, question: list[int] | None, **options) -> Session:
    session = Session(runner, TOKENIZER, PotConfig(**SIZES, **options), template=False)
    session.append(random_ids(200), question=question)
    return session


def part(layers: list, rank: int = 0) -> list:
    """One rank's heads of each layer."""
    heads = len(layers[0]) // 2
    return [layer[rank * heads : (rank + 1) * heads] for layer in layers]


def same(name: str, mine: Session, whole: Session, bound: float) -> None:
    if mine.config.policy.name not in DIFFERENT:
        assert kept(mine) == part(kept(whole)), name
        assert_close(name, mine.logits.cpu(), whole.logits.cpu(), bound)
        if name.split()[0] in ANSWERS:
            assert answer(mine) == answer(whole), name
    assert mine.stats.distillations == whole.stats.distillations
    assert mine.stats.distillations >= 2 or not mine.config.policy.bounded, name
    assert 2 * mine.stats.pot_bytes == whole.stats.pot_bytes


def check_policies(shared: ModelRunner, alone: ModelRunner) -> None:
    for name, options in OPTIONS.items():
        questions: list[list[int] | None] = [None]
        if name in ("infinipot", "h2o", "eight bits"):
            questions.append(CATALYST)
        for question in questions:
            mine = read(shared, question, **options)
            whole = read(alone, question, **options)
            same(
                f"{name} {question is None}", mine, whole, 1e-3 if "pot_dtype" in options else 1e-4
            )


def check_sessions(shared: ModelRunner, alone: ModelRunner) -> None:
    """Forks, several answers at once, answers that are given up, and a chat."""
    sessions = [read(runner, CATALYST) for runner in (shared, alone)]
    said = []
    for session in sessions:
        options = {"max_tokens": 45, "pick": greedy, "stop_ids": set(), "keep": True}
        forks = [session.fork() for _ in range(3)]
        generations = [
            fork.generation([5 + number], **options) for number, fork in enumerate(forks)
        ]
        tokens = [step for step in together(generations)]
        stream = session.stream_ids([9], **options)
        given_up = [next(stream) for _ in range(3)]
        stream.close()
        said.append((tokens, given_up, answer(session)))
    assert said[0] == said[1]
    assert kept(sessions[0]) == part(kept(sessions[1]))


def check_files(shared: ModelRunner, alone: ModelRunner, folder: Path) -> None:
    """A pot file does not depend on how the model was shared out when it was written."""
    mine = read(shared, CATALYST)
    whole = read(alone, CATALYST)
    mine.save(folder / "mine.pot")
    whole.save(folder / "whole.pot")
    for name in ("mine", "whole"):
        for runner, like in ((shared, mine), (alone, whole)):
            again = Session.load(folder / f"{name}.pot", runner, TOKENIZER)
            assert kept(again) == kept(like)
            assert_close(name, again.logits.cpu(), like.logits.cpu(), 1e-4)
            assert answer(again) == answer(like)


def check_errors(shared: ModelRunner) -> None:
    """After an exception on all ranks the next call works."""
    session = Session(shared, None, PotConfig(**SIZES))
    with pytest.raises(PotOverflow):
        shared.read(torch.tensor([random_ids(200)]), [session.pot])
    session.append(random_ids(40))


def check_echo(shared: ModelRunner, alone: ModelRunner) -> None:
    """A runner that records its passes makes no CUDA graphs, on no rank."""
    hidden = []
    for runner in (shared, alone):
        recording = RecordingRunner(runner)
        read(recording, CATALYST)
        hidden.append(torch.cat([states for _, _, states in recording.passes], dim=1).cpu())
    assert_close("passes", *hidden, 1e-4)


def work(folder: Path, device: str) -> None:
    """Prints what passed. The last line of stderr is that of a rank that was killed."""
    torch.set_num_threads(1)
    model, _ = load(str(folder), device=device, dtype="float32", tensor_parallel=2)
    followers = followers_of(model)
    assert followers is not None
    shared = ModelRunner(model)
    assert shared.query_heads[0] == 2, "half of four"
    alone = ModelRunner(
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(device).eval()
    )
    check_policies(shared, alone)
    check_sessions(shared, alone)
    check_files(shared, alone, folder)
    if device == "cpu":
        check_errors(shared)
        check_echo(shared, alone)
    gc.collect()
    Session(shared, None, PotConfig(**SIZES))
    print("the same", flush=True)
    os.kill(followers.ranks[0].process.pid, signal.SIGKILL)
    for _ in range(1000):
        read(shared, CATALYST)


if __name__ == "__main__":
    work(Path(sys.argv[1]), sys.argv[2])
