"""An option that would do nothing is refused, wherever it comes from."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from commands import one_line
from tiny import make_tiny

from infinipot.policies import POLICIES


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (
            ["--policy", "streaming", "--novelty", "0.3"],
            ["--novelty does nothing with policy streaming", "(infinipot)"],
        ),
        (["--group", "4"], ["--group does nothing with policy infinipot", "(self_extend)"]),
        (["--window", "8"], ["--window does nothing with policy infinipot", "(tova, snapkv)"]),
        (["--policy", "full", "--pot-size", "64"], ["--pot-size does nothing with policy full"]),
        (["--policy", "truncate", "--sinks", "4"], ["--sinks does nothing with policy truncate"]),
        (["--policy", "sirllm", "--pool", "7"], ["--pool does nothing with policy sirllm"]),
        (
            ["--policy", "h2o", "--catalyst", "general"],
            ["--catalyst does nothing with policy h2o", "(infinipot, relevance, kvzip)"],
        ),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(
    run: Any, args: list[str], parts: list[str]
) -> None:
    for command in (["generate", "./no/model", "-p", "x"], ["bench", "./no/model"]):
        code, out, err = run(*command, *args)
        assert (code, out) == (2, "")
        one_line(err, *parts, "leave it out")


def test_useless_options_from_the_environment_and_the_config_file(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("neighbours: 9\n")
    ask = ["generate", "./no/model", "-p", "x"]
    one_line(
        run(*ask, "--config", config)[2],
        "neighbours in the config file does nothing with policy infinipot",
    )
    monkeypatch.setenv("INFINIPOT_GROUP", "4")
    one_line(run(*ask)[2], "INFINIPOT_GROUP does nothing with policy infinipot")
    one_line(
        run(*ask, "--policy", "self_extend", "--neighbours", 9)[2], "there is no folder ./no/model"
    )


def test_of_several_policies_one_must_use_an_option(run: Any, tmp_path: Path) -> None:
    needle = [
        "needle",
        "./no/model",
        "-o",
        tmp_path / "out",
        "--haystack",
        "filler",
        "--lengths",
        300,
        "--pot-size",
        128,
    ]
    code, _, err = run(*needle, "--policy", "streaming,h2o", "--novelty", 0.3)
    assert code == 2
    one_line(err, "--novelty does nothing with policy streaming or h2o", "(infinipot)")
    one_line(
        run(*needle, "--policy", "streaming,infinipot:novelty=0,tova:window=3:novelty=0.1")[2],
        "policy 'tova' has no option 'novelty'",
    )
    for policies in ("streaming,infinipot", "full,infinipot:novelty=0"):
        one_line(
            run(*needle, "--policy", policies, "--novelty", 0.3)[2], "there is no folder ./no/model"
        )


def test_a_server_takes_what_its_policy_uses(run: Any) -> None:
    pytest.importorskip("fastapi")
    serve = ["serve", "./no/model", "--port", 0, "--max-sessions", 1]
    one_line(run(*serve[:-2], "--group", 4)[2], "--group does nothing with policy infinipot")
    one_line(
        run(*serve[:-2], "--policy", "streaming", "--novelty", 0.3)[2],
        "--novelty does nothing with policy streaming",
    )
    one_line(run(*serve, "--novelty", 0.3)[2], "max-sessions=1")  # refused for that alone


@pytest.mark.parametrize("policy", POLICIES)
def test_what_is_refused_would_have_done_nothing(policy: str) -> None:
    """The same entries, and the same logits, whatever a refused option says."""
    import torch
    from helpers import CATALYST, CHANGES, kept, random_ids

    from infinipot import PotConfig, Session
    from infinipot.config import matters
    from infinipot.policies import UnknownOption

    changes = {
        **CHANGES,
        "pot_size": 64,
        "window": 5,
        "pool_mode": "max",
        "prefill": "whole",
        "group": 2,
        "neighbours": 16,
    }
    grown = make_tiny("llama", layers=3)

    def read(**options: Any) -> tuple[Any, Any]:
        settings = {"pot_size": 96, "policy": policy, **options}
        if matters("catalyst", POLICIES[policy]):
            # kvzip's own catalyst is a text, for which there is no tokenizer
            settings = {"catalyst": "question", **settings}
        session = Session(grown, None, PotConfig(**settings))
        session.append(random_ids(200), question=CATALYST)
        return kept(session), session.logits

    places, logits = read()
    refused = [name for name in changes if not matters(name, POLICIES[policy])]
    assert refused
    for name in refused:
        if name not in {field.name for field in dataclasses.fields(PotConfig)}:
            with pytest.raises(UnknownOption, match=f"policy '{policy}' has no option '{name}'"):
                read(**{name: changes[name]})
            continue
        again, other = read(**{name: changes[name]})
        assert again == places and torch.equal(other, logits), name
