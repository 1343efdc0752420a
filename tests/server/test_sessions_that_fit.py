"""How many sessions a server takes by itself: a pot's size is foreseen, and the free memory is kept to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from families import FAMILIES
from helpers import CATALYST, random_ids
from live import live
from tiny import make_tiny

from infinipot import PotConfig, Session
from infinipot.model.runner import ModelRunner
from infinipot.server import memory
from infinipot.server.memory import (
    activation_bytes,
    free_bytes,
    pot_bytes,
    sessions_that_fit,
    unscored_bytes,
)

RUNNER = ModelRunner(make_tiny("llama"))
CPU = torch.device("cpu")


def full_bytes(runner: ModelRunner, config: PotConfig) -> int:
    """Bytes of a pot that has been distilled and is full again, or nearly."""
    session = Session(runner, None, config)
    session.append(random_ids(20 * config.pot_size // 8), question=CATALYST)
    while config.policy.bounded and session.pot.room > 20:
        session.append(random_ids(8), question=CATALYST)
    return session.pot.entry_bytes


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"pot_dtype": "int8"},
        {"pot_dtype": "fp8"},
        {"context_reset": False},
        {"layer_budget": (1.0, 3.0)},
        {"score_memory": 0.5},
        {"policy": "h2o"},
        {"policy": "snapkv", "window": 8},
        {"policy": "tova"},
        {"policy": "streaming"},
    ],
    ids=str,
)
def test_a_pots_bytes_are_foreseen(options: dict[str, Any]) -> None:
    config = PotConfig(pot_size=256, distill_to=128, chunk_tokens=16, **options)
    full = full_bytes(RUNNER, config)
    assert pot_bytes(RUNNER, config) == pytest.approx(full, rel=0.03)


@pytest.mark.parametrize("family", ["Gemma-2", "Qwen3-Next", "Falcon-H1", "LFM2"])
def test_layers_of_other_kinds_count(family: str) -> None:
    runner = ModelRunner(FAMILIES[family].build())
    config = PotConfig(pot_size=256, distill_to=128, chunk_tokens=16)
    assert pot_bytes(runner, config) == pytest.approx(full_bytes(runner, config), rel=0.03)


def test_a_fraction_of_the_free_memory_is_kept_to(monkeypatch: pytest.MonkeyPatch) -> None:
    config = PotConfig(pot_size=512)
    one = pot_bytes(RUNNER, config) + unscored_bytes(RUNNER, config)
    spare = activation_bytes(RUNNER, config)

    def sessions(free: int, fraction: float | None = None) -> int:
        monkeypatch.setattr(memory, "free_bytes", lambda devices: free)
        return sessions_that_fit(RUNNER, config, fraction)

    assert sessions(spare + 10 * one, 1.0) == 10
    assert sessions(spare + 10 * one - 1, 1.0) == 9
    assert sessions(2 * (spare + 7 * one)) == 7  # half of it on a CPU
    assert sessions(10**15) == 256
    assert sessions(0) == 2


def test_what_waits_for_its_novelty_is_foreseen() -> None:
    """Hidden states of the tokens since the last distillation, in pots that need novelty."""
    for options, waits in (({}, True), ({"policy": "streaming"}, False)):
        config = PotConfig(pot_size=256, distill_to=128, chunk_tokens=16, **options)
        session = Session(RUNNER, None, config)
        session.append(random_ids(250), question=CATALYST)
        most = sum(states.nbytes for _, states in session.pot.unscored)
        assert most <= unscored_bytes(RUNNER, config)
        assert bool(most) == bool(unscored_bytes(RUNNER, config)) == waits


def test_free_memory_is_that_of_the_container(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    whole = free_bytes([CPU])
    assert whole > 1 << 20
    (tmp_path / "memory.current").write_text("1000\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert free_bytes([CPU]) > 1 << 20
    (tmp_path / "memory.max").write_text("5000\n")
    assert free_bytes([CPU]) == 4000


def test_a_server_takes_as_many_as_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda devices: 0)
    lines: list[str] = []
    with live({"as_many_as_fit": True}, notify=lines.append) as here:
        assert here.service.engine.scheduler.limits.sessions == 2
        assert here.chat("Hello").usage.completion_tokens == 12
    assert lines[0].startswith("2 sessions fit into memory, of ")
